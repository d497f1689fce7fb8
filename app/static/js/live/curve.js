// @ts-check
/** A series over steps, as the stream sends it: later points are added, repeated ones are replaced. Pure. */
import { numberOf } from "../api.js";

/** @typedef {import("../plot/thin.js").Line} Line */

/** Keys of a series, as docs/http-api.md names them. */
const VALUES = /** @type {const} */ (["mean", "min", "max"]);

export class Curve {
  /** @type {{first: number[], last: number[], mean: number[], min: number[], max: number[], nonfinite: number[]}} */
  #points = empty();

  /** @param {import("../answers.js").Series} series @param {boolean} whole whether it replaces everything */
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

  /** @param {string} name @returns {Line} */
  line(name) {
    return { name, ...this.#points };
  }
}

/** The line of one of several series; null if it isn't among them.
 * @param {readonly import("../answers.js").Series[]} found @param {string} name @param {number | null} [tap]
 * @returns {Line | null} */
export function lineIn(found, name, tap = null) {
  const series = found.find((each) => each.name === name && (each.tap?.number ?? null) === tap);
  return series ? lineOf(series) : null;
}

/** @param {import("../answers.js").Series} series */
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
