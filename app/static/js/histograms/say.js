// @ts-check
/** What lies at a place of a histogram map, in words and as a table. Pure. */
import { count, number, percent, stepWords } from "../format.js";
import { columnAt, middleOf } from "./shape.js";

/** @typedef {import("./shape.js").Shape} Shape */

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

/** @param {Shape} shape @param {import("../scale.js").Scale} axis @param {{step: number, value: number}} at
 * @returns {string} lines */
export function say(shape, axis, { step, value }) {
  const column = columnAt(shape, step);
  if (column < 0) return `step ${count(step)}\nnot captured`;
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

/** @param {Shape} shape @param {number} column @param {import("../scale.js").Scale} axis @param {number} value
 * @param {number} total */
function lineOf(shape, column, axis, value, total) {
  const start = column * shape.bins;
  const told = (/** @type {string} */ where, /** @type {number} */ held) =>
    `${where}: ${count(held)} of ${count(total)}, ${percent(total ? held / total : 0)}`;
  if (Math.abs(value) <= axis.linear) {
    let sum = 0;
    for (let bin = 0; bin < shape.bins; bin += 1)
      if (Math.abs(middleOf(shape, bin)) <= axis.linear) sum += shape.counts[start + bin];
    return told(`zero, and magnitudes up to ${number(axis.linear)}`, sum);
  }
  const bin = binAt(shape, value);
  if (bin < 0) return told(`about ${number(value)}`, 0);
  return told(`${number(shape.edges[bin])} to ${number(shape.edges[bin + 1])}`, shape.counts[start + bin]);
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
