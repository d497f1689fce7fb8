// @ts-check
/** The rate of progress, from positions and times. Pure. */

const MAX_MS = 10_000;
const MIN_MS = 900;

export class Rate {
  /** @type {[number, number][]} time and place, the oldest first */
  #seen = [];

  /** @param {number} place such as the newest step @param {number} now milliseconds */
  saw(place, now) {
    const last = this.#seen.at(-1);
    if (last && place < last[1]) this.#seen = [];
    this.#seen.push([now, place]);
    while (this.#seen.length > 2 && now - this.#seen[1][0] > MAX_MS) this.#seen.shift();
  }

  /** Progress per second; null until it is known, 0 once nothing comes. @param {number} now milliseconds */
  at(now) {
    const first = this.#seen[0];
    const last = this.#seen.at(-1);
    if (!first || !last || last[0] - first[0] < MIN_MS) return null;
    const pause = now - last[0];
    const perStep = (last[0] - first[0]) / Math.max(1, last[1] - first[1]);
    // A slow training sends nothing between two steps, but it is still running.
    const span = pause > 3 * perStep + MIN_MS ? now - first[0] : last[0] - first[0];
    return ((last[1] - first[1]) * 1000) / span;
  }
}
