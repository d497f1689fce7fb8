// @ts-check
/** The values of one kind and stat over the steps that the page shows, as the server sends them. */
import { Columns } from "../canvas/columns.js";
import { Feed } from "../heat/feed.js";
import { MAX_LIVE_ROWS } from "../limits.js";
import { LIVE_STEPS } from "../vocabulary.js";

/** @typedef {import("../answers.js").LiveRow} Row */

export class Source {
  /** @type {readonly Row[]} */
  rows = [];
  /** @type {Columns | null} */
  columns = null;
  #quantity = "";

  /** @param {import("../page.js").Page} page @param {() => Record<string, any> | null} query kind and stat
   * @param {{rows: () => void, frame: () => void}} told
   * @param {[number, number]} [capacity] columns, and steps that share one; otherwise as many as the page shows */
  constructor(page, query, told, capacity) {
    this.capacity = capacity;
    const whole = () => {
      const wanted = query();
      return wanted && { rows: `fit:${MAX_LIVE_ROWS}`, ...wanted };
    };
    this.feed = new Feed(page, this, whole, told);
  }

  /** As a heatmap takes them. @param {readonly Row[]} rows @param {[number, number]} [capacity]
   * @param {string} [quantity] */
  setRows(rows, capacity = [LIVE_STEPS + 1, 1], quantity = "") {
    const [many, width] = this.capacity ?? capacity;
    const { columns } = this;
    // A server that was started again says "none" until the trainer has sent their names.
    if (!rows.length && this.rows.length && quantity === this.#quantity) return;
    const same = quantity === this.#quantity && rows.length === this.rows.length && columns?.capacity === many;
    this.rows = rows;
    if (same && columns?.width === width) return;
    this.#quantity = quantity;
    this.columns = new Columns(rows.length, many, width);
  }

  /** @param {import("../canvas/columns.js").Taken} frame */
  take(frame) {
    this.columns?.take(frame);
  }

  /** The column of a step, and the steps that it is about; null if the step wasn't captured.
   * @param {number} step @returns {{bits: Uint32Array, first: number, last: number} | null} */
  at(step) {
    const { columns } = this;
    const place = columns?.find(step) ?? -1;
    if (!columns || place < 0 || columns.last(place) < step) return null;
    return { bits: columns.bits(place), first: columns.first(place), last: columns.last(place) };
  }

  /** Asks again if the question is another. */
  renew() {
    this.feed.renew();
  }
}
