// @ts-check
/** The steps that the page shows: the newest ones as they arrive, or a held step. Shared by all charts of a page. */
import { Emitter } from "./events.js";

/** `live:500` or `1000-1500`.
 * @param {string} text @returns {{live: number} | {from: number, to: number}} */
export function readSteps(text) {
  const live = /^live:(\d{1,9})$/.exec(text);
  if (live) return { live: Math.max(2, Number(live[1])) };
  const range = /^(\d{1,15})-(\d{1,15})$/.exec(text);
  if (range && Number(range[1]) <= Number(range[2])) return { from: Number(range[1]), to: Number(range[2]) };
  return { live: 500 };
}

/**
 * Reads and writes `steps` and `step` of the state. Emits "change" when the shown steps are chosen differently
 * (paused, another
 * window, another step), and "newest" when a newer step is known.
 */
export class Follow extends Emitter {
  /** @param {import("./state.js").State} state @param {number | null} newest */
  constructor(state, newest) {
    super();
    this.state = state;
    /** The newest step that the server has sent. */
    this.newest = newest;
    /** Steps that arrived while the page was held. */
    this.waiting = 0;
    /** The newest step when it was held; of a page that was opened held, when it was opened. @type {number | null} */
    this.heldAt = state.get("step") === "" ? null : newest;
    state.on("steps", () => this.emit("change"));
    state.on("step", () => this.emit("change"));
  }

  /** Whether the page is about certain steps, such as those around an incident: it is neither live nor held. */
  get fixed() {
    return this.state.defaults.step !== "";
  }

  /** Whether the page is held: new steps are counted, not shown. */
  get paused() {
    if (this.fixed) return false;
    return this.state.get("step") !== "" || !("live" in this.window);
  }

  /** The shown steps. */
  get window() {
    return readSteps(this.state.get("steps"));
  }

  /** The current step: the held one, or the newest. */
  get step() {
    const held = this.state.get("step");
    return held === "" ? ("to" in this.window ? this.window.to : this.newest) : Number(held);
  }

  /** First and last step on the axis; null as long as there is none.
   * @returns {[number, number] | null} */
  get span() {
    const window = this.window;
    if ("from" in window) return [window.from, window.to];
    const last =
      this.state.get("step") === "" ? this.newest : this.#heldEnd(Number(this.state.get("step")), window.live);
    return last === null ? null : [Math.max(0, last - window.live + 1), last];
  }

  /**
   * The end of a held window: where it was held, as long as the step is in it.
   * @param {number} step
   * @param {number} length
   */
  #heldEnd(step, length) {
    return Math.min(Math.max(step, this.heldAt ?? 0), step + length - 1);
  }

  /** @param {number} step */
  saw(step) {
    if (this.newest !== null && step <= this.newest) return;
    if (this.paused && this.newest !== null) this.waiting += step - this.newest;
    this.newest = step;
    this.emit("newest", step);
  }

  /** Holds the page at a step (the newest one if none is given). @param {number | null} [step] */
  hold(step = this.step) {
    if (step === null) return;
    if (!this.paused) this.heldAt = this.newest ?? step;
    this.state.set({ step: String(step) });
  }

  /** Shows these steps and holds. @param {number} from @param {number} to */
  zoom(from, to) {
    this.state.set({ steps: `${Math.round(from)}-${Math.round(to)}` });
  }

  /** Goes back to the newest steps. */
  live() {
    this.waiting = 0;
    this.heldAt = null;
    const window = this.window;
    const length = "live" in window ? window.live : Math.max(2, window.to - window.from + 1);
    this.state.set({ step: "", steps: `live:${length}` });
  }
}
