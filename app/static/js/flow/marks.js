// @ts-check
/** The bars of one step as marks: two panels above each other, one axis of layers below both. Pure. */
import { number } from "../format.js";
import { rect, words } from "../heat/marks.js";
import { groupsOf } from "../heat/rows.js";
import { sharedBy, shortPath } from "../paths.js";
import { ROOT } from "../vocabulary.js";

const LEFT = 58;
const RIGHT = 12;
const HEAD = 16;
const FOOT = 24;
const SPLIT = 10;
const LABEL_PX = 110;
const SIGN_PX = 7;
const HATCHED_PX = 8; // a hatch in narrower bars becomes stripes over all of them

/** @typedef {import("./bars.js").Bar} Bar */
/** @typedef {import("../heat/marks.js").Mark} Mark */
/** @typedef {{x: number, y: number, w: number, h: number}} Box */
/** @typedef {{title: string, bars: readonly Bar[], decades: [number, number], color: string}} Panel */

/** The boxes of a number of panels.
 * @param {number} width @param {number} height @param {number} many @returns {Box[]} */
export function boxesOf(width, height, many) {
  const each = (height - FOOT - SPLIT * (many - 1)) / many;
  return Array.from({ length: many }, (_, place) => ({
    x: LEFT,
    y: place * (each + SPLIT) + HEAD,
    w: Math.max(10, width - LEFT - RIGHT),
    h: Math.max(10, each - HEAD),
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

/** The blocks of the model under the bars, or their layers if each is a block of its own.
 * @param {Box} box the lowest panel @param {readonly {module: string}[]} layers @param {Record<string, string>} page
 * @returns {Mark[]} */
export function blockMarks(box, layers, page) {
  /** @type {Mark[]} */
  const marks = [];
  const y = box.y + box.h + 5;
  const shared = sharedBy(layers);
  const order = Int32Array.from(layers.keys());
  const groups = groupsOf(layers, order, shared);
  const alone = groups.length ? [] : layers.map(({ module }, from) => ({ name: module, from, to: from + 1 }));
  let free = -Infinity;
  for (const [place, { name, from, to }] of [...groups, ...alone].entries()) {
    const [left, right] = [from, to].map((each) => box.x + (each / layers.length) * box.w);
    if (groups.length) marks.push(rect(left, y, Math.max(1, right - left - 1), 3, place % 2 ? page.quiet : page.line));
    const letters = Math.floor(Math.max(LABEL_PX, right - left) / 6.1);
    const text = shortPath(name || ROOT, ({ length }) => length <= letters, shared);
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
