// @ts-check
/** Bars of many layers: as many as there is room for; where layers share one, the worst of them. Pure. */
import { INFINITE, MAGNITUDE, MANTISSA, MISSING, startOf, worstOf } from "../canvas/worst.js";

/**
 * @typedef {{from: number, to: number, bits: number, value: number, state: "finite" | "zero" | "nan" | "inf" |
 * "missing"}} Bar layers `from` to `to` - 1
 */
/** @typedef {[number, number]} Decades */

const SPAN = 12; // decades at most: below lies rounding
const MIN_PX = 3; // of a bar with its gap

/** The number of bars that a number of layers gets in a width. @param {number} layers @param {number} width */
export function barsIn(layers, width) {
  return Math.min(layers, Math.max(1, Math.floor(width / (layers * MIN_PX > width ? 1 : MIN_PX))));
}

/** @param {Uint32Array} bits a value of each layer @param {number} many @returns {Bar[]} */
export function barsOf(bits, many) {
  const floats = new Float32Array(1);
  const word = new Uint32Array(floats.buffer);
  return Array.from({ length: Math.min(many, bits.length) }, (_, place) => {
    const [from, to] = [startOf(place, bits.length, many), startOf(place + 1, bits.length, many)];
    word[0] = worstOf(bits, from, to);
    return { from, to, bits: word[0], value: floats[0], state: stateOf(word[0]) };
  });
}

/** @param {number} bits @returns {Bar["state"]} */
export function stateOf(bits) {
  if (bits === MISSING) return "missing";
  if ((bits & INFINITE) === INFINITE) return bits & MANTISSA ? "nan" : "inf";
  return (bits & MAGNITUDE) === 0 ? "zero" : "finite";
}

/** Whole decades around the magnitudes; the earlier range stays as long as it roughly fits.
 * @param {readonly Bar[]} bars @param {Decades | null} before @returns {Decades} */
export function decadesOf(bars, before) {
  let [low, high] = [Infinity, -Infinity];
  for (const { state, value } of bars) {
    if (state !== "finite") continue;
    low = Math.min(low, Math.abs(value));
    high = Math.max(high, Math.abs(value));
  }
  if (low > high) return before ?? [-3, 1];
  const top = Math.ceil(Math.log10(high) + 0.02);
  const bottom = Math.max(top - SPAN, Math.min(top - 1, Math.floor(Math.log10(low) - 0.02)));
  const fits = before !== null && bottom >= before[0] && top <= before[1] && bottom - before[0] + before[1] - top <= 2;
  return fits ? before : [bottom, top];
}
