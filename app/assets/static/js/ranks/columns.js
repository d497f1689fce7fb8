// @ts-check
/** An answer of /ranks/map as the columns of a heatmap. Pure. */
import { numberOf } from "../api.js";
import { INFINITE, MISSING } from "../canvas/worst.js";

const MAX_CELLS = 60_000;
const MAX_COLUMNS = 400;

/** The largest number of columns for a number of ranks. @param {number} ranks */
export function mostColumns(ranks) {
  return Math.max(20, Math.min(MAX_COLUMNS, Math.floor(MAX_CELLS / Math.max(1, ranks))));
}

/** The bits of float32, column by column. NaN is no value; an infinity stands for a value that is not finite.
 * @param {(number | string)[][]} values [rank][column] @returns {Uint32Array} */
export function bitsOf(values) {
  const [n, k] = [values.length, values[0]?.length ?? 0];
  const bits = new Uint32Array(n * k);
  const floats = new Float32Array(bits.buffer);
  for (let rank = 0; rank < n; rank += 1) {
    for (let column = 0; column < k; column += 1) {
      const place = column * n + rank;
      const value = numberOf(values[rank][column]);
      if (Number.isFinite(value)) floats[place] = value;
      else bits[place] = Number.isNaN(value) ? MISSING : INFINITE;
    }
  }
  return bits;
}

/** Ranks as the rows of a heatmap. @param {readonly number[]} ranks @returns {import("../heat/rows.js").Row[]} */
export function rowsOf(ranks) {
  return ranks.map((rank) => ({
    number: rank,
    module: `rank ${rank}`,
    kind: "",
    index: "",
    call: 0,
    phase: "",
    group: 1,
  }));
}
