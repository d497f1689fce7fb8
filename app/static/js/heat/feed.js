// @ts-check
/** What a heatmap is fed with: the steps that the page shows, as they come while it follows, and those it is held at. */
import { prefs } from "../prefs.js";

const MOST_COLUMNS = 2000;
const MOST_CELLS = 8e6; // of four bytes
const LEAST_MS = 60; // between two questions: a scrubber moves faster than answers come

/** The columns that so many rows may have. @param {number} rows */
function mostColumns(rows) {
  return Math.min(MOST_COLUMNS, Math.max(100, Math.floor(MOST_CELLS / Math.max(1, rows))));
}

/** The part of a wish that says which steps. Pure. @param {import("../follow.js").Follow} follow @param {number} [rows] as far as they are known
 * @returns {{from: number, to?: number, columns: number}} */
export function windowOf(follow, rows = 0) {
  const { span, window } = follow;
  if (!follow.paused || span === null) {
    const live = "live" in window ? window.live : 500;
    return { from: -live, columns: Math.min(mostColumns(rows), live) };
  }
  return { from: span[0], to: span[1], columns: Math.min(mostColumns(rows), span[1] - span[0] + 1) };
}

/** How many columns a window needs, and how many steps share one. Pure. @param {import("../follow.js").Follow} follow @param {number} [rows] @returns {[number, number]} */
export function capacityOf(follow, rows = 0) {
  const { span, window } = follow;
  const steps = "live" in window ? window.live : span ? span[1] - span[0] + 1 : 500;
  const width = Math.ceil(steps / mostColumns(rows));
  return [Math.ceil(steps / width) + 1, width];
}

/** Subscribes for a heatmap, anew whenever the steps or the wish are others. */
export class Feed {
  /** @type {ReturnType<import("../net.js").Stream["subscribe"]> | null} */
  #open = null;
  #asked = "";
  #askedAt = -Infinity;
  /** @type {any} */
  #timer = null;

  /** @param {import("../page.js").Page} page @param {import("../heat.js").Heat} heat
   * @param {() => Record<string, any> | null} wish kind, stat, rows, match; null while there is nothing to ask for
   * @param {{rows?: (said: any) => void, frame?: (frame: import("../frames.js").Frame) => void, json?: (said: any) => void}} [also] told after the heatmap was */
  constructor(page, heat, wish, also = {}) {
    this.page = page;
    this.heat = heat;
    this.wish = wish;
    this.handlers = {
      rows: (/** @type {any} */ said) => {
        heat.setRows(said.rows, capacityOf(page.follow, said.rows.length), JSON.stringify([said.kind, said.stats]));
        also.rows?.(said);
      },
      frame: (/** @type {import("../frames.js").Frame} */ frame) => {
        heat.take(frame);
        also.frame?.(frame);
      },
      json: (/** @type {any} */ said) => also.json?.(said),
    };
    page.follow.on("change", () => this.renew());
    this.renew();
  }

  /** Asks anew where the wish is another one. */
  renew() {
    if (this.#timer !== null) return;
    const wait = this.#askedAt + LEAST_MS - performance.now();
    if (wait <= 0) return this.#ask();
    this.#timer = setTimeout(() => {
      this.#timer = null;
      this.#ask();
    }, wait);
  }

  #ask() {
    const wish = this.wish();
    if (wish === null) return this.close();
    const whole = { view: "heatmap", hz: Number(prefs.get("rate")), rows: "fit:600", ...windowOf(this.page.follow, this.heat.rows.length), ...wish };
    const asked = JSON.stringify(whole);
    if (asked === this.#asked) return;
    this.#asked = asked;
    this.#askedAt = performance.now();
    if (this.#open === null) this.#open = this.page.stream.subscribe(whole, this.handlers);
    else this.#open.change(whole);
  }

  close() {
    this.#open?.close();
    this.#open = null;
    this.#asked = "";
  }
}
