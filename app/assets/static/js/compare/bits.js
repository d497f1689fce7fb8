// @ts-check
/** An answer of /compare/heatmap as the columns of a heatmap. Pure. */
import { INFINITE, MISSING, NAN } from "../canvas/worst.js";

/** The bits of float32, column by column. Three states are no numbers: not compared, finite in one run only (NaN), and
 * NaN or infinite in both (infinity).
 * @param {(number | string)[][]} worst [row][column] @param {number[][]} state the same @returns {Uint32Array} */
export function bitsOf(worst, state) {
  const [n, k] = [worst.length, worst[0]?.length ?? 0];
  const bits = new Uint32Array(n * k);
  const values = new Float32Array(bits.buffer);
  for (let row = 0; row < n; row += 1) {
    for (let column = 0; column < k; column += 1) {
      const place = column * n + row;
      if (state[row][column] === 1) values[place] = Number(worst[row][column]);
      else bits[place] = [MISSING, 0, NAN, INFINITE][state[row][column]];
    }
  }
  return bits;
}
