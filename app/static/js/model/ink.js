// @ts-check
/** The colors and widths of boxes and lines at a step. Pure. */
import { cssOf } from "../canvas/colors.js";
import { INFINITE, MANTISSA, MISSING } from "../canvas/worst.js";
import { Painter } from "../heat/paint.js";

const WIDTHS = 6;
const THIN = 1;
const THICK = 5;

/** @typedef {import("../scale.js").Scale} Scale @typedef {import("../canvas/colors.js").Palette} Palette */

/** Fills, and the color of text on them. */
export class Ink {
  /** @type {Map<number, {fill: string, text: string}>} */
  #known = new Map();

  /** @param {Scale} scale @param {Palette} palette @param {string} [quantity] what the values are */
  constructor(scale, palette, quantity = "") {
    this.quantity = quantity;
    this.painter = new Painter(scale, palette);
  }

  /** @param {number} bits of a value */
  of(bits) {
    const pixel = this.painter.color(bits);
    let found = this.#known.get(pixel);
    if (!found) {
      found = { fill: cssOf(pixel), text: isDarkPixel(pixel) ? "#fff" : "#000" };
      this.#known.set(pixel, found);
    }
    return found;
  }
}

/** Whether white text is read better on a color than black text. @param {number} pixel */
export function isDarkPixel(pixel) {
  const channel = (/** @type {number} */ shift) => {
    const share = ((pixel >> shift) & 255) / 255;
    return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  };
  return 0.2126 * channel(0) + 0.7152 * channel(8) + 0.0722 * channel(16) < 0.179;
}

/** How lines are drawn: one of a few widths, or as what isn't finite.
 * @typedef {{width: number, state: "plain" | "nan" | "inf" | "unknown"}} Stroke */

/** @param {number} bits of the largest gradient @param {Scale | null} scale @returns {Stroke} */
export function strokeOf(bits, scale) {
  if (bits === MISSING || scale === null) return { width: THIN, state: "unknown" };
  if ((bits & INFINITE) === INFINITE) return { width: THICK, state: bits & MANTISSA ? "nan" : "inf" };
  WORD[0] = bits;
  const share = VALUE[0] === 0 ? 0 : Math.round(scale.place(VALUE[0]) * (WIDTHS - 1)) / (WIDTHS - 1);
  return { width: THIN + share * (THICK - THIN), state: "plain" };
}

const WORD = new Uint32Array(1);
const VALUE = new Float32Array(WORD.buffer);
