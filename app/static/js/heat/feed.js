// @ts-check
/** What a heatmap is fed with: the steps that the page shows, as they come while it follows, and those it is held at. */
import { prefs } from "../prefs.js";
import { Wish } from "../wish.js";

const MAX_COLUMNS = 2000;
const MAX_CELLS = 8e6; // of four bytes
const WIDE = 50; // steps in one column: many came at once, such as those that waited for a dead server
const AGAIN_MS = 30_000;

/** The columns that so many rows may have. @param {number} rows */
function mostColumns(rows) {
  return Math.min(MAX_COLUMNS, Math.max(100, Math.floor(MAX_CELLS / Math.max(1, rows))));
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
  #notBefore = -Infinity;

  /** @param {import("../page.js").Page} page @param {import("../heat.js").Heat} heat
   * @param {() => Record<string, any> | null} wish kind, stat, rows, match; null while there is nothing to ask for
   * @param {import("../net.js").Handlers} [also] called after the heatmap */
  constructor(page, heat, wish, also = {}) {
    const whole = () => {
      const wanted = wish();
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
    this.wish = new Wish(page, whole, {
      rows: (said) => {
        heat.setRows(said.rows, capacityOf(page.follow, said.rows.length), JSON.stringify([said.kind, said.stats]));
        also.rows?.(said);
      },
      frame: (frame) => {
        heat.take(frame);
        also.frame?.(frame);
        this.#unfold(frame);
      },
      json: (said) => also.json?.(said),
    });
    this.renew();
  }

  /** Steps that came at once share a column: asked for once more, each has its own. @param {import("../frames.js").Frame} frame */
  #unfold({ kind, first, last }) {
    if (kind !== "delta" || !first.some((step, place) => last[place] - step >= WIDE)) return;
    if (performance.now() < this.#notBefore) return;
    this.#notBefore = performance.now() + AGAIN_MS;
    this.wish.again();
  }

  /** Asks anew where the wish is another one. */
  renew() {
    this.wish.renew();
  }

  close() {
    this.wish.close();
  }
}
