// @ts-check
/** Plays the captured steps that the page shows, at any speed. Pure: the caller passes the time. */

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
