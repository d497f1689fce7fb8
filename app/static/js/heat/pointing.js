/** The reader's pointer and keys on a heatmap: what is there, one cursor with other charts, zoom. */
import { Brush, movedBy } from "../canvas/chart.js";
import { worse } from "../canvas/columns.js";
import { isAside } from "../dom.js";
import { count, isLocal, number, stepWords } from "../format.js";
import { hideTip, showTip } from "../popup.js";
import { cellValue, mergedAs, shownValue } from "./picture.js";
import { boxOf, labelOf, pixelAt, ROW_PX, stepAt, xOf } from "./rows.js";

/** @import { Box } from "../canvas/chart.js"
 * @import { Columns } from "../canvas/columns.js"
 * @import { Heat, Screen } from "./heat.js"
 * @import { Scene } from "./picture.js"
 * @import { Page } from "../page.js" */

/** @param {CanvasRenderingContext2D} pen @param {Pointing} pointing @param {Scene} scene */
function drawCursor(pen, pointing, scene) {
  const { page, heat } = pointing;
  const { plot } = scene.layout;
  const held = page.state.get("step");
  if (held !== "" && held !== undefined) drawStep(pen, scene, Number(held), 0.9);
  const { module: picked } = page.state.values; // "" is the root
  if (picked !== undefined)
    drawMark(
      pen,
      pointing,
      scene,
      heat.rows.findIndex((row) => row.module === picked),
    );
  const { module, tap, step } = page.cursor.point;
  if (step !== null && step !== undefined) drawStep(pen, scene, step, 0.6);
  const named = heat.rows.findIndex((row) =>
    tap === null || tap === undefined ? row.module === module : row.number === tap,
  );
  const row = pointing.at?.row ?? (named >= 0 ? named : heat.rows.findIndex((each) => each.module === module));
  const place = module === null || module === undefined || row < 0 ? -1 : pointing.placeOf(row);
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
function drawStep(pen, { layout, span, page }, step, alpha) {
  if (step < span[0] || step > span[1]) return;
  const { plot } = layout;
  const [left, right] = [xOf(layout, span, step), xOf(layout, span, step + 1)];
  const x = Math.min(plot.x + plot.w - 1, Math.max(plot.x, (left + right) / 2));
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

/** A triangle at the picked layer. @param {CanvasRenderingContext2D} pen @param {Pointing} pointing @param {Scene}
 * scene @param {number} row */
function drawMark(pen, pointing, scene, row) {
  const place = row < 0 ? -1 : pointing.placeOf(row);
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
const PAN = 0.05; // of the shown part
const MIN_STEPS = 2; // steps between the first and the last

/** The wheel zooms with Ctrl (so do two fingers), and moves along the steps sideways; else the page scrolls.
 * @param {WheelEvent} event @param {Pointing} pointing @param {number} x */
function turn(event, pointing, x) {
  const { scene } = pointing.screen;
  if (!scene) return;
  const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
  if (event.ctrlKey || event.metaKey)
    zoom(pointing, event.deltaY > 0 ? TURN_ZOOM : 1 / TURN_ZOOM, stepAt(scene.layout, scene.span, x));
  else if (event.shiftKey || Math.abs(sideways) > Math.abs(event.deltaY)) pan(pointing, Math.sign(sideways) * PAN);
  else return;
  event.preventDefault();
}

/** @param {Pointing} pointing @param {number} factor @param {number} around a step */
function zoom({ screen, page }, factor, around) {
  const span = screen.scene?.span;
  if (!span) return;
  const from = Math.max(0, around - (around - span[0]) * factor);
  const to = Math.min(page.follow.newest ?? span[1], around + (span[1] - around) * factor);
  if (to - from >= MIN_STEPS) page.follow.zoom(from, to);
}

/** @param {Pointing} pointing @param {number} share of the shown part */
function pan({ screen, page }, share) {
  const span = screen.scene?.span;
  const newest = page.follow.newest;
  if (!span || newest === null) return;
  const by = Math.max(-span[0], Math.min(newest - span[1], Math.round((span[1] - span[0] + 1) * share)));
  if (by) page.follow.zoom(span[0] + by, span[1] + by);
}

const READ_MS = 400; // a key that is held down is read once, at its end
const KEY_ZOOM = 1.5;

/** @type {ReturnType<typeof setTimeout> | undefined} */
let reading;

/** @param {KeyboardEvent} event @param {Pointing} pointing */
export function moveBy(event, pointing) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const [right, up] = movedBy(event);
  if (right || up) go(pointing, -up, right);
  else if (event.key === "Home" || event.key === "End") jump(pointing, event.key === "End");
  else if (event.key === "+" || event.key === "-")
    zoom(pointing, event.key === "-" ? KEY_ZOOM : 1 / KEY_ZOOM, start(pointing)?.step ?? 0);
  else if (event.key === "Enter") pointing.pick(pointing.at);
  else return;
  event.preventDefault();
  event.stopPropagation();
}

/** The current position; at first the first layer, at the current step. @param {Pointing} pointing */
function start({ at, heat, page }) {
  const span = heat.span;
  if (at !== null) return at;
  if (span === null || !heat.visible.length) return null;
  return { row: heat.visible[0], step: Math.min(span[1], Math.max(span[0], page.follow.step ?? span[1])), sharing: 1 };
}

/** @param {Pointing} pointing @param {number} rows @param {number} steps */
function go(pointing, rows, steps) {
  const { heat } = pointing;
  const from = start(pointing);
  if (from === null) return;
  const begun = pointing.at === null;
  const place = Math.min(heat.visible.length - 1, Math.max(0, heat.visible.indexOf(from.row) + (begun ? 0 : rows)));
  reveal(pointing, place);
  pointing.point({ row: heat.visible[place], step: heat.stopAt(from.step, begun ? 0 : steps), sharing: 1 });
  read(pointing);
}

/** @param {Pointing} pointing @param {boolean} end */
function jump(pointing, end) {
  const span = pointing.heat.span;
  const from = start(pointing);
  if (span === null || from === null) return;
  pointing.point({ ...from, step: pointing.heat.stopAt(span[end ? 1 : 0]), sharing: 1 });
  read(pointing);
}

/** Scrolls to a row. @param {Pointing} pointing @param {number} place */
function reveal({ heat, screen }, place) {
  const layout = screen.scene?.layout;
  if (!layout || layout.content <= layout.plot.h || place < layout.pinned) return;
  const room = layout.shown.length - layout.pinned;
  const first = Math.round(screen.pad.scrollTop / ROW_PX);
  const wanted = place - heat.pinned;
  if (wanted < first) screen.pad.scrollTop = wanted * ROW_PX;
  else if (wanted >= first + room) screen.pad.scrollTop = (wanted - room + 1) * ROW_PX;
}

/** @param {Pointing} pointing */
function read(pointing) {
  clearTimeout(reading);
  reading = setTimeout(() => {
    const { at, heat, page } = pointing;
    if (at === null || !heat.columns) return;
    const value = cellValue(heat.columns, heat.columns.at(at.step), at.row);
    page.announce(`${labelOf(heat.rows[at.row])}, step ${at.step}, ${value === null ? "not captured" : number(value)}`);
  }, READ_MS);
}

/** @typedef {{row: number, step: number, sharing: number}} Point a row of the data */

export class Pointing {
  /** Where the reader points. @type {Point | null} */
  at = null;

  /** @param {Page} page @param {Heat} heat @param {Screen} screen */
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

  /** Zooms to the steps and the rows in a box. @param {Box} box @param {boolean} wide @param {boolean} high */
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

/** Describes a cell: the layer, the step, the value. @param {Heat} heat @param {Point} point */
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

/** @param {Columns} columns @param {number} i @param {number} step */
function stepsOf(columns, i, step) {
  const [first, last] = [columns.first(i), columns.last(i)];
  const steps = stepWords(first, last);
  const within = step <= last && (last > first || first === step);
  return within ? steps : `step ${count(step)}: not captured; nearest earlier value, from ${steps}`;
}
