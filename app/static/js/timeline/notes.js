/** What readers noted at steps: the server draws it on the timeline, where charts find it. */
import { Emitter } from "../state.js";
/** @typedef {{step: number, text: string}} Note */

/** Emits "change" when there are others. */
export class Notes extends Emitter {
  /** @type {readonly Note[]} */
  all = [];

  constructor() {
    super();
    this.read();
  }

  /** Reads the annotations on the timeline. */
  read() {
    const drawn = /** @type {NodeListOf<HTMLElement>} */ (
      globalThis.document?.querySelectorAll("#timeline-line .note")
    );
    const notes = [...(drawn ?? [])].map(({ dataset }) => ({ step: Number(dataset.step), text: dataset.note ?? "" }));
    if (JSON.stringify(notes) === JSON.stringify(this.all)) return;
    this.all = notes;
    this.emit("change");
  }

  /** @param {number} step @returns {string} */
  at(step) {
    return this.all.find((note) => note.step === step)?.text ?? "";
  }
}
