// @ts-check
/** One stat of every layer at the step that is looked at: the newest ones as they come, or those of the step that is
 * held. */

import { MISSING } from "../canvas/worst.js";
import { Subscription } from "../live/subscription.js";
import { prefs } from "../prefs.js";

export class Values {
  /** @type {readonly import("../heat/rows.js").Row[]} */
  rows = [];
  /** Why there are no rows. */
  why = "";
  bits = new Uint32Array(0);
  /** The step that the values are of. @type {number | null} */
  step = null;
  /** Whether an answer came. */
  known = false;

  /** @param {import("../page.js").Page} page @param {string} kind @param {() => string} stat
   * @param {() => void} changed */
  constructor(page, kind, stat, changed) {
    this.page = page;
    this.kind = kind;
    this.stat = stat;
    this.subscription = new Subscription(page, () => this.#query(), {
      rows: ({ rows, why = "" }) => {
        this.rows = rows;
        this.why = why;
        this.known = true;
      },
      frame: (frame) => {
        this.#take(frame);
        changed();
      },
    });
    this.renew();
  }

  /** Requests another step or stat, if it has changed. */
  renew() {
    this.subscription.renew();
  }

  #query() {
    const { follow } = this.page;
    const asked = { view: "latest", kind: this.kind, stats: [this.stat()], hz: Number(prefs.get("rate")) };
    return { ...asked, ...follow.values };
  }

  /** What was not seen since stays as it was. @param {import("../live/frames.js").Frame} frame */
  #take(frame) {
    if (frame.bits === null) return;
    if (frame.kind === "snapshot" || this.bits.length !== frame.n) this.bits = frame.bits.slice(0, frame.n);
    else for (let row = 0; row < frame.n; row += 1) if (frame.bits[row] !== MISSING) this.bits[row] = frame.bits[row];
    if (frame.k) this.step = frame.last[0];
  }
}
