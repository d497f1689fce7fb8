// @ts-check
/** Follows a tensor: asks for a snapshot of it every so many steps, as long as the page is open. Nothing of it is on
 * the server, so it ends with the page. One request at a time, none while the page is hidden, and no more than
 * MAX_TAKEN of them. */
import { Emitter } from "../emitter.js";

export const MAX_TAKEN = 200;
export const PATIENCE_MS = 30_000; // for a module that doesn't run

/** @typedef {{module: string, kind: string, index: string, call: number, phase: string}} Tap */

/**
 * What it needs of the page.
 * @typedef {object} Around
 * @property {(tap: Tap) => Promise<number>} ask for a snapshot; returns its number
 * @property {(number: number) => Promise<number | null>} look for it; returns its step, or null if it isn't there yet
 * @property {(number: number) => void} show
 * @property {(tap: Tap) => Promise<string>} why none came
 * @property {(ms: number) => Promise<void>} news resolves when the run has some, or after a while
 * @property {() => number} [now]
 */

/** Emits "change" when it begins, ends, or has taken a snapshot. */
export class Following extends Emitter {
  /** @type {Tap | null} */
  tap = null;
  /** How many snapshots it has taken. */
  taken = 0;
  /** Why it ended, if it wasn't by hand. */
  why = "";
  every = 10;
  /** The step of the last one. */
  #last = -Infinity;
  #newest = -Infinity;
  #isBusy = false;

  /** @param {Around} around */
  constructor({ now = () => performance.now(), ...around }) {
    super();
    this.around = around;
    this.now = now;
  }

  /** @param {Tap} tap @param {number} every steps @param {number} newest step of the run */
  start(tap, every, newest) {
    Object.assign(this, { tap, every, taken: 0, why: "" });
    this.#last = -Infinity;
    this.emit("change");
    return this.step(newest);
  }

  /** @param {string} [why] */
  stop(why = "") {
    if (this.tap === null) return;
    this.tap = null;
    this.why = why;
    this.emit("change");
  }

  /** The run has a newer step. @param {number} newest */
  async step(newest) {
    this.#newest = newest;
    const { tap } = this;
    if (tap === null || this.#isBusy || newest < this.#last + this.every || globalThis.document?.hidden) return;
    this.#isBusy = true;
    try {
      await this.#take(tap);
    } catch (error) {
      if (this.tap === tap) this.stop(/** @type {Error} */ (error).message);
    } finally {
      this.#isBusy = false;
    }
    if (this.tap !== null) await this.step(this.#newest); // steps that came meanwhile
  }

  /** @param {Tap} tap */
  async #take(tap) {
    const { around } = this;
    const number = await around.ask(tap);
    const until = this.now() + PATIENCE_MS;
    while (this.tap === tap) {
      const news = around.news(Math.max(0, until - this.now()));
      const step = await around.look(number);
      if (this.tap !== tap) return;
      if (step !== null) return this.#took(number, step);
      if (this.now() >= until) {
        const why = await around.why(tap);
        if (this.tap === tap) this.stop(why); // else another one is followed by now
        return;
      }
      await news;
    }
  }

  /** @param {number} number @param {number} step */
  #took(number, step) {
    this.#last = step;
    this.taken += 1;
    this.around.show(number);
    if (this.taken >= MAX_TAKEN) this.stop(`Ended after ${MAX_TAKEN} snapshots.`);
    else this.emit("change");
  }
}
