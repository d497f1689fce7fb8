// @ts-check
/** What stands around the cells - names, groups, axis, color bar, legend - as data: a canvas and an SVG draw the same.
 * Pure. */
import { cssOf, STEPS } from "../canvas/colors.js";
import { count, number } from "../format.js";
import { sharedBy, shortPath } from "../paths.js";
import { evenTicks, ticks } from "../scale.js";
import { ROOT } from "../vocabulary.js";
import { boxOf, xOf } from "./layout.js";
import { groupsOf, labelOf } from "./rows.js";

const LINE_PX = 14; // names need so much to be read
const LETTER = 6.05; // about, of the monospaced 10 px
const SHADES = 48;
const STEP_TICK_PX = 90;

/**
 * @typedef {{kind: "rect", x: number, y: number, w: number, h: number, fill: string, hatch?: string}
 *   | {kind: "text", x: number, y: number, text: string, fill: string, align: "left" | "right" | "center", mono?:
 * boolean, bold?: boolean}} Mark
 * @typedef {import("./layout.js").Layout} Layout
 */

/** @param {number} x @param {number} y @param {number} w @param {number} h @param {string} fill @param {string} [hatch]
 * @returns {Mark} */
export function rect(x, y, w, h, fill, hatch) {
  return { kind: "rect", x, y, w, h, fill, ...(hatch === undefined ? {} : { hatch }) };
}

/** @param {number} x @param {number} y its middle @param {string} text @param {string} fill
 * @param {"left" | "right" | "center"} align @param {{mono?: boolean, bold?: boolean}} [how] @returns {Mark} */
export function words(x, y, text, fill, align, how) {
  return { kind: "text", x, y, text, fill, align, ...how };
}

/** @param {string} text @param {number} width @param {number} [shared] how many names all paths begin with */
export function shortened(text, width, shared = 0) {
  const letters = Math.max(3, Math.floor(width / LETTER));
  return shortPath(text, ({ length }) => length <= letters, shared);
}

/** How wide the longest name is. @param {readonly import("./rows.js").Row[]} rows */
export function widthOf(rows) {
  return 8 + LETTER * rows.reduce((most, row) => Math.max(most, labelOf(row).length), 6);
}

/** Names and groups of the rows, as many as can be read.
 * @param {Layout} layout @param {readonly import("./rows.js").Row[]} rows
 * @param {boolean} grouped whether the rows stand in the model's order @param {Record<string, string>} page colors
 * @returns {Mark[]} */
export function rowMarks(layout, rows, grouped, page) {
  const { shown, labels, gutter, pinned } = layout;
  if (!shown.length) return [];
  /** @type {Mark[]} */
  const marks = [];
  const shared = sharedBy(rows);
  /** @param {string} text @param {number} y @param {boolean} [bold] */
  const name = (text, y, bold = false) => {
    const short = shortened(text, labels - 4, shared);
    marks.push(words(labels, y, short, bold ? page.ink : page.quiet, "right", { mono: true, bold }));
  };
  for (let place = 0; place < pinned; place += 1) {
    const box = boxOf(layout, place);
    name(labelOf(rows[shown[place]]), box.y + box.h / 2, true);
  }
  const rest = shown.subarray(pinned);
  if (!rest.length) return marks;
  const groups = grouped ? groupsOf(rows, rest, shared) : [];
  for (const [place, group] of groups.entries()) {
    const [top, end] = [boxOf(layout, pinned + group.from), boxOf(layout, pinned + group.to - 1)];
    const tall = Math.max(1, end.y + end.h - top.y - 1);
    marks.push(rect(gutter.x, top.y, gutter.w - 2, tall, place % 2 ? page.quiet : page.line));
  }
  const readable = boxOf(layout, pinned).h >= LINE_PX - 2;
  const named =
    groups.length && !readable
      ? groups.map(({ name, from, to }) => ({ text: name || ROOT, place: from, middle: (from + to - 1) / 2 }))
      : null;
  let free = -Infinity;
  for (let place = 0; place < (named?.length ?? rest.length); place += 1) {
    const at = named ? Math.floor(named[place].middle) : place;
    const box = boxOf(layout, pinned + at);
    const y = box.y + box.h / 2;
    if (y < free || y + 5 > layout.plot.y + layout.plot.h + 4) continue;
    name(named ? named[place].text : labelOf(rows[rest[place]]), y);
    free = y + LINE_PX - 2;
  }
  return marks;
}

/** The axis of steps.
 * @param {Layout} layout @param {[number, number]} span @param {Record<string, string>} page
 * @param {import("../timeline/clock.js").Clock} [clock] what the ticks say @returns {Mark[]} */
export function stepMarks(layout, span, page, clock) {
  const { plot } = layout;
  const bottom = plot.y + plot.h;
  const many = Math.max(1, plot.w / STEP_TICK_PX);
  const few = evenTicks(span[0], span[1], many);
  const whole = (few.length > 1 ? few : evenTicks(span[0], span[1], many * 2)).filter(Number.isInteger);
  return whole.flatMap((step) => {
    const x = xOf(layout, span, step + 0.5);
    const near = x > plot.x + plot.w - 20 ? "right" : x < plot.x + 16 ? "left" : "center";
    return [
      rect(x - 0.5, bottom, 1, 4, page.quiet),
      words(x, bottom + 12, clock?.text(step, span) ?? count(step), page.quiet, near),
    ];
  });
}

/** The color bar, with values at its ticks.
 * @param {Layout} layout @param {import("../scale.js").Scale} scale
 * @param {import("../canvas/colors.js").Palette} palette @param {boolean} relative @param {Record<string, string>} page
 * @returns {Mark[]} */
export function barMarks(layout, scale, palette, relative, page) {
  const { bar } = layout;
  /** @type {Mark[]} */
  const marks = [];
  const each = bar.h / SHADES;
  for (let shade = 0; shade < SHADES; shade += 1) {
    const color = palette.table[Math.round((shade / (SHADES - 1)) * (STEPS - 1))];
    marks.push(rect(bar.x, bar.y + bar.h - (shade + 1) * each, bar.w, each + 0.6, cssOf(color)));
  }
  for (const value of ticks(scale, Math.max(2, bar.h / 55))) {
    const at = bar.y + (1 - scale.place(value)) * bar.h;
    const y = Math.min(bar.y + bar.h - 5, Math.max(bar.y + 5, at));
    const text = relative ? timesOf(value) : number(value, { digits: 3, style: "auto" });
    marks.push(rect(bar.x + bar.w, at - 0.5, 4, 1, page.quiet));
    marks.push(words(bar.x + bar.w + 6, y, text, page.quiet, "left"));
  }
  return marks;
}

/** Ten to that power, as a multiple of the median. @param {number} decades */
function timesOf(decades) {
  const times = 10 ** Math.abs(decades);
  const text = number(times, { digits: 2, style: "auto" });
  return decades < 0 ? `\u00f7${text}` : `\u00d7${text}`;
}

/** What no scale holds.
 * @param {Layout} layout @param {string} about what the colors are of
 * @param {import("../canvas/colors.js").Palette} palette @param {Record<string, string>} page
 * @param {boolean} lumped whether NaN and infinities are one kind @returns {Mark[]} */
export function legendMarks(layout, about, palette, page, lumped = false) {
  const y = layout.plot.y + layout.plot.h + 33;
  const entries = /** @type {[string, number, number | null][]} */ ([
    ...(lumped ? [] : [["NaN", palette.nan, palette.nanHatch]]),
    [lumped ? "NaN or Inf" : "Inf", palette.inf, palette.infHatch],
    ["faded: not captured", palette.missing, null],
  ]);
  /** @type {Mark[]} */
  const marks = [];
  let x = layout.plot.x + layout.plot.w;
  for (const [text, fill, hatch] of entries.reverse()) {
    marks.push(words(x, y, text, page.quiet, "right"));
    x -= text.length * 5.6 + 20;
    marks.push(rect(x, y - 5, 12, 10, cssOf(fill), hatch === null ? undefined : cssOf(hatch)));
    x -= 12;
  }
  const room = Math.floor((x - layout.plot.x - 8) / 6);
  const fitting = about.length > room ? `${about.slice(0, room - 1)}\u2026` : about;
  if (room > 12) marks.push(words(layout.plot.x, y, fitting, page.quiet, "left"));
  return marks;
}
