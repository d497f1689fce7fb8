// @ts-check
/** The numbers of a probe by channel and step as rows of a heatmap: their names, their order, their scale. Pure. */
import { numberOf } from "../api.js";
import { count, counted, stepWords } from "../format.js";
import { rowOf } from "../heat/rows.js";
import { percentiles } from "../scale.js";

/** @typedef {import("../answers.js").Channels} Channels */

/** How many channels a row stands for. @param {Channels} said */
export function groupOf({ channel, channels }) {
  return channel.length > 1 ? channel[1] - channel[0] : Math.max(1, channels);
}

/** Channels as the rows of a heatmap: `channel 17`, or `channels 16 to 23`. @param {Channels} said */
export function rowsOf(said) {
  return said.channel.map((first) => {
    const last = Math.min(said.channels, first + groupOf(said)) - 1;
    return rowOf(first, first === last ? `channel ${count(first)}` : `channels ${count(first)} to ${count(last)}`);
  });
}

/** The column of a step, or else the newest one. @param {Channels} said @param {number | null} step */
export function columnOf({ first_step: first }, step) {
  const found = step === null ? -1 : first.findLastIndex((begin) => begin <= step);
  return found < 0 ? first.length - 1 : found;
}

/** The rows from top to bottom: by channel, or by the values of a column; then NaN is on top.
 * @param {Channels} said @param {string} sort "" by channel, "largest", "smallest" @param {number} column */
export function orderOf({ values }, sort, column) {
  const rows = [...values.keys()];
  if (!sort || column < 0) return rows;
  const sign = sort === "smallest" ? 1 : -1;
  const keys = values.map((row) => sign * numberOf(row[column])).map((key) => (Number.isNaN(key) ? -Infinity : key));
  return rows.sort((a, b) => (keys[a] === keys[b] ? 0 : keys[a] - keys[b]));
}

const WIDE = 20; // times: then the colors follow the logarithm

/** The scale of the colors. @param {Channels} said @param {string} chosen "" is automatic
 * @returns {import("../scale.js").Kind} */
export function kindOf({ values }, chosen) {
  if (chosen) return /** @type {import("../scale.js").Kind} */ (chosen);
  const numbers = values.flat().map(numberOf);
  const [low, high] = percentiles(numbers, "log");
  return high / low > WIDE && !numbers.some((value) => value < 0) ? "log" : "linear";
}

/** What the rows are. @param {Channels} said @param {string} sort @param {number} column that they are sorted by */
export function captionOf(said, sort, column) {
  const [group, channels] = [groupOf(said), counted(said.channels, "channel")];
  const rows =
    group > 1
      ? `${channels} in ${counted(said.channel.length, "row")}: ` +
        `each row shows the largest value of ${count(group)} neighboring channels, or NaN.`
      : `${channels}.`;
  if (!sort) return `${rows} Channel 0 is on top.`;
  const steps = stepWords(said.first_step[column], said.last_step[column]);
  return `${rows} Sorted by the values of ${steps}, ${sort} first.`;
}
