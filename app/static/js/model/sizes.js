// @ts-check
/** How much room a box takes in the picture. Pure. */
import { timesOf } from "./tree.js";

export const HEAD = 24; // above the parts of an open box
export const PAD = 12; // around them
export const LINE = 15;
export const STRIP = 10; // the cells of a repeat
const LETTER = 7.5; // about, of the title
const SMALL = 6.7; // and of the class
const MIN_WIDTH = 84;
const MAX_WIDTH = 200;
const MAX_CELLS = 48;

/** @typedef {import("./tree.js").Tree} Tree */

/** Of a closed box. @param {Tree} tree @param {number} number @returns {[number, number]} */
export function sizeOf(tree, number) {
  const box = tree.boxes[number];
  const badge = box.kind === "repeat" ? 34 + 7 * String(timesOf(box)).length : box.parts.length ? 32 : 16;
  const wide = Math.max(tree.titleOf(number).length * LETTER + badge, tree.typeOf(number).length * SMALL + 18);
  const width = Math.round(Math.min(MAX_WIDTH, Math.max(MIN_WIDTH, wide)));
  return [width, 3 * LINE + 6 + (box.kind === "repeat" ? STRIP + 4 : 0)];
}

/** How many cells the strip of a repeat has: one for each unit, or for several. @param {number} times */
export function cellsOf(times) {
  return Math.min(times, MAX_CELLS);
}

/** The sign in the circle of a box that computes something itself: `+` for sums, else the operator's name.
 * @param {string} maker */
export function signOf(maker) {
  const known = /** @type {Record<string, string>} */ ({
    Add: "+",
    Mul: "\u00d7",
    Sub: "\u2212",
    Div: "\u00f7",
    Cat: "cat",
  });
  return (
    known[maker] ??
    (maker
      .replace(/^Unsafe/, "")
      .toLowerCase()
      .slice(0, 7) ||
      "\u0192")
  );
}

/** Of that circle. @param {string} maker @returns {[number, number]} */
export function makerSize(maker) {
  return [Math.max(20, signOf(maker).length * 6 + 12), 20];
}
