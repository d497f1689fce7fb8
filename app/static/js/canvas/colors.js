/** Colors of values: maps from dark to bright that are read in gray too, what no scale holds, and the bar of a map. */
import { h } from "../dom.js";
import { prefs } from "../prefs.js";
import { isDark, colors as themed } from "../theme.js";

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
