// @ts-check
/** Where many values share a pixel the worst one is shown: a NaN before an infinity, before the largest magnitude; what
 * was not sampled only if there is nothing else. Pure; on the bits of float32, where that order is nearly that of
 * integers. */

export const MISSING = 0x7fc00001; // not sampled
export const NAN = 0x7fc00000;
export const INFINITE = 0x7f800000;
export const MAGNITUDE = 0x7fffffff; // without the sign
export const MANTISSA = 0x007fffff; // not zero in NaN, zero in an infinity

/** How bad a value is, as an integer; -1 is not sampled. @param {number} bits */
export function badness(bits) {
  return bits === MISSING ? -1 : bits & MAGNITUDE;
}

/** Whether a value is NaN or infinite. @param {number} bits */
export function isBad(bits) {
  return bits !== MISSING && (bits & INFINITE) === INFINITE;
}

/** The bits of the worse one. @param {number} a @param {number} b */
export function worse(a, b) {
  return badness(b) > badness(a) ? b : a;
}

/** The worst of column[order[from]] to column[order[to - 1]]; without an order, of column[from] to column[to - 1].
 * @param {Uint32Array} column @param {number} from @param {number} to @param {ArrayLike<number> | null} [order] */
export function worstOf(column, from, to, order = null) {
  let found = MISSING;
  let most = -1;
  for (let place = from; place < to; place += 1) {
    const bits = column[order === null ? place : order[place]];
    const bad = bits === MISSING ? -1 : bits & MAGNITUDE;
    if (bad > most) {
      most = bad;
      found = bits;
    }
  }
  return found;
}

/** The first row of a pixel when rows share pixels.
 * @param {number} pixel @param {number} rows @param {number} pixels */
export function startOf(pixel, rows, pixels) {
  return Math.ceil((pixel * rows) / pixels);
}

/** The bits of float32, column by column. @param {(number | string)[][]} values [row][column]
 * @param {(value: number, row: number, column: number) => number | null} signOf the bits of a cell that is no finite
 *   number; null of one that is @returns {Uint32Array} */
export function bitsOf(values, signOf) {
  const [n, k] = [values.length, values[0]?.length ?? 0];
  const bits = new Uint32Array(n * k);
  const floats = new Float32Array(bits.buffer);
  for (let row = 0; row < n; row += 1) {
    for (let column = 0; column < k; column += 1) {
      const [place, value] = [column * n + row, Number(values[row][column])];
      const sign = signOf(value, row, column);
      if (sign === null) floats[place] = value;
      else bits[place] = sign;
    }
  }
  return bits;
}
