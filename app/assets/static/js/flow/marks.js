// @ts-check
/** The bars of one step as marks: two panels above each other, one axis of layers below both. Pure. */
import { number } from "../format.js";
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
  const marks = [{ kind: "text", x: box.x, y: box.y - 9, text: title, fill: page.ink, align: "left" }];
  for (let power = low; power <= high; power += 1) {
    if ((high - power) % every) continue;
    const y = box.y + box.h * (1 - (power - low) / (high - low));
    marks.push({ kind: "rect", x: box.x, y: y - 0.5, w: box.w, h: 1, fill: page.line });
    marks.push({
      kind: "text",
      x: box.x - 6,
      y,
      text: number(Number(`1e${power}`), { digits: 3, style: "auto" }),
      fill: page.quiet,
      align: "right",
    });
  }
  const words = wordsOf(bars);
  if (words) marks.push({ kind: "text", x: box.x + box.w, y: box.y - 9, text: words, fill: page.ink, align: "right" });
  return marks;
}

/** What no bar can show, counted. @param {readonly Bar[]} bars */
function wordsOf(bars) {
  const counts = { nan: 0, inf: 0, zero: 0 };
  for (const { state } of bars) if (state in counts) counts[/** @type {"nan"} */ (state)] += 1;
  const shared = bars.some(({ from, to }) => to - from > 1) ? " (of the bars)" : "";
  const words = [
    counts.nan && `\u2715 NaN ${counts.nan}`,
    counts.inf && `\u25b2 Inf ${counts.inf}`,
    counts.zero && `\u25cb zero ${counts.zero}`,
  ].filter(Boolean);
  return words.length ? words.join("  ") + shared : "";
}

/** @param {Box} box @param {Bar} bar @param {number} place @param {Panel} panel @param {Record<string, string>} page
 * @returns {Mark[]} */
function barMarks(box, bar, place, { bars, decades, color }, page) {
  const pitch = box.w / bars.length;
  const w = Math.min(26, pitch > 3 ? pitch * 0.78 : Math.max(1, pitch));
  const x = box.x + place * pitch + (pitch - w) / 2;
  const middle = x + w / 2;
  const bottom = box.y + box.h;
  const signs = w >= SIGN_PX;
  if (bar.state === "missing") return [{ kind: "rect", x, y: bottom - 2, w, h: 2, fill: page.missing }];
  if (bar.state === "zero")
    return [
      { kind: "rect", x, y: bottom - 3, w, h: 3, fill: page.warn },
      ...sign("\u25cb", middle, bottom - 9, page.warn, signs),
    ];
  if (bar.state === "nan")
    return [
      { kind: "rect", x, y: box.y, w, h: box.h, fill: page.nan, ...(w < HATCHED_PX ? {} : { hatch: page.card }) },
      ...sign("\u2715", middle, box.y + 8, page.card, signs),
    ];
  if (bar.state === "inf")
    return [
      { kind: "rect", x, y: box.y, w, h: box.h, fill: page.inf },
      ...sign("\u25b2", middle, box.y + 8, page.card, signs),
    ];
  const share = (Math.log10(Math.abs(bar.value)) - decades[0]) / (decades[1] - decades[0]);
  const h = Math.max(2, Math.min(1, share) * box.h);
  return [{ kind: "rect", x, y: bottom - h, w, h, fill: color }];
}

/** @param {string} text @param {number} x @param {number} y @param {string} fill @param {boolean} fits
 * @returns {Mark[]} */
function sign(text, x, y, fill, fits) {
  return fits ? [{ kind: "text", x, y, text, fill, align: "center" }] : [];
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
    if (groups.length)
      marks.push({
        kind: "rect",
        x: left,
        y,
        w: Math.max(1, right - left - 1),
        h: 3,
        fill: place % 2 ? page.quiet : page.line,
      });
    const letters = Math.floor(Math.max(LABEL_PX, right - left) / 6.1);
    const text = shortPath(name || ROOT, ({ length }) => length <= letters, shared);
    if (
      (left + right) / 2 - text.length * 3.1 > free &&
      (left + right) / 2 + text.length * 3.1 < box.x + box.w + RIGHT
    ) {
      marks.push({
        kind: "text",
        x: (left + right) / 2,
        y: y + 11,
        text,
        fill: page.quiet,
        align: "center",
        mono: true,
      });
      free = (left + right) / 2 + text.length * 3.1 + 8;
    }
  }
  return marks;
}

/** The layer at a position; -1 if there is none. @param {Box} box @param {number} layers @param {number} x */
export function layerAt(box, layers, x) {
  const share = (x - box.x) / box.w;
  return share < 0 || share >= 1 || !layers ? -1 : Math.floor(share * layers);
}
