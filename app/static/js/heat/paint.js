// @ts-check
/** From values to pixels. A table of 65,536 colors, one for each upper half of a float32, spares a logarithm a cell.
 * Pure. */
import { mixed, STEPS } from "../canvas/colors.js";
import { INFINITE, MANTISSA, MISSING } from "../canvas/worst.js";

const FADED = 0.55; // of the color for "not captured" in a cell that shows an older value
const NARROW = 0.25; // of a range's size: there half a float32 is too coarse

/** @typedef {import("../canvas/colors.js").Palette} Palette */
/** @typedef {import("../scale.js").Scale} Scale */

export class Painter {
  /** @param {Scale} scale @param {Palette} palette */
  constructor(scale, palette) {
    this.scale = scale;
    this.palette = palette;
    const narrow =
      scale.kind === "linear" && scale.high - scale.low < NARROW * Math.max(Math.abs(scale.low), Math.abs(scale.high));
    this.table = narrow ? null : makeTable(scale, palette);
    this.word = new Uint32Array(1);
    this.float = new Float32Array(this.word.buffer);
  }

  /** The color of a value. @param {number} bits of a float32 */
  color(bits) {
    if ((bits & INFINITE) === INFINITE)
      return bits === MISSING ? this.palette.missing : bits & MANTISSA ? this.palette.nan : this.palette.inf;
    if (this.table !== null) return this.table[bits >>> 16];
    this.word[0] = bits;
    return this.palette.table[Math.round(this.scale.place(this.float[0]) * (STEPS - 1))];
  }

  /** Cells as an image, row by row. In `hatch` stretches of values that are not finite get the color of their hatch.
   * @param {import("./grid.js").Grid} grid @param {number} from @param {number} to @param {Uint32Array} pixels
   * @param {Uint32Array} [hatch] @returns {boolean} whether there are such stretches */
  paint(grid, from, to, pixels, hatch) {
    let hatched = false;
    const width = to - from + 1;
    let left = grid.at(from - 1);
    for (let cell = from; cell <= to; cell += 1) {
      const values = grid.at(cell);
      const skipped = grid.isSkipped(cell);
      for (let y = 0, place = cell - from; y < values.length; y += 1, place += width) {
        const bits = values[y];
        const special = (bits & INFINITE) === INFINITE;
        const color = special || this.table === null ? this.color(bits) : this.table[bits >>> 16];
        pixels[place] = skipped ? this.#fade(color) : color;
        if (special && hatch && sameKind(bits, left[y])) {
          hatch[place] = bits & MANTISSA ? this.palette.nanHatch : this.palette.infHatch;
          hatched = true;
        }
      }
      left = values;
    }
    return hatched;
  }

  /** The color of a step that was not captured. @param {number} color of the nearest one before it */
  #fade(color) {
    let faded = this.#faded.get(color);
    if (faded === undefined) {
      faded = mixed(color, this.palette.missing, FADED);
      this.#faded.set(color, faded);
    }
    return faded;
  }

  /** @type {Map<number, number>} */
  #faded = new Map();
}

/** Whether both are NaN, or both infinite. @param {number} bits @param {number} left */
function sameKind(bits, left) {
  if (bits === MISSING || left === MISSING || (left & INFINITE) !== INFINITE) return false;
  return ((bits & MANTISSA) !== 0) === ((left & MANTISSA) !== 0);
}

/** @param {Scale} scale @param {Palette} palette */
function makeTable(scale, palette) {
  const bits = Uint32Array.from({ length: 0x10000 }, (_, half) => ((half << 16) | 0x8000) >>> 0);
  bits[0] = 0;
  const values = new Float32Array(bits.buffer);
  return Uint32Array.from(values, (value) =>
    Number.isFinite(value) ? palette.table[Math.round(scale.place(value) * (STEPS - 1))] : palette.nan,
  );
}
