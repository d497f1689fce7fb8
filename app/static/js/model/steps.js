/** The shown step: where the page is held, the newest one, or the next one while it plays. */
import { Emitter } from "../state.js";
/** @import { Readings } from "./readings.js"
 * @import { Page } from "../page.js" */

export const SLOWEST = 0.5; // captured steps a second
export const FASTEST = 500;

/** The speed at a place of the slider, from 0 to 1; each part of it is as many times as fast. @param {number} place */
export function speedAt(place) {
  const speed = SLOWEST * (FASTEST / SLOWEST) ** Math.min(1, Math.max(0, place));
  return Number(speed.toPrecision(speed < 10 ? 1 : 2));
}

/** @param {number} speed */
export function placeOf(speed) {
  return Math.log(Math.min(FASTEST, Math.max(SLOWEST, speed)) / SLOWEST) / Math.log(FASTEST / SLOWEST);
}

/** The speed in the address. @param {{state: {get: (name: string) => string}}} page */
export function speedOf({ state }) {
  return Math.min(FASTEST, Math.max(SLOWEST, Number(state.get("speed")) || 1));
}

/** @param {number} speed */
export function speedWords(speed) {
  return speed === 1 ? "1 step a second" : `${speed.toLocaleString("en")} steps a second`;
}

/** The place to play from: the shown one; from the last one, it begins again. @param {number} many
 * @param {number} place */
export function beginOf(many, place) {
  return place >= many - 1 ? 0 : Math.max(0, place);
}

export class Player {
  /** The place among the captured steps; between two of them while it plays. */
  position = 0;
  playing = false;
  #then = 0;

  /** @param {number} place to begin at @param {number} now in milliseconds */
  start(place, now) {
    this.position = place;
    this.playing = true;
    this.#then = now;
  }

  stop() {
    this.playing = false;
  }

  /** Goes on, and stops at the end. @param {number} now @param {number} speed @param {number} many
   * @returns {number} the place of the step to show */
  tick(now, speed, many) {
    if (this.playing) {
      this.position = Math.min(many - 1, this.position + (Math.max(0, now - this.#then) / 1000) * speed);
      this.#then = now;
      if (this.position >= many - 1) this.playing = false;
    }
    return Math.floor(this.position);
  }
}

/** Emits "step" when another step is shown, and when it begins or ends to play. */
export class Steps extends Emitter {
  player = new Player();
  /** The step that is shown. @type {number | null} */
  step = null;
  /** The one whose values were taken. @type {number | null | undefined} */
  #taken = undefined;

  /** @param {Page} page @param {Readings} readings */
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
