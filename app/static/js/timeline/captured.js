// @ts-check
/** The captured steps of the run, loaded when they are needed: where arrow keys and pointers stop. */
import { get } from "../api.js";
import { further, isIn, snapped } from "./scale.js";

const COLUMNS = 1000; // twice as many captured steps
const NEAR = 300; // captured steps on either side, if the whole run has too many
const RENEWED_MS = 1000;

/** @typedef {import("./scale.js").Rows & {all: boolean, many: number}} Known */

export class Captured {
  /** Of the whole run; every so-and-so-many one if there are too many. @type {Known | null} */
  #whole = null;
  /** All of them in some steps. @type {Known | null} */
  #near = null;
  #loadedAt = -Infinity;
  /** @type {Promise<Known | null> | null} */
  #loading = null;

  /** @param {{run: string | null, follow: {newest: number | null, first: number}}} page
   * @param {{ask?: (path: "timeline", query: Record<string, any>) => Promise<any>, now?: () => number}} [world] */
  constructor(page, { ask = get, now = () => performance.now() } = {}) {
    this.page = page;
    this.ask = ask;
    this.now = now;
  }

  /** The captured step that a pointer means: the nearest one in reach. @param {number} step @param {number} reach */
  snap(step, reach) {
    return this.#whole ? snapped(this.#whole, step, reach) : step;
  }

  /** The captured step so many captured steps further; at an end of the run, the last one.
   * @param {number} step @param {number} by @returns {Promise<number>} */
  async further(step, by) {
    const whole = await this.load();
    const { newest, first } = this.page.follow;
    const plain = Math.min(newest ?? step, Math.max(first, step + by));
    if (!whole?.first.length) return plain;
    const rows = whole.all ? whole : await this.#around(step, by, whole);
    const found = further(rows, step, by);
    if (found !== null) return found;
    const end = by > 0 ? rows.first[rows.first.length - 1] : rows.first[0];
    return by > 0 === end > step ? end : step; // nothing further was captured
  }

  /** The newest captured step up to a step: what a page shows that follows. @param {number} step */
  async upTo(step) {
    const whole = await this.load(true);
    if (!whole?.last.length) return step;
    const rows = whole.all ? whole : await this.#around(step, -1, whole);
    return isIn(rows, step) ? step : (further(rows, step, -1) ?? step);
  }

  /** Loads the captured steps of the whole run, unless they are known. @param {boolean} [exactly] or nearly known */
  load(exactly = false) {
    const newest = this.page.follow.newest ?? -1;
    const isRecent = !exactly && this.now() - this.#loadedAt <= RENEWED_MS;
    const isOld = !this.#whole || (this.#last(this.#whole) < newest && !isRecent);
    if (!isOld) return Promise.resolve(this.#whole);
    this.#loading ??= this.#fetch({ columns: COLUMNS }).then(
      (known) => {
        this.#loading = null;
        this.#loadedAt = this.now();
        this.#whole = known;
        return known;
      },
      () => {
        this.#loading = null;
        return this.#whole;
      },
    );
    return this.#loading;
  }

  /** @param {number} step @param {number} by @param {Known} whole */
  async #around(step, by, whole) {
    if (this.#near?.all && further(this.#near, step, by) !== null && step >= this.#near.first[0]) return this.#near;
    const apart = Math.max(1, (this.#last(whole) - whole.first[0]) / Math.max(1, whole.many));
    const reach = Math.ceil(apart * (NEAR + Math.abs(by)));
    const near = await this.#fetch({ from: Math.max(0, step - reach), to: step + reach, columns: COLUMNS }).catch(
      () => null,
    );
    this.#near = near?.first.length ? near : whole;
    return this.#near;
  }

  /** @param {Record<string, any>} query @returns {Promise<Known>} */
  async #fetch(query) {
    const said = await this.ask("timeline", { run: this.page.run, ...query });
    return { first: said.captured_first, last: said.captured_last, all: said.captured_all, many: said.captured };
  }

  /** @param {Known} known */
  #last(known) {
    return known.last[known.last.length - 1] ?? -1;
  }
}
