// @ts-check
/** The reader's hand on a heatmap: the cell under the pointer, one cursor with the other charts, picking, and
 * zooming. */
import { Brush } from "../canvas/brush.js";
import { hideTip, showTip } from "../canvas/tip.js";
import { worse } from "../canvas/worst.js";
import { isAside } from "../dom.js";
import { count, number, stepWords } from "../format.js";
import { isLocal } from "../kinds.js";
import { cellValue, mergedAs, shownValue } from "./export.js";
import { moveBy } from "./keys.js";
import { boxOf, pixelAt, stepAt, xOf } from "./layout.js";
import { drawCursor } from "./overlay.js";
import { labelOf } from "./rows.js";
import { turn } from "./zoom.js";

/** @typedef {{row: number, step: number, sharing: number}} Point a row of the data */

export class Pointing {
  /** Where the reader points. @type {Point | null} */
  at = null;

  /** @param {import("../page.js").Page} page @param {import("./index.js").Heat} heat
   * @param {import("./screen.js").Screen} screen */
  constructor(page, heat, screen) {
    this.page = page;
    this.heat = heat;
    this.screen = screen;
    const { pad } = screen;
    this.brush = new Brush(pad, { draw: () => this.draw(), take: (box, wide, high) => this.#zoom(box, wide, high) });
    pad.addEventListener("pointermove", (event) => this.#move(event));
    pad.addEventListener("click", (event) => this.#open(event));
    pad.addEventListener("auxclick", (event) => isAside(event) && this.#open(event));
    pad.addEventListener("pointercancel", () => this.#leave());
    pad.addEventListener("pointerleave", () => this.#leave());
    pad.addEventListener("wheel", (event) => turn(event, this, this.#placeOf(event).offsetX), { passive: false });
    pad.addEventListener("keydown", (event) => moveBy(event, this));
    pad.addEventListener("blur", () => this.#leave());
    page.cursor.on("move", (point) => {
      if (point.source !== this) this.draw();
    });
  }

  /** What is at a place of the picture: of the rows that share a pixel, the worst one.
   * @param {{offsetX: number, offsetY: number}} place @returns {Point | null} */
  find({ offsetX, offsetY }) {
    const { scene } = this.screen;
    const { columns } = this.heat;
    if (!scene || !columns?.length) return null;
    const { layout, span } = scene;
    const pixel = pixelAt(layout, offsetY);
    if (pixel < 0 || offsetX > layout.plot.x + layout.plot.w) return null;
    const step = offsetX < layout.plot.x ? (this.page.follow.step ?? span[1]) : stepAt(layout, span, offsetX);
    const rows = layout.shown.subarray(layout.starts[pixel], layout.starts[pixel + 1]);
    const bits = columns.bits(Math.max(0, columns.find(step)));
    let row = rows[0];
    for (const each of rows) if (worse(bits[row], bits[each]) !== bits[row]) row = each;
    return { row, step, sharing: rows.length };
  }

  /** @param {PointerEvent} event */
  #move(event) {
    if (this.brush.box) hideTip();
    else this.point(this.find(this.#placeOf(event)), event.clientX, event.clientY);
  }

  /** In the picture, whatever is scrolled. @param {MouseEvent} event */
  #placeOf(event) {
    const box = this.screen.plot.getBoundingClientRect();
    return { offsetX: event.clientX - box.left, offsetY: event.clientY - box.top };
  }

  /** Points there, for all charts.
   * @param {Point | null} point @param {number} [x] @param {number} [y] of the tip, in the window */
  point(point, x, y) {
    this.at = point;
    if (point === null) return hideTip();
    const row = this.heat.rows[point.row];
    this.page.cursor.move({ module: row.module, tap: row.number, step: point.step }, this);
    this.draw();
    const [left, top] = x === undefined || y === undefined ? this.#corner(point) : [x, y];
    showTip(wordsOf(this.heat, point), left, top);
  }

  /** @param {Point} point @returns {[number, number]} */
  #corner(point) {
    const box = this.screen.plot.getBoundingClientRect();
    const place = this.placeOf(point.row);
    const { scene } = this.screen;
    if (!scene || place < 0) return [box.left, box.top];
    return [box.left + xOf(scene.layout, scene.span, point.step), box.top + boxOf(scene.layout, place).y];
  }

  /** The position of a row among the shown ones; -1 if it is hidden. @param {number} row */
  placeOf(row) {
    return this.screen.scene?.layout.shown.indexOf(row) ?? -1;
  }

  /** Zooms to the steps and the rows in a box.
   * @param {import("../canvas/brush.js").Box} box @param {boolean} wide @param {boolean} high */
  #zoom({ left, right, top, bottom }, wide, high) {
    const { scene } = this.screen;
    if (!scene) return;
    const { layout, span } = scene;
    const { plot, starts, shown } = layout;
    const inside = (/** @type {number} */ y) => Math.min(plot.y + plot.h - 1, Math.max(plot.y, y));
    const [first, last] = [top, bottom].map((y) => pixelAt(layout, inside(y)));
    const rows = first < 0 || last < 0 ? [] : shown.subarray(starts[first], starts[last + 1]);
    if (high && rows.length && rows.length < this.heat.visible.length) this.heat.zoomRows(rows);
    const [from, to] = [left, right].map((x) => stepAt(layout, span, x));
    if (wide && to > from) this.page.follow.zoom(from, to);
  }

  /** A click: in another tab, on a name, or on a cell. @param {MouseEvent} event */
  #open(event) {
    const { onName, onAside } = this.heat.options;
    const place = this.#placeOf(event);
    const point = this.find(place);
    if (point === null) return;
    const row = this.heat.rows[point.row];
    const isName = place.offsetX < (this.screen.scene?.layout.plot.x ?? 0);
    if (onAside && isAside(event)) onAside(row, isName ? null : this.heat.stopAt(point.step));
    else if (event.button !== 0) return;
    else if (onName && isName) onName(row);
    else this.pick(point);
  }

  /** The reader means this one. @param {Point | null} point */
  pick(point) {
    if (point === null) return;
    const { heat, page } = this;
    const row = heat.rows[point.row];
    const step = point.step === page.follow.held ? point.step : heat.stopAt(point.step);
    page.cursor.pin({ module: row.module, tap: row.number, step });
    heat.options.onPick?.(row, step);
  }

  #leave() {
    hideTip();
    if (this.at !== null) this.page.cursor.move({ module: null, tap: null, step: null }, this);
    this.at = null;
    this.draw();
  }

  /** The cursor over the picture: the layer and the step that are pointed at, here or in another chart. */
  draw() {
    const { scene, over } = this.screen;
    if (!scene) return;
    const pen = /** @type {CanvasRenderingContext2D} */ (over.getContext("2d"));
    const ratio = over.width / Math.max(1, scene.layout.width);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, scene.layout.width, scene.layout.height);
    drawCursor(pen, this, scene);
    this.brush.show(pen, scene.layout.plot);
  }
}

/** Describes a cell: the layer, the step, the value.
 * @param {import("./index.js").Heat} heat @param {Point} point */
export function wordsOf(heat, point) {
  const { columns, rows } = heat;
  const row = rows[point.row];
  const i = columns?.find(point.step) ?? -1;
  const value = columns ? cellValue(columns, i, point.row) : null;
  const shown = shownValue(heat, value);
  const words = typeof shown === "number" ? number(shown) : shown;
  const said =
    words === null
      ? "not captured"
      : [heat.options.stat ?? "", words, isLocal(heat.options.kind ?? "") ? "(local)" : ""].join(" ").trim();
  const isMerged = columns && i >= 0 && columns.first(i) !== columns.last(i);
  const merged = isMerged && Number.isFinite(value) ? `, the ${mergedAs(heat)} of these steps` : "";
  const step = columns && i >= 0 ? stepsOf(columns, i, point.step) : `step ${count(point.step)}`;
  const many =
    point.sharing > 1
      ? `\nthe worst of ${point.sharing} ${heat.noun}s here`
      : row.group > 1
        ? `\nthe worst of the next ${row.group} ${heat.noun}s`
        : "";
  return `${labelOf(row)}${row.type ? ` (${row.type})` : ""}\n${step} \u00b7 ${said}${merged}${many}`;
}

/** @param {import("../canvas/columns.js").Columns} columns @param {number} i @param {number} step */
function stepsOf(columns, i, step) {
  const [first, last] = [columns.first(i), columns.last(i)];
  const steps = stepWords(first, last);
  const within = step <= last && (last > first || first === step);
  return within ? steps : `step ${count(step)}: not captured; nearest earlier value, from ${steps}`;
}
