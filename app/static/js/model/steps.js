// @ts-check
/** The step that is shown: the one that the page is held at, the newest one, or the next one while it plays. */
import { Emitter } from "../emitter.js";
import { beginOf, Player, speedOf } from "./play.js";

/** Emits "step" when another step is shown, and when it begins or ends to play. */
export class Steps extends Emitter {
  player = new Player();
  /** The step that is shown. @type {number | null} */
  step = null;
  /** The one whose values were taken. @type {number | null | undefined} */
  #taken = undefined;

  /** @param {import("../page.js").Page} page @param {import("./readings.js").Readings} readings */
  constructor(page, readings) {
    super();
    this.page = page;
    this.readings = readings;
    page.follow.on("change", () => this.#stop());
  }

  get playing() {
    return this.player.playing;
  }

  /** Plays from the shown step on, or holds there. */
  play() {
    if (this.playing) return this.hold();
    const { readings, page } = this;
    if (readings.captured < 2) return;
    const place = beginOf(readings.captured, readings.placeOf(this.step));
    page.follow.hold(readings.stepOf(place));
    this.player.start(place, performance.now());
    this.emit("step");
  }

  /** Holds the page at the shown step. */
  hold() {
    this.#stop();
    this.page.follow.hold(this.step);
    this.emit("step");
  }

  #stop() {
    if (this.playing) this.page.cursor.clear();
    this.player.stop();
  }

  /** Shows the captured step at a place, and holds. @param {number} place */
  go(place) {
    this.page.follow.hold(this.readings.stepOf(place));
  }

  /** Values have arrived. */
  renew() {
    this.#taken = undefined;
  }

  /** Finds the step to show, and its values. @param {number} now
   * @returns {boolean} whether they are others than before */
  advance(now) {
    const { player, readings, page } = this;
    const { held } = page.follow;
    const isPlaying = player.playing;
    if (isPlaying) {
      this.step = readings.stepOf(player.tick(now, speedOf(page), readings.captured));
      page.cursor.move({ step: this.step });
      if (!player.playing) queueMicrotask(() => this.hold());
    } else this.step = held ?? (readings.captured ? readings.stepOf(readings.captured - 1) : null);
    if (this.step === this.#taken) return false;
    this.#taken = this.step;
    readings.show(this.step, held !== null && !isPlaying);
    this.emit("step");
    return true;
  }
}
