/** The bars of one step as data: where layers share a pixel the worst of them; as marks, a table, and pictures. */
import { pixelRatio } from "../canvas/chart.js";
import { INFINITE, MAGNITUDE, MANTISSA, MISSING, startOf, worstOf } from "../canvas/columns.js";
import { drawMarks, rect, svgOf as svgOfMarks, titledPng, titledSvg, words } from "../canvas/pen.js";
import { moduleName, number } from "../format.js";
import { groupsOf } from "../heat/rows.js";
import { sharedBy, shortPath } from "../paths.js";

/** @import { Profile } from "./profile.js"
 * @import { Mark } from "../canvas/pen.js" */

/** @typedef {[number, number]} Decades */

/** @typedef {{from: number, to: number, bits: number, value: number, state: "finite" | "zero" | "nan" | "inf" |
 * "missing"}} Bar layers `from` to `to` - 1 */

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

const LEFT = 58;
const RIGHT = 12;
const HEAD = 16;
const FOOT = 24;
const SPLIT = 10;
const LABEL_PX = 110;
const SIGN_PX = 7;
const HATCHED_PX = 8; // a hatch in narrower bars becomes stripes over all of them

/** @typedef {{x: number, y: number, w: number, h: number}} Box */
/** @typedef {{title: string, bars: readonly Bar[], decades: [number, number], color: string}} Panel */

/** The boxes of a number of panels.
 * @param {number} width @param {number} height @param {number} many @returns {Box[]} */
export function boxesOf(width, height, many) {
  const panel = (height - FOOT - SPLIT * (many - 1)) / many;
  return Array.from({ length: many }, (_, place) => ({
    x: LEFT,
    y: place * (panel + SPLIT) + HEAD,
    w: Math.max(10, width - LEFT - RIGHT),
    h: Math.max(10, panel - HEAD),
  }));
}

/** @param {Box} box @param {Panel} panel @param {Record<string, string>} page @returns {Mark[]} */
export function panelMarks(box, panel, page) {
  return [
    ...frameMarks(box, panel, page),
    ...panel.bars.flatMap((bar, place) => barMarks(box, bar, place, panel, page)),
  ];
}

/** @param {Box} box @param {Panel} panel @param {Record<string, string>} page @returns {Mark[]} */
function frameMarks(box, { title, decades, bars }, page) {
  const [low, high] = decades;
  const every = Math.max(1, Math.ceil((high - low) / Math.max(1, box.h / 26)));
  /** @type {Mark[]} */
  const marks = [words(box.x, box.y - 9, title, page.ink, "left")];
  for (let power = low; power <= high; power += 1) {
    if ((high - power) % every) continue;
    const y = box.y + box.h * (1 - (power - low) / (high - low));
    const text = number(Number(`1e${power}`), { digits: 3, style: "auto" });
    marks.push(rect(box.x, y - 0.5, box.w, 1, page.line), words(box.x - 6, y, text, page.quiet, "right"));
  }
  const counted = wordsOf(bars);
  if (counted) marks.push(words(box.x + box.w, box.y - 9, counted, page.ink, "right"));
  return marks;
}

/** What no bar can show, counted. @param {readonly Bar[]} bars */
function wordsOf(bars) {
  const counts = { nan: 0, inf: 0, zero: 0 };
  for (const { state } of bars) if (state in counts) counts[/** @type {"nan"} */ (state)] += 1;
  const shared = bars.some(({ from, to }) => to - from > 1) ? " (of the bars)" : "";
  const parts = [
    counts.nan && `\u2715 NaN ${counts.nan}`,
    counts.inf && `\u25b2 Inf ${counts.inf}`,
    counts.zero && `\u25cb zero ${counts.zero}`,
  ].filter(Boolean);
  return parts.length ? parts.join("  ") + shared : "";
}

/** @param {Box} box @param {Bar} bar @param {number} place @param {Panel} panel @param {Record<string, string>} page
 * @returns {Mark[]} */
function barMarks(box, bar, place, { bars, decades, color }, page) {
  const pitch = box.w / bars.length;
  const w = Math.min(26, pitch > 3 ? pitch * 0.78 : Math.max(1, pitch));
  const x = box.x + place * pitch + (pitch - w) / 2;
  const middle = x + w / 2;
  const bottom = box.y + box.h;
  /** @param {string} text @param {number} y @param {string} fill */
  const sign = (text, y, fill) => (w >= SIGN_PX ? [words(middle, y, text, fill, "center")] : []);
  if (bar.state === "missing") return [rect(x, bottom - 2, w, 2, page.missing)];
  if (bar.state === "zero") return [rect(x, bottom - 3, w, 3, page.warn), ...sign("\u25cb", bottom - 9, page.warn)];
  if (bar.state === "nan") {
    const hatch = w < HATCHED_PX ? undefined : page.card;
    return [rect(x, box.y, w, box.h, page.nan, hatch), ...sign("\u2715", box.y + 8, page.card)];
  }
  if (bar.state === "inf") return [rect(x, box.y, w, box.h, page.inf), ...sign("\u25b2", box.y + 8, page.card)];
  const share = (Math.log10(Math.abs(bar.value)) - decades[0]) / (decades[1] - decades[0]);
  const h = Math.max(2, Math.min(1, share) * box.h);
  return [rect(x, bottom - h, w, h, color)];
}

/** The blocks of the model under the bars, or their layers if each is a block of its own. @param {Box} box the lowest
 * panel @param {readonly {module: string}[]} layers @param {Record<string, string>} page @returns {Mark[]} */
export function blockMarks(box, layers, page) {
  /** @type {Mark[]} */
  const marks = [];
  const y = box.y + box.h + 5;
  const named = layers.map(({ module }) => ({ module: moduleName(module) }));
  const shared = sharedBy(named);
  const order = Int32Array.from(layers.keys());
  const groups = groupsOf(layers, order, shared);
  const alone = groups.length ? [] : named.map(({ module }, from) => ({ name: module, from, to: from + 1 }));
  let free = -Infinity;
  for (const [place, { name, from, to }] of [...groups, ...alone].entries()) {
    const [left, right] = [from, to].map((place) => box.x + (place / layers.length) * box.w);
    if (groups.length) marks.push(rect(left, y, Math.max(1, right - left - 1), 3, place % 2 ? page.quiet : page.line));
    const letters = Math.floor(Math.max(LABEL_PX, right - left) / 6.1);
    const text = shortPath(name || moduleName(""), ({ length }) => length <= letters, shared);
    const [middle, half] = [(left + right) / 2, text.length * 3.1];
    if (middle - half <= free || middle + half >= box.x + box.w + RIGHT) continue;
    marks.push(words(middle, y + 11, text, page.quiet, "center", { mono: true }));
    free = middle + half + 8;
  }
  return marks;
}

/** The layer at a position; -1 if there is none. @param {Box} box @param {number} layers @param {number} x */
export function layerAt(box, layers, x) {
  const share = (x - box.x) / box.w;
  return share < 0 || share >= 1 || !layers ? -1 : Math.floor(share * layers);
}

/** The value of these bits; null if it was not captured. @param {number | undefined} bits */
function floatOf(bits) {
  return bits === undefined || bits === MISSING ? null : new Float32Array(Uint32Array.of(bits).buffer)[0];
}

/** @param {number | undefined} bits */
export function wordOf(bits) {
  const value = floatOf(bits);
  return value === null ? "not captured" : number(value);
}

/** Returns the layers from last to first, because tables show their end first.
 * @param {Profile} profile @returns {{columns: string[], rows: any[][]}} */
export function tableOf({ shown, bits, values }) {
  const columns = ["layer", "type", `activation ${values[0].stat}`, `gradient ${values[1].stat}`];
  const rows = shown.map((layer, place) => [
    layer.label,
    layer.type,
    floatOf(bits[0]?.[place]),
    floatOf(bits[1]?.[place]),
  ]);
  return { columns, rows: rows.reverse() };
}

/** @param {Profile} profile */
function titleOf({ page, step }) {
  return [`Step ${step ?? ""}, from input to output`, page.runName].filter(Boolean).join(" \u00b7 ");
}

/** @param {Profile} profile @returns {Promise<Blob>} */
export function pngOf(profile) {
  const { clientWidth: width, clientHeight: height } = profile.canvas;
  return titledPng(titleOf(profile), width, height, pixelRatio(), (pen) => drawMarks(pen, profile.marks));
}

/** @param {Profile} profile */
export function svgOf(profile) {
  const { clientWidth: width, clientHeight: height } = profile.canvas;
  return titledSvg(titleOf(profile), width, height, svgOfMarks(profile.marks));
}
