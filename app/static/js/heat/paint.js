// @ts-check
/** From values to pixels. A table of 65,536 colours, one for each upper half of a float32, spares a logarithm a cell. Pure. */
import { STEPS } from "../colours.js";
import { MISSING } from "../worst.js";

const EXPONENT = 0x7f800000;
const MANTISSA = 0x007fffff;
const EVERY = 4; // a line of the hatch in so many diagonals
const NARROW = 0.25; // of a range's size: there half a float32 is too coarse

/** @typedef {import("../colours.js").Palette} Palette */
/** @typedef {import("../scale.js").Scale} Scale */

export class Painter {
  /** @param {Scale} scale @param {Palette} palette */
  constructor(scale, palette) {
    this.scale = scale;
    this.palette = palette;
    const narrow = scale.kind === "linear" && scale.high - scale.low < NARROW * Math.max(Math.abs(scale.low), Math.abs(scale.high));
    this.table = narrow ? null : makeTable(scale, palette);
    this.word = new Uint32Array(1);
    this.float = new Float32Array(this.word.buffer);
  }

  /** The colour of a value. @param {number} bits of a float32 */
  colour(bits) {
    if ((bits & EXPONENT) === EXPONENT) return bits === MISSING ? this.palette.missing : bits & MANTISSA ? this.palette.nan : this.palette.inf;
    if (this.table !== null) return this.table[bits >>> 16];
    this.word[0] = bits;
    return this.palette.table[Math.round(this.scale.place(this.float[0]) * (STEPS - 1))];
  }

  /** Cells as an image, row by row. @param {import("./grid.js").Grid} grid @param {number} from @param {number} to @param {Uint32Array} pixels */
  paint(grid, from, to, pixels) {
    const width = to - from + 1;
    let left = grid.at(from - 1);
    for (let cell = from; cell <= to; cell += 1) {
      const values = grid.at(cell);
      for (let y = 0, place = cell - from; y < values.length; y += 1, place += width) {
        const bits = values[y];
        pixels[place] = (bits & EXPONENT) === EXPONENT ? this.#special(bits, left[y], cell, y) : this.table !== null ? this.table[bits >>> 16] : this.colour(bits);
      }
      left = values;
    }
  }

  /** What is not finite is hatched where it is wide; alone it keeps its own colour. @param {number} bits @param {number} left @param {number} cell @param {number} y */
  #special(bits, left, cell, y) {
    if (bits === MISSING) return this.palette.missing;
    const isNan = (bits & MANTISSA) !== 0;
    const same = left !== MISSING && (left & EXPONENT) === EXPONENT && ((left & MANTISSA) !== 0) === isNan;
    if (isNan) return same && (cell + y) % EVERY === 0 ? this.palette.nanHatch : this.palette.nan;
    return same && (cell - y) % EVERY === 0 ? this.palette.infHatch : this.palette.inf;
  }
}

/** @param {Scale} scale @param {Palette} palette */
function makeTable(scale, palette) {
  const bits = Uint32Array.from({ length: 0x10000 }, (_, half) => ((half << 16) | 0x8000) >>> 0);
  bits[0] = 0;
  const values = new Float32Array(bits.buffer);
  return Uint32Array.from(values, (value) => (Number.isFinite(value) ? palette.table[Math.round(scale.place(value) * (STEPS - 1))] : palette.nan));
}
