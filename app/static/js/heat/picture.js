/** A heatmap as a picture: its marks as data, which a canvas and an SVG draw the same; and its export. */
import { cssOf, STEPS } from "../canvas/colors.js";
import { MISSING } from "../canvas/columns.js";
import { drawMarks, rect, svgOf as svgOfMarks, titledPng, titledSvg, words } from "../canvas/pen.js";
import { count, moduleName, number } from "../format.js";
import { sharedBy, shortPath } from "../paths.js";
import { ticks } from "../scale.js";
import { axisName, boxOf, groupsOf, labelOf, onsets, xOf } from "./rows.js";

/** @import { Along } from "../along.js"
 * @import { Painter, Palette } from "../canvas/colors.js"
 * @import { Columns } from "../canvas/columns.js"
 * @import { Mark } from "../canvas/pen.js"
 * @import { Grid } from "./grid.js"
 * @import { Heat } from "./heat.js"
 * @import { Layout, Row } from "./rows.js"
 * @import { Scale } from "../scale.js"
 * @import { Clock } from "../timeline/clock.js" */

const LINE_PX = 14; // names need so much to be read
const LETTER = 6.05; // about, of the monospaced 10 px
const SHADES = 48;
const STEP_TICK_PX = 90;
const SPLIT_PX = 6; // narrower columns are not split by lines
const NOTCH_PX = 3;

/** @param {string} text @param {number} width @param {number} [shared] how many names all paths begin with */
export function shortened(text, width, shared = 0) {
  const letters = Math.max(3, Math.floor(width / LETTER));
  return shortPath(text, ({ length }) => length <= letters, shared);
}

/** How wide the longest name is. @param {readonly Row[]} rows */
export function widthOf(rows) {
  return 8 + LETTER * rows.reduce((most, row) => Math.max(most, axisName(row).length), 6);
}

/** Names and groups of the rows, as many as can be read. @param {Layout} layout @param {readonly Row[]} rows @param
 * {boolean} grouped whether the rows stand in the model's order @param {Record<string, string>} page colors @returns
 * {Mark[]} */
function rowMarks(layout, rows, grouped, page) {
  const { shown, labels, gutter } = layout;
  if (!shown.length) return [];
  /** @type {Mark[]} */
  const marks = [];
  const shared = sharedBy(rows.map(({ module }) => ({ module: moduleName(module) })));
  const groups = grouped ? groupsOf(rows, shown, shared) : [];
  for (const [place, group] of groups.entries()) {
    const [top, end] = [boxOf(layout, group.from), boxOf(layout, group.to - 1)];
    const tall = Math.max(1, end.y + end.h - top.y - 1);
    marks.push(rect(gutter.x, top.y, gutter.w - 2, tall, place % 2 ? page.quiet : page.line));
  }
  const readable = boxOf(layout, 0).h >= LINE_PX - 2;
  const named =
    groups.length && !readable
      ? groups.map(({ name, from, to }) => ({ text: name || moduleName(""), place: from, middle: (from + to - 1) / 2 }))
      : null;
  let free = -Infinity;
  for (let place = 0; place < (named?.length ?? shown.length); place += 1) {
    const box = boxOf(layout, named ? Math.floor(named[place].middle) : place);
    const y = box.y + box.h / 2;
    if (y < free || y + 5 > layout.plot.y + layout.plot.h + 4) continue;
    const text = shortened(named ? named[place].text : axisName(rows[shown[place]]), labels - 4, shared);
    marks.push(words(labels, y, text, page.quiet, "right", { mono: true }));
    free = y + LINE_PX - 2;
  }
  return marks;
}

/** The axis of steps. @param {Layout} layout @param {Along} along @param {Record<string, string>} page @param {Clock}
 * [clock] what the ticks say @returns {Mark[]} */
function stepMarks(layout, along, page, clock) {
  const { plot } = layout;
  const bottom = plot.y + plot.h;
  const { span } = along;
  return along.ticks(Math.max(1, plot.w / STEP_TICK_PX)).flatMap((step) => {
    const x = xOf(layout, along, step);
    const near = x > plot.x + plot.w - 20 ? "right" : x < plot.x + 16 ? "left" : "center";
    return [
      rect(x - 0.5, bottom, 1, 4, page.quiet),
      words(x, bottom + 12, clock?.text(step, span) ?? count(step), page.quiet, near),
    ];
  });
}

/** Where the axis leaves steps out: a line between two columns, or a notch at the foot if they are too narrow.
 * @param {Layout} layout @param {Along} along @param {Record<string, string>} page @returns {Mark[]} */
function gapMarks({ plot }, along, page) {
  const isWide = plot.w / (along.to - along.from || 1) >= SPLIT_PX;
  return along.marks(plot.w, NOTCH_PX).flatMap((share) => {
    const x = plot.x + share * plot.w - 0.5;
    const notch = rect(x, plot.y + plot.h, 1, 3, page.quiet);
    return isWide ? [rect(x, plot.y, 1, plot.h, page.card), notch] : [notch];
  });
}

/** The color bar, with values at its ticks. @param {Layout} layout @param {Scale} scale @param {Palette} palette @param
 * {boolean} relative @param {Record<string, string>} page @returns {Mark[]} */
function barMarks(layout, scale, palette, relative, page) {
  const { bar } = layout;
  /** @type {Mark[]} */
  const marks = [];
  const height = bar.h / SHADES;
  for (let shade = 0; shade < SHADES; shade += 1) {
    const color = palette.table[Math.round((shade / (SHADES - 1)) * (STEPS - 1))];
    marks.push(rect(bar.x, bar.y + bar.h - (shade + 1) * height, bar.w, height + 0.6, cssOf(color)));
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

/** What no scale holds. @param {Layout} layout @param {string} about what the colors are of @param {Palette} palette
 * @param {Record<string, string>} page @param {boolean} lumped whether NaN and infinities are one kind @param
 * {Along} along @returns {Mark[]} */
function legendMarks(layout, about, palette, page, lumped, along) {
  const y = layout.plot.y + layout.plot.h + 33;
  const entries = /** @type {[string, number, number | null][]} */ ([
    ...(lumped ? [] : [["NaN", palette.nan, palette.nanHatch]]),
    [lumped ? "NaN or Inf" : "Inf", palette.inf, palette.infHatch],
  ]);
  const left = along.packs ? along.words : "blank: not captured";
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
  about = [about, left].filter(Boolean).join(" \u00b7 ");
  const fitting = about.length > room ? `${about.slice(0, room - 1)}\u2026` : about;
  if (room > 12) marks.push(words(layout.plot.x, y, fitting, page.quiet, "left"));
  return marks;
}

const HATCH_PX = 6;

/**
 * @typedef {object} Scene what a picture shows
 * @property {Layout} layout
 * @property {Along} along where steps stand
 * @property {Grid} grid
 * @property {Painter} painter
 * @property {readonly Row[]} rows
 * @property {boolean} grouped
 * @property {boolean} relative
 * @property {string} words what the colors are of
 * @property {Record<string, string>} page colors
 * @property {boolean} lumped whether NaN and infinities are one kind
 * @property {Clock} [clock]
 */

/** All that stands around the cells. @param {Scene} scene */
function marksOf({ layout, along, painter, rows, grouped, relative, words, page, lumped, clock }) {
  return [
    ...rowMarks(layout, rows, grouped, page),
    ...gapMarks(layout, along, page),
    ...stepMarks(layout, along, page, clock),
    ...barMarks(layout, painter.scale, painter.palette, relative, page),
    ...legendMarks(layout, words, painter.palette, page, lumped, along),
  ];
}

export class Texture {
  canvas = document.createElement("canvas");
  #context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));

  /** Repaints cells. @param {Grid} grid @param {Painter} painter @param {[number, number]} cells */
  paint(grid, painter, [from, to]) {
    if (!grid.height) return;
    if (this.canvas.width !== grid.ring || this.canvas.height !== grid.height) {
      this.canvas.width = grid.ring;
      this.canvas.height = grid.height;
    }
    for (const [first, last] of pieces(from, to, grid.ring)) {
      const [image, hatch] = [0, 1].map(() => new ImageData(last - first + 1, grid.height));
      const [pixels, lines] = [image, hatch].map(({ data }) => new Uint32Array(data.buffer));
      const hatched = painter.paint(grid, first, last, pixels, lines);
      this.#context.putImageData(image, first % grid.ring, 0);
      if (hatched || this.#hatched) this.#hatch(grid).putImageData(hatch, first % grid.ring, 0);
    }
  }

  /** @type {CanvasRenderingContext2D | null} the colors of hatches, cell by cell; made when the first one is needed */
  #hatched = null;

  /** @param {Grid} grid */
  #hatch(grid) {
    this.#hatched ??= /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
    const { canvas } = this.#hatched;
    if (canvas.width !== grid.ring || canvas.height !== grid.height)
      Object.assign(canvas, { width: grid.ring, height: grid.height });
    return this.#hatched;
  }

  /** Stretches the shown part to the plot. @param {CanvasRenderingContext2D} context @param {Scene} scene @param
   * {number} ratio device pixels of a CSS pixel */
  blit(context, { layout, grid, along }, ratio) {
    const { plot } = layout;
    if (!grid.height) return;
    context.save();
    context.beginPath();
    context.rect(plot.x, plot.y, plot.w, plot.h);
    context.clip();
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.imageSmoothingEnabled = false;
    this.#stretch(context, this.canvas, { layout, grid, along }, ratio);
    if (this.#hatched)
      context.drawImage(this.#lines(this.#hatched.canvas, { layout, grid, along }, context.canvas, ratio), 0, 0);
    context.restore();
  }

  /** The hatches as lines of one width: drawn in the screen's pixels, for a stretched pattern shows stripes that mean
   * nothing. @param {HTMLCanvasElement} cells @param {Pick<Scene, "layout" | "grid" | "along">} scene @param
   * {HTMLCanvasElement} like @param {number} ratio */
  #lines(cells, scene, like, ratio) {
    const canvas = Object.assign(document.createElement("canvas"), { width: like.width, height: like.height });
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.imageSmoothingEnabled = false;
    this.#stretch(context, cells, scene, ratio);
    context.globalCompositeOperation = "destination-in";
    context.fillStyle = diagonals(context, ratio);
    context.fillRect(0, 0, canvas.width, canvas.height);
    return canvas;
  }

  /** @param {CanvasRenderingContext2D} context @param {HTMLCanvasElement} cells
   * @param {Pick<Scene, "layout" | "grid" | "along">} scene @param {number} ratio */
  #stretch(context, cells, { layout, grid, along }, ratio) {
    const { band, plot } = layout;
    const [top, bottom] = [band.y, band.y + band.h].map((y) => Math.round(y * ratio));
    const each = plot.w / (along.to - along.from || 1);
    for (const [first, last] of pieces(...grid.shown, grid.ring)) {
      const [left, right] = [first, last + 1].map((cell) =>
        Math.round((plot.x + (cell * grid.per - 0.5 - along.from) * each) * ratio),
      );
      const wide = last - first + 1;
      context.drawImage(cells, first % grid.ring, 0, wide, grid.height, left, top, right - left, bottom - top);
    }
  }
}

/** @param {CanvasRenderingContext2D} context @param {number} ratio @returns {CanvasPattern | string} */
function diagonals(context, ratio) {
  const size = Math.round(HATCH_PX * ratio);
  const canvas = Object.assign(document.createElement("canvas"), { width: size, height: size });
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  pen.lineWidth = ratio;
  for (const shift of [-size, 0, size]) {
    pen.moveTo(shift, size);
    pen.lineTo(shift + size, 0);
  }
  pen.stroke();
  return context.createPattern(canvas, "repeat") ?? "transparent";
}

/** Cells in runs that do not go over the ring's end.
 * @param {number} from @param {number} to @param {number} ring @returns {[number, number][]} */
function pieces(from, to, ring) {
  const runs = /** @type {[number, number][]} */ ([]);
  for (let first = from; first <= to; ) {
    const last = Math.min(to, first + ring - 1 - (first % ring));
    runs.push([first, last]);
    first = last + 1;
  }
  return runs;
}

/** Draws a whole picture.
 * @param {CanvasRenderingContext2D} context @param {Texture} texture @param {Scene} scene @param {number} ratio */
export function drawScene(context, texture, scene, ratio) {
  const { width, height } = scene.layout;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  texture.blit(context, scene, ratio);
  drawMarks(context, marksOf(scene));
}

/** @param {Heat} heat */
function titleOf(heat) {
  return [heat.options.title, heat.page.runName].filter(Boolean).join(" \u00b7 ");
}

/** @param {Heat} heat @returns {Promise<Blob>} */
export async function pngOf(heat) {
  const picture = heat.screen.copy();
  const width = Math.max(1, heat.screen.plot.clientWidth);
  const ratio = picture.width / width;
  return titledPng(titleOf(heat), width, picture.height / ratio, ratio, (pen, top) => {
    pen.setTransform(1, 0, 0, 1, 0, top); // pixel by pixel: scaling could lose a row
    pen.drawImage(picture, 0, 0);
  });
}

/** Names, axes, and legend as text; the cells as an embedded picture. @param {Heat} heat */
export function svgOf(heat) {
  const { scene } = heat.screen;
  if (scene === null) throw new Error("the chart is still empty");
  const { width, height, plot } = scene.layout;
  const copy = heat.screen.copy();
  const ratio = copy.width / width;
  const cells = document.createElement("canvas");
  Object.assign(cells, { width: Math.round(plot.w * ratio), height: Math.round(plot.h * ratio) });
  cells.getContext("2d")?.drawImage(copy, -Math.round(plot.x * ratio), -Math.round(plot.y * ratio));
  const image =
    `<image x="${plot.x}" y="${plot.y}" width="${plot.w}" height="${plot.h}" preserveAspectRatio="none" ` +
    `style="image-rendering:pixelated" href="${cells.toDataURL("image/png")}"/>`;
  return titledSvg(titleOf(heat), width, height, image, svgOfMarks(marksOf(scene)));
}

/** Returns the rows from the bottom up, because tables show their end first.
 * @param {Heat} heat @returns {{columns: string[], rows: any[][]}} */
export function tableOf(heat) {
  const { columns, rows, order, span } = heat;
  const named = (/** @type {string} */ value) => [
    heat.noun,
    "type",
    value,
    "smallest",
    "largest",
    "non-finite since step",
  ];
  if (columns === null || !columns.length || span === null) return { columns: named("value"), rows: [] };
  const { held, step } = heat.page.follow;
  const at = held === null ? columns.find(step ?? span[1]) : columns.at(held);
  const names = named(headingOf(heat, columns, at));
  const since = onsets(columns);
  const lines = Array.from(order, (row) => {
    const [low, high] = extremes(columns, row);
    return [
      labelOf(rows[row]),
      rows[row].type ?? "",
      shownValue(heat, cellValue(columns, at, row)),
      low,
      high,
      Number.isFinite(since[row]) ? since[row] : null,
    ];
  });
  return { columns: names, rows: lines.reverse() };
}

/** What the values of a column are. @param {Heat} heat @param {Columns} columns @param {number} i -1 is none */
function headingOf(heat, columns, i) {
  if (i < 0 || columns.first(i) === columns.last(i)) return "value";
  return `${mergedAs(heat)} in steps ${count(columns.first(i))} to ${count(columns.last(i))}`;
}

/** What a value of several steps is. @param {Heat} heat */
export function mergedAs({ options }) {
  return options.merged ?? "largest magnitude";
}

/** The value of a cell; null if it was not captured.
 * @param {Columns} columns @param {number} i -1 is none @param {number} row */
export function cellValue(columns, i, row) {
  return i < 0 || columns.bits(i)[row] === MISSING ? null : columns.value(i, row);
}

/** A value, or words for it if it is unknown whether it is NaN or an infinity.
 * @param {Heat} heat @param {number | null} value */
export function shownValue(heat, value) {
  return heat.options.lumped && value !== null && !Number.isFinite(value) ? "NaN or Inf" : value;
}

/** @param {Columns} columns @param {number} row @returns {[number | null, number | null]} */
function extremes(columns, row) {
  let [low, high] = [Infinity, -Infinity];
  for (let i = 0; i < columns.length; i += 1) {
    const value = columns.value(i, row);
    if (!Number.isFinite(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return low <= high ? [low, high] : [null, null];
}
