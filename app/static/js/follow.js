/** The shown steps of all charts of a page, a range and the step of the values, and the cursor that they share. The
 * steps are in the address, which app/pages/views/span.py reads in the same way. */
import { Emitter } from "./state.js";
import { LIVE_STEPS } from "./vocabulary.js";
/** @import { State } from "./state.js" */

/** @typedef {{module?: string | null, tap?: number | null, step?: number | null}} Point */

export class Cursor extends Emitter {
  /** @type {Point} */
  point = {};

  /** Moves the cursor; `source` is the chart that moved it and need not redraw.
   * @param {Point} point @param {object} [source] */
  move(point, source) {
    const next = { ...this.point, ...point };
    if (next.module === this.point.module && next.step === this.point.step && next.tap === this.point.tap) return;
    this.point = next;
    this.emit("move", { ...next, source });
  }

  /** Clears the cursor. */
  clear() {
    this.move({ module: null, tap: null, step: null });
  }

  /** Pins the cursor at a click. @param {Point} point */
  pin(point) {
    this.move(point);
    this.emit("pin", { ...this.point });
  }
}

/** @typedef {{live: number} | {from: number, to: number}} Steps `live` newest steps (Infinity: all), or a range */

/** `all`, `live:500` or `1000-1500`.
 * @param {string} text @param {string} [usual] holds if the text is none of these @returns {Steps} */
export function readSteps(text, usual = `live:${LIVE_STEPS}`) {
  if (text === "all") return { live: Infinity };
  const live = /^live:(\d{1,9})$/.exec(text);
  if (live) return { live: Math.max(2, Number(live[1])) };
  const range = /^(\d{1,15})-(\d{1,15})$/.exec(text);
  if (range && Number(range[1]) <= Number(range[2])) return { from: Number(range[1]), to: Number(range[2]) };
  return usual === text ? { live: LIVE_STEPS } : readSteps(usual, usual);
}

/** The range, moved as far as needed to contain a step. @param {[number, number]} range @param {number | null} step
 * @returns {[number, number]} */
export function around([from, to], step) {
  const by = step === null ? 0 : Math.min(0, step - from) + Math.max(0, step - to);
  return [from + by, to + by];
}

/** Reads and writes `steps` and `step` of the state. Emits "change" when the shown steps are chosen differently
 * (paused, another range, another step), and "newest" when a newer step is known. */
export class Follow extends Emitter {
  /** @param {State} state @param {number | null} newest @param {number} [first] step of the run */
  constructor(state, newest, first = 0) {
    super();
    this.state = state;
    /** The first step of the run. */
    this.first = first;
    /** The newest step that the server has sent. */
    this.newest = newest;
    /** Steps that arrived while the page was held. */
    this.waiting = 0;
    /** The newest step when it was held; of a page that was opened held, when it was opened. @type {number | null} */
    this.heldAt = state.get("step") === "" ? null : newest;
    let told = this.#asked;
    state.on("change", () => {
      if (told === this.#asked) return;
      told = this.#asked;
      this.emit("change");
    });
  }

  /** One change of both is one event. */
  get #asked() {
    return `${this.state.get("steps")} ${this.state.get("step")}`;
  }

  /** Whether the page is about certain steps, such as those around an incident: it is neither live nor held. */
  get fixed() {
    return this.state.defaults.step !== "";
  }

  /** Whether the page is held: new steps are counted, not shown. */
  get paused() {
    if (this.fixed) return false;
    return this.held !== null || this.range !== null;
  }

  /** The steps that were asked for. */
  get window() {
    return readSteps(this.state.get("steps"), this.state.defaults.steps);
  }

  /** The step that the page is held at: no value is of another one. @returns {number | null} */
  get held() {
    const text = this.state.get("step");
    if (!/^\d{1,15}$/.test(text)) return null;
    return this.newest === null ? Number(text) : Math.min(Number(text), this.newest);
  }

  /** The range that the reader chose. @returns {[number, number] | null} */
  get range() {
    const window = this.window;
    if (!("from" in window)) return null;
    const [from, to] = around([window.from, window.to], this.held);
    const last = this.newest === null ? to : Math.min(to, this.newest);
    return [Math.min(from, last), last];
  }

  /** The step to look at: the held one, the end of the chosen range, or the newest one. */
  get step() {
    return this.held ?? this.range?.[1] ?? this.newest;
  }

  /** First and last step on the axis; null as long as there is none. @returns {[number, number] | null} */
  get span() {
    const window = this.window;
    if ("from" in window) return this.range;
    const { held, newest } = this;
    const last = held === null ? newest : Math.min(Math.max(held, this.heldAt ?? 0), held + window.live - 1);
    return last === null ? null : [Math.max(this.first, last - window.live + 1), last];
  }

  /** The steps on the axis, as a query. @returns {{from?: number, to?: number}} */
  get shown() {
    const { span } = this;
    return span === null ? {} : { from: span[0], to: span[1] };
  }

  /** The steps whose newest values are shown, as a query: one step, those of the range, or any.
   * @returns {{from?: number, to?: number}} */
  get values() {
    const { held, range } = this;
    if (held !== null) return { from: held, to: held };
    return range === null ? {} : { from: range[0], to: range[1] };
  }

  /** @param {number} step */
  saw(step) {
    if (this.newest !== null && step <= this.newest) return;
    if (this.paused && this.newest !== null) this.waiting += step - this.newest;
    this.newest = step;
    this.emit("newest", step);
  }

  /** Holds the page at a step (the current one if none is given). @param {number | null} [step] */
  hold(step = this.step) {
    if (step === null) return;
    const at = Math.max(0, Math.min(Math.round(step), this.newest ?? step));
    if (this.held === null) this.heldAt = this.newest ?? at;
    const { range } = this;
    this.state.set({ step: String(at), ...(range ? { steps: around(range, at).join("-") } : {}) });
  }

  /** Shows these steps. A held step that is outside of them is let go. @param {number} from @param {number} to */
  zoom(from, to) {
    const [first, last] = [Math.round(Math.max(0, from)), Math.round(to)];
    const { held } = this;
    const out = held !== null && (held < first || held > last);
    const all = first <= this.first && last >= (this.newest ?? last);
    this.state.set({ steps: all ? "all" : `${first}-${last}`, ...(out ? { step: "" } : {}) });
  }

  /** Lets the held step go; the range stays. */
  release() {
    this.#forget();
    this.state.set({ step: "" });
  }

  /** Shows the usual steps: all of a finished run, or the newest ones. The held step stays. */
  whole() {
    if (this.held === null) this.#forget();
    this.state.set({ steps: this.state.defaults.steps });
  }

  /** Goes back to the newest steps. */
  live() {
    this.#forget();
    this.state.set({ step: "", ...(this.range ? { steps: this.state.defaults.steps } : {}) });
  }

  #forget() {
    this.waiting = 0;
    this.heldAt = null;
  }
}
