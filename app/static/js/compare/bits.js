// @ts-check
/** An answer of /compare/heatmap as the columns of a heatmap. Pure. */
import { MISSING, NAN } from "../worst.js";

/** The bits of float32, column by column: of what both runs lack, and of what is finite in one only, those that mean it.
 * @param {(number | string)[][]} worst [row][column] @param {number[][]} state the same @returns {Uint32Array} */
export function bitsOf(worst, state) {
  const [n, k] = [worst.length, worst[0]?.length ?? 0];
  const bits = new Uint32Array(n * k);
  const values = new Float32Array(bits.buffer);
  for (let row = 0; row < n; row += 1) {
    for (let column = 0; column < k; column += 1) {
      const place = column * n + row;
      if (state[row][column] === 1) values[place] = Number(worst[row][column]);
      else bits[place] = state[row][column] === 2 ? NAN : MISSING;
    }
  }
  return bits;
}
