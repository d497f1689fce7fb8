// @ts-check
/** Values as multiples of their own row's median: a layer whose gradient is always small does not look
 * alarming. Pure. */
import { INFINITE, MAGNITUDE } from "../canvas/worst.js";

const SAMPLES = 33;
const DECADES = Math.log10(2) / 2 ** 23; // of one unit of the bits

/** The median magnitude of each row over its values; 0 if a row has no finite value.
 * @param {import("../canvas/columns.js").Columns} columns */
export function usualOf(columns) {
  const usual = new Float32Array(columns.rows);
  const many = Math.min(SAMPLES, columns.length);
  const picked = Array.from({ length: many }, (_, place) =>
    columns.column(Math.floor((place * columns.length) / many)),
  );
  const held = new Float32Array(many);
  for (let row = 0; row < usual.length; row += 1) {
    let count = 0;
    for (const column of picked) {
      const value = Math.abs(column[row]);
      if (value < Infinity) insert(held, count++, value);
    }
    if (count) usual[row] = held[count >> 1];
  }
  return usual;
}

/** Puts a value among the first `count`, which ascend.
 * @param {Float32Array} held @param {number} count @param {number} value */
function insert(held, count, value) {
  let place = count;
  for (; place > 0 && held[place - 1] > value; place -= 1) held[place] = held[place - 1];
  held[place] = value;
}

/** Makes columns relative: 0 is usual, 1 ten times as much, -1 a tenth. What is not finite stays. The logarithm is that
 * of the float's own bits, straight between powers of two: within 0.03, which no color shows, and ten times as fast.
 * @param {Float32Array} usual @returns {(bits: Uint32Array) => Uint32Array} its answer holds until it is called again
 */
export function relativeTo(usual) {
  const into = new Uint32Array(usual.length);
  const values = new Float32Array(into.buffer);
  const zero = new Uint32Array(usual.buffer, usual.byteOffset, usual.length);
  return (bits) => {
    for (let row = 0; row < bits.length; row += 1) {
      if ((bits[row] & INFINITE) === INFINITE) into[row] = bits[row];
      else values[row] = ((bits[row] & MAGNITUDE) - zero[row]) * DECADES;
    }
    return into;
  };
}
