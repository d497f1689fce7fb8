/** What a heatmap shows on the screen: its cells, which are drawn in a few milliseconds, its cursor, and its zoom. */
import { Along } from "../along.js";
import { Brush, CanvasChart, fitCanvas, reportDrawn } from "../canvas/chart.js";
import { Painter, paletteOf } from "../canvas/colors.js";
import { worse } from "../canvas/columns.js";
import { h, isAside } from "../dom.js";
import { count, counted, isLocal, number, stepWords } from "../format.js";
import { Range, Scale } from "../scale.js";
import { colors } from "../theme.js";
import { Grid, relativeTo, usualOf } from "./grid.js";
import { cellValue, drawScene, mergedAs, shownValue, Texture, widthOf } from "./picture.js";
import { boxOf, labelOf, layOut, pixelAt, ROW_PX, stepAt, xOf } from "./rows.js";

/** @import { Box } from "../canvas/chart.js"
 * @import { Columns } from "../canvas/columns.js"
 * @import { Heat } from "./heat.js"
 * @import { Scene } from "./picture.js"
 * @import { Layout } from "./rows.js"
 * @import { Page } from "../page.js" */

/** @param {CanvasRenderingContext2D} pen @param {Screen} screen @param {Scene} scene */
function drawCursor(pen, screen, scene) {
  const { page, heat } = screen;
  const { plot } = scene.layout;
  const held = page.state.get("step");
  if (held !== "" && held !== undefined) drawStep(pen, scene, Number(held), 0.9);
  const { drawer = "", module: picked = new URLSearchParams(drawer).get("module") } = page.state.values;
  const marked = heat.rows.findIndex((row) => row.module === picked);
  drawMark(pen, scene, screen.placeOf(marked));
  const { module, tap, step } = page.cursor.point;
  if (step !== null && step !== undefined) drawStep(pen, scene, step, 0.6);
  const named = heat.rows.findIndex((row) =>
    tap === null || tap === undefined ? row.module === module : row.number === tap,
  );
  const row = screen.at?.row ?? (named >= 0 ? named : heat.rows.findIndex((other) => other.module === module));
  const place = module === null || module === undefined || row < 0 ? -1 : screen.placeOf(row);
  if (place < 0) return;
  const box = boxOf(scene.layout, place);
  outline(pen, scene, plot.x, box.y, plot.w, Math.max(2, box.h));
}

/** Light on dark and dark on light: seen on every color. @param {CanvasRenderingContext2D} pen @param {Scene} scene
 * @param {number} x @param {number} y @param {number} w @param {number} h */
function outline(pen, { page }, x, y, w, h) {
  pen.lineWidth = 3;
  pen.strokeStyle = page.card;
  pen.strokeRect(x, y - 0.5, w, h + 1);
  pen.lineWidth = 1;
  pen.strokeStyle = page.ink;
  pen.strokeRect(x, y - 0.5, w, h + 1);
}

/** @param {CanvasRenderingContext2D} pen @param {Scene} scene @param {number} step @param {number} alpha */
function drawStep(pen, { layout, along, page }, step, alpha) {
  if (step < along.span[0] || step > along.span[1]) return;
  const { plot } = layout;
  const x = Math.min(plot.x + plot.w - 1, Math.max(plot.x, xOf(layout, along, step)));
  pen.globalAlpha = alpha;
  for (const [width, color] of /** @type {[number, string][]} */ ([
    [3, page.card],
    [1, page.ink],
  ])) {
    pen.fillStyle = color;
    pen.fillRect(x - width / 2, plot.y, width, plot.h + 4);
  }
  pen.globalAlpha = 1;
}

/** A triangle at the picked layer. @param {CanvasRenderingContext2D} pen @param {Scene} scene @param {number} place */
function drawMark(pen, scene, place) {
  if (place < 0) return;
  const { y, h } = boxOf(scene.layout, place);
  const { plot } = scene.layout;
  pen.fillStyle = scene.page.accent;
  pen.beginPath();
  pen.moveTo(plot.x, y + h / 2);
  pen.lineTo(plot.x - 8, y + h / 2 - 5);
  pen.lineTo(plot.x - 8, y + h / 2 + 5);
  pen.fill();
}

const TURN_ZOOM = 1.25;
const KEY_ZOOM = 1.5;
const PAN = 0.05; // of the shown part
const MIN_STEPS = 2; // steps between the first and the last
const RENEWED = 8; // how often in a window the medians of the rows are computed again

/** @typedef {{row: number, step: number, sharing: number, isName?: boolean}} Point a row of the data */

/** @extends {CanvasChart<Point>} */
export class Screen extends CanvasChart {
  grid = new Grid();
  texture = new Texture();
  /** @type {Scene | null} the scene drawn last */
  scene = null;
  /** @type {Layout | null} */
  layout = null;
  #coloring = new Coloring();
  #relative = { at: 0, convert: /** @type {((bits: Uint32Array) => Uint32Array) | null} */ (null) };
  #news = false;

  /** @param {Page} page @param {Heat} heat @param {HTMLElement} plot */
  constructor(page, heat, plot) {
    plot.classList.add("heat");
    plot.replaceChildren();
    const { noun } = heat;
    const keys = `Arrow keys move between ${noun}s and steps, Enter selects the ${noun}, plus and minus zoom.`;
    const spacer = h("div", { class: "heat-spacer" });
    const pad = h("div", { class: "heat-pad" }, spacer);
    super(page, plot, { label: `${heat.options.title}. ${keys}`, name: "heat-picture", pad });
    this.heat = heat;
    this.plot = plot;
    this.spacer = spacer;
    this.over = /** @type {HTMLCanvasElement} */ (h("canvas", { class: "heat-over" }));
    this.canvas.after(this.over);
    this.context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    this.drag = this.brush = new Brush(pad, {
      draw: () => this.mark(),
      take: (box, wide, high) => this.#zoomTo(box, wide, high),
    });
    pad.addEventListener("auxclick", (event) => isAside(event) && this.choose(this.under(event), event));
    pad.addEventListener("scroll", () => this.arrange());
    pad.addEventListener("wheel", (event) => this.#turn(event), { passive: false });
  }

  /** @override */
  draw() {
    super.draw();
    this.heat.card?.soon();
  }

  /** Computes the layout again: the rows or the size have changed. */
  arrange() {
    this.layout = null;
    this.draw();
  }

  /** Computes all cells again. */
  forget() {
    this.grid.forget();
    this.#relative.convert = null;
    this.draw();
  }

  forgetRange() {
    this.#coloring.forget();
  }

  /** @param {[number, number] | null} steps null: any */
  changed(steps) {
    if (steps === null) this.forget();
    else this.grid.changed(steps);
    this.#news = true;
    this.draw();
  }

  /** @override */
  resized() {
    this.arrange();
  }

  /** @override */
  recolored() {
    this.#coloring.painter = null;
    this.draw();
  }

  /** @override */
  paint() {
    const began = performance.now();
    const { heat, grid, texture } = this;
    const { columns, span } = heat;
    if (columns === null || span === null || !this.plot.clientWidth) return;
    const ratio = globalThis.devicePixelRatio || 1;
    const layout = this.layout ?? this.#layOut(ratio);
    const along = new Along(columns, span, this.page.clock.packs);
    if (along.packs !== this.scene?.along.packs) grid.forget();
    grid.show(...along.cells, Math.floor(layout.plot.w * Math.min(1, ratio)));
    const fresh = grid.fill(columns, along, this.#convert(columns));
    const before = this.#coloring.painter;
    const painter = this.#coloring.choose(heat, grid, began);
    if (painter !== before && grid.have) texture.paint(grid, painter, grid.have);
    else if (fresh) texture.paint(grid, painter, fresh);
    const { rows, grouped, relative, words } = heat;
    this.scene = {
      layout,
      along,
      grid,
      painter,
      rows,
      grouped,
      relative,
      words,
      lumped: heat.options.lumped ?? false,
      page: colors(),
      clock: this.page.clock,
    };
    drawScene(this.context, texture, this.scene, ratio);
    this.paintCursor();
    if (this.#news && columns.length) reportDrawn("heat", columns.last(columns.length - 1), performance.now() - began);
    this.#news = false;
  }

  /** @param {number} ratio */
  #layOut(ratio) {
    const { visible: order, fit } = this.heat;
    const { clientWidth, clientHeight } = this.plot;
    for (const canvas of [this.canvas, this.over]) fitCanvas(canvas, clientWidth, clientHeight, ratio);
    const layout = layOut(
      clientWidth,
      clientHeight,
      order,
      fit,
      Math.round(this.pad.scrollTop / ROW_PX),
      widthOf(this.heat.rows),
      Math.min(1, ratio),
    );
    const more = layout.content - layout.plot.h;
    this.spacer.style.height = `${clientHeight + more}px`;
    this.pad.classList.toggle("scrolls", more > 0);
    this.grid.shape(layout.starts, layout.shown);
    this.layout = layout;
    return layout;
  }

  /** @param {Columns} columns */
  #convert(columns) {
    if (!this.heat.relative) return null;
    const held = this.#relative;
    if (held.convert === null || columns.version - held.at > columns.capacity / RENEWED) {
      Object.assign(held, { at: columns.version, convert: relativeTo(usualOf(columns)) });
      this.grid.forget();
    }
    return held.convert;
  }

  /** Returns a copy of the picture. @returns {HTMLCanvasElement} */
  copy() {
    const canvas = document.createElement("canvas");
    Object.assign(canvas, { width: this.canvas.width, height: this.canvas.height });
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.fillStyle = colors().card;
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(this.canvas, 0, 0);
    return canvas;
  }

  /** Of the rows that share a pixel, the worst one. @override @param {number} x @param {number} y
   * @returns {Point | null} */
  find(x, y) {
    const { scene, heat } = this;
    const { columns } = heat;
    if (!scene || !columns?.length) return null;
    const { layout, along } = scene;
    const pixel = pixelAt(layout, y);
    if (pixel < 0 || x > layout.plot.x + layout.plot.w) return null;
    const isName = x < layout.plot.x;
    const step = isName ? (this.page.follow.step ?? along.span[1]) : stepAt(layout, along, x);
    const rows = layout.shown.subarray(layout.starts[pixel], layout.starts[pixel + 1]);
    const i = columns.at(step);
    let row = rows[0];
    const bits = i < 0 ? null : columns.bits(i);
    if (bits) for (const other of rows) if (worse(bits[row], bits[other]) !== bits[row]) row = other;
    return { row, step, sharing: rows.length, isName };
  }

  /** The first layer, at the current step. @override @returns {Point | null} */
  start() {
    const { span, visible } = this.heat;
    if (span === null || !visible.length) return null;
    const step = Math.min(span[1], Math.max(span[0], this.page.follow.step ?? span[1]));
    return { row: visible[0], step: this.heat.stopAt(step), sharing: 1 };
  }

  /** @override @param {Point} at @param {number} right @param {number} up @returns {Point | null} */
  next(at, right, up) {
    const { heat } = this;
    const { span, visible } = heat;
    if (span === null) return null;
    const place = Math.min(visible.length - 1, Math.max(0, visible.indexOf(at.row) - up));
    const step = Number.isFinite(right) ? heat.stopAt(at.step, right) : heat.stopAt(span[right > 0 ? 1 : 0]);
    return { row: visible[place], step, sharing: 1 };
  }

  /** @override @param {Point} at */
  scrollTo({ row }) {
    const layout = this.scene?.layout;
    const place = this.heat.visible.indexOf(row);
    if (!layout || layout.content <= layout.plot.h) return;
    const room = layout.shown.length;
    const first = Math.round(this.pad.scrollTop / ROW_PX);
    if (place < first) this.pad.scrollTop = place * ROW_PX;
    else if (place >= first + room) this.pad.scrollTop = (place - room + 1) * ROW_PX;
  }

  /** @override @param {Point} at @returns {[number, number]} */
  cornerOf({ row, step }) {
    const { scene } = this;
    const place = this.placeOf(row);
    if (!scene || place < 0) return [0, 0];
    return [xOf(scene.layout, scene.along, step - 0.5), boxOf(scene.layout, place).y];
  }

  /** Returns the position of a row among the shown ones; -1 if it is hidden. @param {number} row */
  placeOf(row) {
    return this.scene?.layout.shown.indexOf(row) ?? -1;
  }

  /** @override @param {Point} at */
  wordsOf(at) {
    return wordsOf(this.heat, at);
  }

  /** @override @param {Point} at */
  spokenOf({ row, step }) {
    const { columns, rows } = this.heat;
    const value = columns && cellValue(columns, columns.at(step), row);
    return `${labelOf(rows[row])}, step ${step}, ${value === null ? "not captured" : number(value)}`;
  }

  /** @override @param {Point} at */
  cursorOf({ row, step }) {
    const { module, number: tap } = this.heat.rows[row];
    return { module, tap, step };
  }

  /** A click on a name, on a cell, or for another tab. @override @param {Point | null} at
   * @param {MouseEvent | KeyboardEvent} event */
  choose(at, event) {
    if (at === null) return;
    const { heat, page } = this;
    const { onName, onAside, onPick } = heat.options;
    const row = heat.rows[at.row];
    const isElsewhere = isAside(/** @type {MouseEvent} */ (event));
    if (onAside && isElsewhere) return onAside(row, at.isName ? null : heat.stopAt(at.step));
    if (/** @type {MouseEvent} */ (event).button > 0) return;
    if (at.isName && onName) return onName(row);
    const step = at.step === page.follow.held ? at.step : heat.stopAt(at.step);
    page.cursor.pin({ module: row.module, tap: row.number, step });
    onPick?.(row, step);
  }

  /** Zooms to the steps and the rows in a box. @param {Box} box @param {boolean} wide @param {boolean} high */
  #zoomTo({ left, right, top, bottom }, wide, high) {
    if (!this.scene) return;
    const { layout, along } = this.scene;
    const { plot, starts, shown } = layout;
    const inside = (/** @type {number} */ y) => Math.min(plot.y + plot.h - 1, Math.max(plot.y, y));
    const [first, last] = [top, bottom].map((y) => pixelAt(layout, inside(y)));
    const rows = first < 0 || last < 0 ? [] : shown.subarray(starts[first], starts[last + 1]);
    if (high && rows.length && rows.length < this.heat.visible.length) this.heat.zoomRows(rows);
    const [from, to] = [left, right].map((x) => stepAt(layout, along, x));
    if (wide && to > from) this.page.follow.zoom(from, to);
  }

  /** The wheel zooms with Ctrl (so do two fingers), and moves along the steps sideways; else the page scrolls.
   * @param {WheelEvent} event */
  #turn(event) {
    if (!this.scene) return;
    const { layout, along } = this.scene;
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    const x = event.clientX - this.plot.getBoundingClientRect().left;
    if (event.ctrlKey || event.metaKey)
      this.#zoom(event.deltaY > 0 ? TURN_ZOOM : 1 / TURN_ZOOM, stepAt(layout, along, x));
    else if (event.shiftKey || Math.abs(sideways) > Math.abs(event.deltaY)) this.#pan(Math.sign(sideways) * PAN);
    else return;
    event.preventDefault();
  }

  /** @param {number} factor @param {number} around a step */
  #zoom(factor, around) {
    const span = this.scene?.along.span;
    if (!span) return;
    const { follow } = this.page;
    const from = Math.max(0, around - (around - span[0]) * factor);
    const to = Math.min(follow.newest ?? span[1], around + (span[1] - around) * factor);
    if (to - from >= MIN_STEPS) follow.zoom(from, to);
  }

  /** @param {number} share of the shown part */
  #pan(share) {
    const span = this.scene?.along.span;
    const { newest } = this.page.follow;
    if (!span || newest === null) return;
    const by = Math.max(-span[0], Math.min(newest - span[1], Math.round((span[1] - span[0] + 1) * share)));
    if (by) this.page.follow.zoom(span[0] + by, span[1] + by);
  }

  /** @override @param {KeyboardEvent} event */
  press(event) {
    if (event.key !== "+" && event.key !== "-") return super.press(event);
    this.#zoom(event.key === "-" ? KEY_ZOOM : 1 / KEY_ZOOM, this.at?.step ?? this.start()?.step ?? 0);
    return true;
  }

  /** Draws the layer and the step that the reader points at, here or in another chart. @override */
  paintCursor() {
    const { scene, over } = this;
    if (!scene) return;
    const pen = /** @type {CanvasRenderingContext2D} */ (over.getContext("2d"));
    const ratio = over.width / Math.max(1, scene.layout.width);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, scene.layout.width, scene.layout.height);
    drawCursor(pen, this, scene);
    this.brush.show(pen, scene.layout.plot);
  }
}

const MIN_DECADES = 0.3; // of a relative scale: a factor of two to each side

/** The current colors: the range of the shown values, stable under small changes; the scale; the map. */
class Coloring {
  /** The one that was chosen last; null where the colors are others. @type {Painter | null} */
  painter = null;
  #range = new Range();

  /** Forgets the range, which belongs to another quantity. */
  forget() {
    this.#range.forget();
  }

  /** Returns the painter, which is the same one as long as its colors hold.
   * @param {Heat} heat @param {Grid} grid @param {number} now */
  choose({ kind, range, relative }, grid, now) {
    const shown = relative ? "linear" : kind;
    const ends = range ?? this.#range.held(now) ?? this.#range.of(grid.sample(), shown, now);
    const signed = relative || (shown !== "log" && ends[0] < 0 && ends[1] > 0);
    const most = Math.max(relative ? MIN_DECADES : 0, Math.abs(ends[0]), Math.abs(ends[1]));
    const scale = signed ? new Scale(shown, -most, most) : new Scale(shown, ...ends);
    if (this.painter?.scale.equals(scale)) return this.painter;
    this.painter = new Painter(scale, paletteOf(signed));
    return this.painter;
  }
}

/** Describes a cell: the layer, the step, the value. @param {Heat} heat @param {Point} point */
export function wordsOf(heat, point) {
  const { columns, rows } = heat;
  const row = rows[point.row];
  const i = columns?.at(point.step) ?? -1;
  const value = columns ? cellValue(columns, i, point.row) : null;
  const shown = shownValue(heat, value);
  const words = typeof shown === "number" ? number(shown) : shown;
  const reading =
    words === null
      ? "not captured"
      : [heat.options.stat ?? "", words, isLocal(heat.options.kind ?? "") ? "(local)" : ""].join(" ").trim();
  const isMerged = columns && i >= 0 && columns.first(i) !== columns.last(i);
  const merged = isMerged && Number.isFinite(value) ? `, the ${mergedAs(heat)} of these steps` : "";
  const step = columns && i >= 0 ? stepWords(columns.first(i), columns.last(i)) : `step ${count(point.step)}`;
  const before = columns && i > 0 ? columns.first(i) - columns.last(i - 1) - 1 : 0;
  const left = before > 0 ? `\n${counted(before, "step")} before it left out` : "";
  const many =
    point.sharing > 1
      ? `\nthe worst of ${point.sharing} ${heat.noun}s here`
      : row.group > 1
        ? `\nthe worst of the next ${row.group} ${heat.noun}s`
        : "";
  return `${labelOf(row)}${row.type ? ` (${row.type})` : ""}\n${step} \u00b7 ${reading}${merged}${left}${many}`;
}
