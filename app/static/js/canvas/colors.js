/** Colors of values: maps from dark to bright that are read in gray too, what no scale holds, and the bar of a map. */
import { h } from "../dom.js";
import { prefs } from "../prefs.js";
import { isDark, colors as themed } from "../theme.js";
import { INFINITE, MANTISSA, MISSING } from "./columns.js";

/** @import { Grid } from "../heat/grid.js"
 * @import { Scale } from "../scale.js" */

/** @typedef {ReturnType<typeof paletteOf>} Palette */

export const STEPS = 256;

/** Anchors, evenly spaced. Lightness rises all the way; the diverging one is lightest, or darkest, in its middle. */
const ANCHORS = {
  viridis: "#440154 #482878 #3e4989 #31688e #26828e #1f9e89 #35b779 #6ece58 #b5de2b #fde725",
  cividis: "#00224e #123570 #3b496c #575d6d #707173 #8a8678 #a59c74 #c3b369 #e1cc55 #fee838",
  light: "#123f7a #2d6fb4 #86b3da #ecebe6 #e5a877 #bf5b1d #7a2c05",
  dark: "#9cc9ff #4f93d8 #2b5c92 #2a2f37 #8f4d1e #d98443 #ffc894",
};

/** @param {string} text #rgb, #rrggbb or rgb(...) @returns {[number, number, number]} */
function rgbOf(text) {
  const short = /^#([0-9a-f])([0-9a-f])([0-9a-f])$/i.exec(text);
  const hex = short ? short.slice(1).map((digit) => digit + digit) : (/^#(..)(..)(..)$/.exec(text)?.slice(1) ?? null);
  if (hex !== null) return /** @type {[number, number, number]} */ (hex.map((digits) => parseInt(digits, 16)));
  const numbers = /rgba?\(([^)]*)\)/
    .exec(text)?.[1]
    .match(/[\d.]+/g)
    ?.slice(0, 3)
    .map(Number);
  return numbers?.length === 3 ? /** @type {[number, number, number]} */ (numbers) : [128, 128, 128];
}

/** As a pixel of ImageData, read as a little-endian integer.
 * @param {number} red @param {number} green @param {number} blue */
export function pixel(red, green, blue) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/** @param {string} text a CSS color */
export function pixelOf(text) {
  return pixel(...rgbOf(text));
}

/** `rgb(1, 2, 3)` of a pixel. @param {number} bits */
export function cssOf(bits) {
  return `rgb(${bits & 255}, ${(bits >> 8) & 255}, ${(bits >> 16) & 255})`;
}

/** Two pixels mixed. @param {number} a @param {number} b @param {number} share of b */
export function mixed(a, b, share) {
  const part = (/** @type {number} */ shift) =>
    Math.round(((a >> shift) & 255) * (1 - share) + ((b >> shift) & 255) * share);
  return pixel(part(0), part(8), part(16));
}

/** @type {Map<string, Uint32Array>} */
const made = new Map();

/** The 256 colors of the map of now, as pixels.
 * @param {boolean} [signed] whether zero is in the middle, which has a map of its own in each theme */
export function colorTable(signed = false) {
  const key = signed ? (isDark() ? "dark" : "light") : prefs.get("colors");
  const ready = made.get(key);
  if (ready) return ready;
  const anchors = ANCHORS[/** @type {keyof typeof ANCHORS} */ (key)].split(" ").map(pixelOf);
  const table = Uint32Array.from({ length: STEPS }, (_, place) => {
    const at = (place / (STEPS - 1)) * (anchors.length - 1);
    const left = Math.min(anchors.length - 2, Math.floor(at));
    return mixed(anchors[left], anchors[left + 1], at - left);
  });
  made.set(key, table);
  return table;
}

/** All colors of a dense picture in the theme of now. @param {boolean} [signed] as in `colorTable` */
export function paletteOf(signed = false) {
  const page = themed();
  const [nan, inf, missing] = [page.nan, page.inf, page.missing].map(pixelOf);
  const card = pixelOf(page.card);
  return {
    table: colorTable(signed),
    nan,
    inf,
    missing,
    /** Every fourth diagonal where many stand side by side: not by color alone. */
    nanHatch: mixed(nan, card, 0.35),
    infHatch: mixed(inf, card, 0.35),
  };
}

/** The color of a value: at a place of the table, or what says that it isn't finite.
 * @param {Palette} palette @param {number} value @param {number} level in the table @param {boolean} hatched */
export function colorOf(palette, value, level, hatched) {
  if (Number.isFinite(value)) return palette.table[level];
  if (Number.isNaN(value)) return hatched ? palette.nanHatch : palette.nan;
  return hatched ? palette.infHatch : palette.inf;
}

const BLANK = 0; // what was not captured: nothing is painted
const NARROW = 0.25; // of a range's size: there half a float32 is too coarse

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
      return bits === MISSING ? BLANK : bits & MANTISSA ? this.palette.nan : this.palette.inf;
    if (this.table !== null) return this.table[bits >>> 16];
    this.word[0] = bits;
    return this.palette.table[Math.round(this.scale.place(this.float[0]) * (STEPS - 1))];
  }

  /** Cells as an image, row by row. In `hatch` stretches of values that are not finite get the color of their hatch.
   * @param {Grid} grid @param {number} from @param {number} to @param {Uint32Array} pixels
   * @param {Uint32Array} [hatch] @returns {boolean} whether there are such stretches */
  paint(grid, from, to, pixels, hatch) {
    let hatched = false;
    const width = to - from + 1;
    let left = grid.at(from - 1);
    for (let cell = from; cell <= to; cell += 1) {
      const values = grid.at(cell);
      for (let y = 0, place = cell - from; y < values.length; y += 1, place += width) {
        const bits = values[y];
        const special = (bits & INFINITE) === INFINITE;
        const color = special || this.table === null ? this.color(bits) : this.table[bits >>> 16];
        pixels[place] = color;
        if (special && hatch && sameKind(bits, left[y])) {
          hatch[place] = bits & MANTISSA ? this.palette.nanHatch : this.palette.infHatch;
          hatched = true;
        }
      }
      left = values;
    }
    return hatched;
  }
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

const COLORS = 128;

/** @param {string} label read aloud */
export function makeBar(label) {
  return /** @type {HTMLCanvasElement} */ (
    h("canvas", { width: COLORS, height: 1, role: "img", "aria-label": label, class: "color-bar" })
  );
}

/** Paints a bar from low to high. @param {HTMLCanvasElement} bar @param {boolean} [signed] as in `colorTable` */
export function paintBar(bar, signed) {
  const table = colorTable(signed);
  const pen = /** @type {CanvasRenderingContext2D} */ (bar.getContext("2d"));
  for (let x = 0; x < COLORS; x += 1) {
    pen.fillStyle = cssOf(table[Math.round((x / (COLORS - 1)) * (STEPS - 1))]);
    pen.fillRect(x, 0, 1, 1);
  }
  return bar;
}

/** @param {"nan" | "inf" | "missing"} name @param {string} words */
export function swatch(name, words) {
  return h("span", {}, h("span", { class: `swatch ${name}`, "aria-hidden": "true" }), words);
}
