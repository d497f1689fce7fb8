// @ts-check
/**
 * Where many values share a pixel the worst one is shown: a NaN before an infinity, before the largest magnitude; what was
 * not sampled only if there is nothing else. Pure; on the bits of float32, where that order is nearly that of integers.
 */

export const MISSING = 0x7fc00001; // not sampled
export const NAN = 0x7fc00000;
export const INFINITE = 0x7f800000;
const MAGNITUDE = 0x7fffffff;

/** How bad a value is, as an integer; -1 is not sampled. @param {number} bits */
export function badness(bits) {
  return bits === MISSING ? -1 : bits & MAGNITUDE;
}

/** The bits of the worse one. @param {number} a @param {number} b */
export function worse(a, b) {
  return badness(b) > badness(a) ? b : a;
}

/** The worst of column[order[from]] to column[order[to - 1]]; without an order, of column[from] to column[to - 1].
 * @param {Uint32Array} column @param {number} from @param {number} to @param {Int32Array | null} [order] */
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

/** The first row of a pixel when rows share pixels. @param {number} pixel @param {number} rows @param {number} pixels */
export function startOf(pixel, rows, pixels) {
  return Math.ceil((pixel * rows) / pixels);
}

/** The pixel in which a row is. @param {number} row @param {number} rows @param {number} pixels */
export function pixelOf(row, rows, pixels) {
  return Math.floor((row * pixels) / rows);
}

/**
 * k columns of n values, in at most so many columns and rows; column by column.
 * @param {Float32Array} values @param {number} n @param {number} k @param {number} rowsPx @param {number} colsPx
 * @returns {{values: Float32Array, n: number, k: number}}
 */
export function squeeze(values, n, k, rowsPx, colsPx) {
  const [rows, columns] = [Math.min(n, rowsPx), Math.min(k, colsPx)];
  const from = new Uint32Array(values.buffer, values.byteOffset, values.length);
  const into = new Uint32Array(rows * columns).fill(MISSING);
  for (let column = 0; column < k; column += 1) {
    const held = from.subarray(column * n, (column + 1) * n);
    const place = pixelOf(column, k, columns) * rows;
    for (let row = 0; row < rows; row += 1) {
      const found = worstOf(held, startOf(row, n, rows), startOf(row + 1, n, rows));
      into[place + row] = worse(into[place + row], found);
    }
  }
  return { values: new Float32Array(into.buffer), n: rows, k: columns };
}
