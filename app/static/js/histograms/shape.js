/** Histograms over steps as the page has them, their axis, and what lies at a place in words. Pure. */
import { count, number, percent, stepWords } from "../format.js";
import { countOf, Scale } from "../scale.js";
/** @import { Histograms, Tap } from "../answers.js"
 * @import { Along } from "../along.js"
 * @import { Stops } from "../canvas/columns.js" */

/**
 * @typedef {object} Shape
 * @property {Tap} tap
 * @property {number} columns
 * @property {number} bins
 * @property {Float64Array} first steps of the columns
 * @property {Float64Array} last
 * @property {Float64Array} edges bins + 1 of them
 * @property {Float64Array} counts column by column
 * @property {Float64Array} totals of a column: all values, the non-finite ones too
 * @property {Float64Array} nan
 * @property {Float64Array} negative infinities
 * @property {Float64Array} positive infinities
 */

/** @param {Histograms} answer @returns {Shape} */
export function shapeOf(answer) {
  const [columns, bins] = [answer.first_step.length, Math.max(0, answer.edges.length - 1)];
  const counts = new Float64Array(columns * bins);
  for (let column = 0; column < columns; column += 1) counts.set(answer.counts[column], column * bins);
  const [nan, negative, positive] = [answer.nan, answer.negative_infinity, answer.positive_infinity].map((counted) =>
    Float64Array.from(counted),
  );
  const totals = nan.map((held, column) => {
    let sum = held + negative[column] + positive[column];
    for (let bin = column * bins; bin < (column + 1) * bins; bin += 1) sum += counts[bin];
    return sum;
  });
  const [first, last, edges] = [answer.first_step, answer.last_step, answer.edges].map((numbers) =>
    Float64Array.from(numbers, Number),
  );
  return { tap: answer.tap, columns, bins, first, last, edges, counts, totals, nan, negative, positive };
}

/** The value in the middle of a bin; of the one around zero it is zero. @param {Shape} shape @param {number} bin */
export function middleOf(shape, bin) {
  const [low, high] = [shape.edges[bin], shape.edges[bin + 1]];
  return low < 0 && high > 0 ? 0 : (low + high) / 2;
}

/** Where a column is in a picture that is so many pixels wide: its first pixel, and the one after its last.
 * @param {{first: Float64Array, last: Float64Array}} shape @param {number} column @param {number} width
 * @param {Along} along where steps stand */
export function pixelsOf({ first, last }, column, width, along) {
  const [left, right] = [along.share(first[column] - 0.5), along.share(last[column] + 0.5)];
  const begin = Math.max(0, Math.floor(left * width + 1e-9));
  return [begin, Math.min(width, Math.max(begin + 1, Math.floor(right * width + 1e-9)))];
}

/** The columns of a picture. @param {{first: Float64Array, last: Float64Array, columns: number}} shape
 * @returns {Stops} */
export function stopsOf({ first, last, columns }) {
  return { find: (step) => countOf(columns, (column) => first[column] <= step) - 1, last: (column) => last[column] };
}

/** What takes the place of an empty picture: other values may have been captured in these steps. */
export const NO_HISTOGRAM =
  "No histogram was counted in these steps. A training may count them in fewer steps than it captures (its setting " +
  "sketches).";

/** The column that contains a step; -1 if no histogram was counted in it.
 * @param {{first: Float64Array, last: Float64Array, columns: number}} shape @param {number} step */
export function columnAt(shape, step) {
  const column = stopsOf(shape).find(step);
  return column >= 0 && step <= shape.last[column] ? column : -1;
}

const SMALL = 0.005; // of the nonzero values: the share that may lie in the band around zero
const MAX_DECADES = 12;

/** What a picture of these histograms must hold: the largest magnitudes of each sign, and below which one all is about
 * zero. @param {Shape[]} shapes @returns {{small: number, negative: number, positive: number}} */
export function extentOf(shapes) {
  /** @type {[number, number][]} */
  const masses = [];
  let [negative, positive, all] = [0, 0, 0];
  for (const shape of shapes) {
    for (let bin = 0; bin < shape.bins; bin += 1) {
      let mass = 0;
      for (let at = bin; at < shape.counts.length; at += shape.bins) mass += shape.counts[at];
      const [low, high] = [shape.edges[bin], shape.edges[bin + 1]];
      if (!mass || (low <= 0 && high >= 0)) continue; // zeros
      if (low < 0) negative = Math.max(negative, -low);
      if (high > 0) positive = Math.max(positive, high);
      masses.push([Math.min(Math.abs(low), Math.abs(high)), mass]);
      all += mass;
    }
  }
  const most = Math.max(negative, positive);
  if (!most) return { small: 0.1, negative: 1, positive: 1 };
  masses.sort((a, b) => a[0] - b[0]);
  let [small, below] = [0, 0];
  for (const [magnitude, mass] of masses) {
    if (below > SMALL * all) break;
    small = magnitude;
    below += mass;
  }
  small = Math.min(Math.max(small, most / 10 ** MAX_DECADES), most / 10);
  // Round numbers keep the axis still while the values change a little.
  return { small: roundDown(small), negative: roundUp(negative), positive: roundUp(positive) };
}

/** @param {number} value */
function roundDown(value) {
  const power = 10 ** Math.floor(Math.log10(value) + 1e-9);
  return Number((([5, 2, 1].find((times) => times * power <= value * 1.001) ?? 1) * power).toPrecision(1));
}

/** @param {number} value */
function roundUp(value) {
  if (!value) return 0;
  const power = 10 ** Math.floor(Math.log10(value));
  return ([1, 2, 5, 10].find((times) => times * power >= value * 0.999) ?? 10) * power;
}

/** The axis of histograms: logarithmic on both sides of the values about zero. @param {Shape[]} shapes */
export function axisOf(shapes) {
  const { small, negative, positive } = extentOf(shapes);
  return new Scale("symlog", -negative, positive, small);
}

/** The steps to ask for: of a held page that shows bars its step alone, so that no other one is in its sum.
 * @param {{held: number | null, span: [number, number] | null}} follow @param {number} columns */
export function barsOf({ held, span }, columns) {
  return held === null ? { from: span?.[0], to: span?.[1], columns } : { from: held, to: held, columns: 1 };
}

/** The bin of a value; -1 beyond all bins. @param {Shape} shape @param {number} value */
export function binAt(shape, value) {
  for (let bin = 0; bin < shape.bins; bin += 1)
    if (value >= shape.edges[bin] && value < shape.edges[bin + 1]) return bin;
  return -1;
}

/** @param {{first: Float64Array, last: Float64Array}} shape @param {number} column */
export function stepsOf({ first, last }, column) {
  return stepWords(first[column], last[column]);
}

/** @param {Shape} shape @param {Scale} axis @param {{step: number, value: number}} at @returns {string} lines */
export function say(shape, axis, { step, value }) {
  const column = columnAt(shape, step);
  if (column < 0) return `step ${count(step)}\nno histogram`;
  const total = shape.totals[column];
  const lines = [stepsOf(shape, column), lineOf(shape, column, axis, value, total)];
  for (const [words, held] of /** @type {[string, number][]} */ ([
    ["NaN", shape.nan[column]],
    ["Infinity", shape.positive[column]],
    ["-Infinity", shape.negative[column]],
  ])) {
    if (held) lines.push(`${words}: ${count(held)}, ${percent(held / total)}`);
  }
  return lines.join("\n");
}

/** @param {Shape} shape @param {number} column @param {Scale} axis @param {number} value @param {number} total */
function lineOf(shape, column, axis, value, total) {
  const start = column * shape.bins;
  const sentence = (/** @type {string} */ where, /** @type {number} */ held) =>
    `${where}: ${count(held)} of ${count(total)}, ${percent(total ? held / total : 0)}`;
  if (Math.abs(value) <= axis.linear) {
    let sum = 0;
    for (let bin = 0; bin < shape.bins; bin += 1)
      if (Math.abs(middleOf(shape, bin)) <= axis.linear) sum += shape.counts[start + bin];
    return sentence(`zero, and magnitudes up to ${number(axis.linear)}`, sum);
  }
  const bin = binAt(shape, value);
  if (bin < 0) return sentence(`about ${number(value)}`, 0);
  return sentence(`${number(shape.edges[bin])} to ${number(shape.edges[bin + 1])}`, shape.counts[start + bin]);
}

/** A row for each span of steps, a column for each bin.
 * @param {Shape} shape @returns {{columns: string[], rows: any[][]}} */
export function tableOf(shape) {
  const bins = Array.from({ length: shape.bins }, (_, bin) => `from ${number(shape.edges[bin])}`);
  const rows = Array.from({ length: shape.columns }, (_, column) => [
    stepsOf(shape, column).replace(/^steps? /, ""),
    shape.nan[column],
    shape.negative[column],
    shape.positive[column],
    ...shape.counts.subarray(column * shape.bins, (column + 1) * shape.bins),
  ]);
  return { columns: ["step", "NaN", "-Infinity", "Infinity", ...bins], rows };
}
