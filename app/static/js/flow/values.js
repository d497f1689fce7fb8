// @ts-check
/** One stat of every layer at the step that is looked at: the newest ones as they come, or those of the step that is held. */
import { prefs } from "../prefs.js";
import { MISSING } from "../worst.js";

const LEAST_MS = 60; // between two questions: a scrubber moves faster than answers come

export class Values {
  /** @type {readonly import("../heat/rows.js").Row[]} */
  rows = [];
  bits = new Uint32Array(0);
  /** The step that the values are of. @type {number | null} */
  step = null;
  /** Whether an answer came. */
  known = false;
  /** @type {ReturnType<import("../net.js").Stream["subscribe"]> | null} */
  #open = null;
  #asked = "";
  #askedAt = -Infinity;
  /** @type {any} */
  #timer = null;

  /** @param {import("../page.js").Page} page @param {string} kind @param {() => string} stat @param {() => void} changed */
  constructor(page, kind, stat, changed) {
    this.page = page;
    this.kind = kind;
    this.stat = stat;
    this.handlers = {
      rows: (/** @type {any} */ said) => {
        this.rows = said.rows;
        this.known = true;
      },
      frame: (/** @type {import("../frames.js").Frame} */ frame) => {
        this.#take(frame);
        changed();
      },
    };
    page.follow.on("change", () => this.renew());
    this.renew();
  }

  /** Asks for another step or stat, where it is another one. */
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
    const { follow } = this.page;
    const held = follow.paused && follow.step !== null ? { to: follow.step } : {};
    const wish = { view: "latest", kind: this.kind, stats: [this.stat()], hz: Number(prefs.get("rate")), ...held };
    const asked = JSON.stringify(wish);
    if (asked === this.#asked) return;
    this.#asked = asked;
    this.#askedAt = performance.now();
    if (this.#open === null) this.#open = this.page.stream.subscribe(wish, this.handlers);
    else this.#open.change(wish);
  }

  /** What was not seen since stays as it was. @param {import("../frames.js").Frame} frame */
  #take(frame) {
    if (frame.bits === null) return;
    if (frame.kind === "snapshot" || this.bits.length !== frame.n) this.bits = frame.bits.slice(0, frame.n);
    else for (let row = 0; row < frame.n; row += 1) if (frame.bits[row] !== MISSING) this.bits[row] = frame.bits[row];
    if (frame.k) this.step = frame.last[0];
  }
}
