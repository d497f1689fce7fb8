/** The data of a heatmap: a subscription of the newest steps, or the steps at which the page is held. */
import { prefs } from "../prefs.js";
import { LIVE_STEPS } from "../vocabulary.js";

/** @import { LiveRow } from "../answers.js"
 * @import { Follow } from "../follow.js"
 * @import { Frame, Handlers, Stream } from "./stream.js"
 * @import { Page } from "../page.js" */

const MIN_MS = 60; // between two requests: a slider moves faster

export class Subscription {
  /** @type {ReturnType<Stream["subscribe"]> | null} */
  #open = null;
  #asked = "";
  #askedAt = -Infinity;
  /** @type {ReturnType<typeof setTimeout> | null} */
  #timer = null;

  /** @param {Page} page @param {() => Record<string, any> | null} query null if there is nothing to request @param
   * {Parameters<Stream["subscribe"]>[1]} handlers */
  constructor(page, query, handlers) {
    this.page = page;
    this.query = query;
    this.handlers = handlers;
    page.follow.on("change", () => this.renew());
  }

  /** Subscribes again if the query has changed. */
  renew() {
    if (this.#timer !== null) return;
    const wait = this.#askedAt + MIN_MS - performance.now();
    if (wait <= 0) return this.#ask();
    this.#timer = setTimeout(() => {
      this.#timer = null;
      this.#ask();
    }, wait);
  }

  #ask() {
    const query = this.query();
    if (query === null) return this.close();
    const text = JSON.stringify(query);
    if (text === this.#asked) return;
    this.#asked = text;
    this.#send(query);
  }

  /** Subscribes again with the same query. */
  again() {
    const query = this.query();
    if (query !== null && this.#open !== null) this.#send(query);
  }

  /** @param {Record<string, any>} query */
  #send(query) {
    this.#askedAt = performance.now();
    if (this.#open === null) this.#open = this.page.stream.subscribe(query, this.handlers);
    else this.#open.change(query);
  }

  close() {
    this.#open?.close();
    this.#open = null;
    this.#asked = "";
  }
}

const MAX_COLUMNS = 2000;
const MAX_CELLS = 8e6; // of four bytes
const WIDE = 50; // steps in one column, when many came at once (for example after the server was away)
const AGAIN_MS = 30_000;
const GROWTH = 1.25; // of a run that is shown whole, until its columns are requested again

/** The largest number of columns for a number of rows. @param {number} rows */
function mostColumns(rows) {
  return Math.min(MAX_COLUMNS, Math.max(100, Math.floor(MAX_CELLS / Math.max(1, rows))));
}

/** The part of a subscription that chooses the steps. Pure. @param {Follow} follow @param {number} [rows] as far as
 * they are known @returns {{from: number, to?: number, columns: number}} */
export function windowOf(follow, rows = 0) {
  const { span, window } = follow;
  if (!follow.paused || span === null) {
    const live = "live" in window ? window.live : LIVE_STEPS;
    if (live === Infinity) return { from: follow.first, columns: mostColumns(rows) };
    return { from: -live, columns: Math.min(mostColumns(rows), live) };
  }
  return { from: span[0], to: span[1], columns: Math.min(mostColumns(rows), span[1] - span[0] + 1) };
}

/** The number of columns that a window needs, and the number of steps in each. Pure.
 * @param {Follow} follow @param {number} [rows] @returns {[number, number]} */
export function capacityOf(follow, rows = 0) {
  const { span, window } = follow;
  const shown = span ? span[1] - span[0] + 1 : LIVE_STEPS;
  const steps = !("live" in window) ? shown : window.live === Infinity ? Math.ceil(shown * GROWTH) : window.live;
  const width = Math.ceil(steps / mostColumns(rows));
  return [Math.ceil(steps / width) + 1, width];
}

/**
 * What takes the columns, such as a heatmap.
 * @typedef {object} Taker
 * @property {ArrayLike<unknown>} rows
 * @property {{capacity: number, width: number} | null} [columns]
 * @property {(rows: readonly LiveRow[], capacity: [number, number],
 *   quantity: string) => void} setRows
 * @property {(frame: Frame) => void} take
 */

/** Subscribes for a heatmap, again whenever the steps or the query change. */
export class Feed {
  #notBefore = -Infinity;

  /** @param {Page} page @param {Taker} heat @param {() => Record<string, any> | null} query kind, stat, rows, match;
   * null while there is nothing to ask for @param {Handlers} [also] called after the heatmap */
  constructor(page, heat, query, also = {}) {
    const whole = () => {
      const wanted = query();
      return (
        wanted && {
          view: "heatmap",
          hz: Number(prefs.get("rate")),
          rows: "fit:600",
          ...windowOf(page.follow, heat.rows.length),
          ...wanted,
        }
      );
    };
    this.subscription = new Subscription(page, whole, {
      rows: (message) => {
        heat.setRows(
          message.rows,
          capacityOf(page.follow, message.rows.length),
          JSON.stringify([message.kind, message.stats]),
        );
        also.rows?.(message);
      },
      frame: (frame) => {
        heat.take(frame);
        also.frame?.(frame);
        this.#unfold(frame);
      },
      json: (message) => also.json?.(message),
    });
    page.follow.on("newest", () => {
      const { span, window, paused } = page.follow;
      if (paused) return; // its steps stay
      const [many, width] = [heat.columns?.capacity ?? 0, heat.columns?.width ?? 1];
      if ("live" in window && window.live === Infinity && span && many && span[1] - span[0] >= many * width)
        this.subscription.again();
    });
    this.renew();
  }

  /** Steps that came at once share a column; requested again, each gets its own. @param {Frame} frame */
  #unfold({ kind, first, last }) {
    if (kind !== "delta" || !first.some((step, place) => last[place] - step >= WIDE)) return;
    if (performance.now() < this.#notBefore) return;
    this.#notBefore = performance.now() + AGAIN_MS;
    this.subscription.again();
  }

  /** Subscribes again if the query has changed. */
  renew() {
    this.subscription.renew();
  }

  close() {
    this.subscription.close();
  }
}
