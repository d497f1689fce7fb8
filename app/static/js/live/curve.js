/** Curves over steps: loaded whole at first, then only new points while the page follows. */
import { numberOf } from "../api.js";
import { Emitter } from "../state.js";
import { Refresh } from "./refresh.js";

/** @import { Series } from "../answers.js"
 * @import { Page } from "../page.js"
 * @import { Line } from "../plot/thin.js" */

/** Keys of a series, as docs/http-api.md names them. */
const VALUES = /** @type {const} */ (["mean", "min", "max"]);

export class Curve {
  /** @type {{first: number[], last: number[], mean: number[], min: number[], max: number[], nonfinite: number[]}} */
  #points = empty();

  /** @param {Series} series @param {boolean} whole whether it replaces everything */
  take(series, whole) {
    if (whole) this.#points = empty();
    const points = this.#points;
    const begin = series.first_step[0];
    if (begin === undefined) return;
    // Drop the repeated steps and everything after them.
    let keep = points.last.length;
    while (keep > 0 && points.last[keep - 1] >= begin) keep -= 1;
    for (const column of Object.values(points)) column.length = keep;
    points.first.push(...series.first_step);
    points.last.push(...series.last_step);
    for (const name of VALUES) points[name].push(...series[name].map(numberOf));
    // Quantiles have no counts: there, the value itself says whether it is finite.
    points.nonfinite.push(
      ...(series.nonfinite ?? series.mean.map((value) => Number(!Number.isFinite(numberOf(value))))),
    );
  }

  /** Drops points before a step. @param {number} step */
  forget(step) {
    let gone = 0;
    while (gone < this.#points.last.length && this.#points.last[gone] < step) gone += 1;
    if (gone) for (const column of Object.values(this.#points)) column.splice(0, gone);
  }

  get length() {
    return this.#points.first.length;
  }

  /** The newest value, if it is of a single step. */
  get newest() {
    const { first, last, mean } = this.#points;
    return first.at(-1) === last.at(-1) ? (mean.at(-1) ?? null) : null;
  }

  /** The curve, with the band of its extremes if several steps share a point. @param {string} name @returns {Line} */
  line(name) {
    const { min, max, ...points } = this.#points;
    const isMerged = points.first.some((first, place) => first !== points.last[place]);
    return { name, ...points, ...(isMerged ? { min, max } : {}) };
  }
}

/** The line of one of several series; null if it isn't among them. @param {readonly Series[]} many @param {string}
 * name @param {number | null} [tap] @returns {Line | null} */
export function lineIn(many, name, tap = null) {
  const series = many.find((series) => series.name === name && (series.tap?.number ?? null) === tap);
  return series ? lineOf(series) : null;
}

/** @param {Series} series */
export function lineOf(series) {
  const curve = new Curve();
  curve.take(series, true);
  return curve.line(series.name);
}

function empty() {
  return {
    first: /** @type {number[]} */ ([]),
    last: /** @type {number[]} */ ([]),
    mean: /** @type {number[]} */ ([]),
    min: /** @type {number[]} */ ([]),
    max: /** @type {number[]} */ ([]),
    nonfinite: /** @type {number[]} */ ([]),
  };
}

export const POINTS = 1000;
const MAX_GROWTH = 3; // times as many, until a curve is loaded whole again

/** @typedef {{from: number, to: number | null, points: number}} Range */

/** Emits "data" when the curves have changed, "error" with the server's error. */
export class CurveFeed extends Emitter {
  /** @type {Map<string, Curve>} */
  curves = new Map();
  /** The loaded steps; null if everything must be loaded. @type {[number, number] | null} */
  loaded = null;

  /** @param {Page} page @param {(range: Range, signal: AbortSignal) => Promise<{series: Series[]}>[]} request the shown
   * curves, for some steps @param {(series: Series) => string} keyOf @param {{min: number, share?: number}} pause as in
   * Refresh */
  constructor(page, request, keyOf, pause) {
    super();
    this.page = page;
    this.request = request;
    this.keyOf = keyOf;
    const ready = () => this.loaded === null || !page.follow.paused;
    const failed = (/** @type {unknown} */ error) => this.emit("error", error);
    this.refresh = new Refresh((signal) => this.#ask(signal), { ...pause, ready, failed });
  }

  /** How many points a curve has that is loaded whole, and how many steps before the shown ones it begins. */
  get extent() {
    return { points: POINTS, lead: 0 };
  }

  /** Loads everything again. */
  load() {
    this.loaded = null;
    void this.refresh.now();
  }

  /** @param {AbortSignal} signal */
  async #ask(signal) {
    const { span, paused } = this.page.follow;
    if (!span) return this.emit("data");
    const { points, lead } = this.extent;
    const whole = this.loaded === null;
    const first = Math.max(0, span[0] - lead);
    const range = whole
      ? { from: first, to: paused ? span[1] : null, points }
      : { from: this.#lastStep, to: null, points: POINTS };
    const answers = await Promise.all(this.request(range, signal));
    signal.throwIfAborted();
    if (whole) this.curves.clear();
    for (const series of answers.flatMap((answer) => answer.series)) {
      this.take(series, whole);
      const newest = series.last_step.at(-1);
      if (newest !== undefined) this.page.follow.saw(newest);
    }
    if (!whole) for (const curve of this.curves.values()) curve.forget(first);
    this.loaded = [Math.max(this.loaded?.[0] ?? first, first), span[1]];
    // A whole run that is followed grows without end: it is loaded again, in fewer points.
    if (!whole && [...this.curves.values()].some(({ length }) => length > MAX_GROWTH * points)) this.loaded = null;
    this.emit("data");
  }

  /** The first step that all curves may lack; their last point may be incomplete. */
  get #lastStep() {
    const firsts = [...this.curves.values()].map((curve) => curve.line("").first);
    const last = Math.min(...firsts.map((first) => first[first.length - 1] ?? Infinity));
    return Number.isFinite(last) ? last : (this.loaded?.[0] ?? 0);
  }

  /** @param {Series} series @param {boolean} whole */
  take(series, whole) {
    const key = this.keyOf(series);
    const curve = this.curves.get(key) ?? new Curve();
    this.curves.set(key, curve);
    curve.take(series, whole);
  }
}
