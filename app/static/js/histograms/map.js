/** One layer's histograms over steps: signed-log values upwards, and the share of a step's values as the color. It is
 * painted once, and composed with its axes whenever the cursor moves. */
import { Along, sideBySide } from "../along.js";
import { Brush, CanvasChart, fitCanvas, pixelRatio } from "../canvas/chart.js";
import { paletteOf, pixelOf } from "../canvas/colors.js";
import { stopAt } from "../canvas/columns.js";
import { makeButton } from "../dom.js";
import { number } from "../format.js";
import { Scale, ticks } from "../scale.js";
import { colors } from "../theme.js";
import { paint, STRIP } from "./paint.js";
import { axisOf, say, shapeOf, stopsOf, tableOf } from "./shape.js";

/** @import { Histograms } from "../answers.js"
 * @import { Box } from "../canvas/chart.js"
 * @import { Shape } from "./shape.js"
 * @import { Page } from "../page.js" */

const LEFT = 52;
const BOTTOM = 16;
const LETTERS = 11;
const TICK_PX = 80;
const SPLIT_PX = 6; // narrower columns are not split by lines
const NOTCH_PX = 3;

/** @typedef {{width: number, height: number, ratio: number}} Size in CSS pixels, and device pixels for each */

/** Where a value stands, in CSS pixels from the top. @param {Scale} axis @param {number} value @param {Size} size */
function topOf(axis, value, { height, ratio }) {
  return STRIP / ratio + (1 - axis.place(value)) * (height - BOTTOM - (2 * STRIP) / ratio);
}

/** Draws the values on the left. @param {CanvasRenderingContext2D} pen @param {Scale} axis @param {Size} size */
function drawValues(pen, axis, size) {
  let free = Infinity;
  for (const value of ticks(axis, Math.max(2, Math.floor(size.height / 28)))) {
    const y = topOf(axis, value, size);
    if (free - y < LETTERS) continue;
    free = y;
    pen.fillText(number(value, { digits: 1 }), LEFT - 7, Math.max(6, Math.min(size.height - BOTTOM - 5, y)));
    pen.fillRect(LEFT - 4, Math.round(y), 3, 1);
  }
}

/** @param {CanvasRenderingContext2D} pen @param {number} step @param {Along} along @param {Size} size */
function drawCursor(pen, step, along, { width, height }) {
  if (step < along.span[0] || step > along.span[1]) return;
  const x = Math.floor(LEFT + along.share(step) * (width - LEFT));
  // Two lines: one of them is seen on every color.
  pen.fillStyle = colors().ink;
  pen.fillRect(x, 0, 1, height - BOTTOM);
  pen.fillStyle = colors().paper;
  pen.fillRect(x + 1, 0, 1, height - BOTTOM);
}

const PLACES = 40; // steps of the arrow keys from the bottom to the top

/** @typedef {{title: string, height?: number, module?: string, onOpen?: (step: number | null) => void, zoomed?:
 * [number, number] | null}} Options `zoomed` is the zoom with which it begins */
/** @typedef {{step: number, value: number}} Point */

/** @extends {CanvasChart<Point>} */
export class HistMap extends CanvasChart {
  /** @type {Shape | null} */
  shape = null;
  /** The first and the last step on the axis; null for all captured ones. @type {[number, number] | null} */
  span = null;
  /** @type {Scale | null} */
  axis = null;
  /** The values between which the reader zoomed in. @type {[number, number] | null} */
  zoomed = null;
  /** The axis shared with other charts, if any. @type {Scale | null} */
  shared = null;
  /** Where steps stand, as the picture was painted. */
  #along = new Along(null, [0, 1], false);
  /** @type {ImageData | null} */
  #picture = null;
  #ratio = 1;

  /** @param {Page} page @param {HTMLElement} element gets the canvas @param {Options} options */
  constructor(page, element, { title, height = 160, module, onOpen, zoomed = null }) {
    const keys = `Arrow keys move the cursor${onOpen ? ", Enter opens the layer" : ""}`;
    super(page, element, { label: `${title}: histograms over steps. ${keys}`, name: "histmap", height });
    const look = { class: "button small reset-zoom", hidden: zoomed === null };
    this.reset = makeButton("Reset zoom", () => this.#zoomTo(null), look);
    this.zoomed = zoomed;
    element.append(this.reset);
    this.module = module;
    this.onOpen = onOpen;
    this.drag = this.brush = new Brush(this.canvas, {
      draw: () => this.mark(),
      take: (box, wide, high) => this.#take(box, wide, high),
    });
    const again = () => this.mark();
    this.onClose(
      () => this.reset.remove(),
      page.follow.on("change", again),
      page.clock.on("change", () => this.draw()),
    );
  }

  /** Shows one answer of `api/v1/histograms`. @param {Histograms} answer
   * @param {[number, number] | null} [span] @param {Scale | null} [shared] */
  show(answer, span = null, shared = null) {
    this.shape = shapeOf(answer);
    this.span = span;
    this.shared = shared;
    this.draw();
  }

  /** Returns the shown numbers. */
  table() {
    return this.shape ? tableOf(this.shape) : { columns: ["step"], rows: [] };
  }

  /** The steps on the axis; null if there are none. @returns {[number, number] | null} */
  get #shown() {
    const { shape } = this;
    return this.span ?? (shape?.columns ? [shape.first[0], shape.last[shape.columns - 1]] : null);
  }

  /** In CSS pixels, and device pixels for each. */
  get #size() {
    return { width: this.canvas.clientWidth, height: this.canvas.clientHeight, ratio: this.#ratio };
  }

  /** The captured step that a step stands for, or the one so many columns further.
   * @param {number} step @param {number} [by] */
  #stopAt(step, by) {
    const shown = this.#shown;
    return this.shape && shown ? stopAt(stopsOf(this.shape), step, shown, by) : step;
  }

  /** The step at a place; null outside of the picture. @param {number} x */
  #stepAt(x) {
    return this.#picture && x >= LEFT ? this.#along.stepAt((x - LEFT) / (this.#size.width - LEFT)) : null;
  }

  /** @override @param {number} x @param {number} y @returns {Point | null} */
  find(x, y) {
    const step = this.#stepAt(x);
    if (step === null || !this.axis) return null;
    const strip = STRIP / this.#ratio;
    const place = 1 - (y - strip) / (this.#size.height - BOTTOM - 2 * strip);
    return { step, value: this.axis.value(Math.min(1, Math.max(0, place))) };
  }

  /** @override */
  paint() {
    const span = this.#shown;
    const { width, height } = this.#size;
    if (!this.shape || !span || width <= LEFT + 8) return;
    this.#ratio = pixelRatio();
    fitCanvas(this.canvas, width, height, this.#ratio);
    const image = new ImageData(
      Math.max(1, this.canvas.width - Math.round(LEFT * this.#ratio)),
      Math.max(4 * STRIP, this.canvas.height - Math.round(BOTTOM * this.#ratio)),
    );
    const whole = this.shared ?? axisOf([this.shape]);
    this.axis = this.zoomed ? new Scale(whole.kind, ...this.zoomed, whole.linear) : whole;
    this.#along = new Along(sideBySide(this.shape.first, this.shape.last), span, this.page.clock.packs);
    const [pixels, empty] = [new Uint32Array(image.data.buffer), pixelOf(colors().band)];
    paint(pixels, image.width, image.height, this.shape, this.axis, this.#along, paletteOf(), empty);
    this.#picture = image;
    this.paintCursor();
  }

  /** @override */
  paintCursor() {
    const [pen, span] = [this.canvas.getContext("2d"), this.#shown];
    if (!pen || !span || !this.#picture || !this.axis) return;
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    pen.putImageData(this.#picture, Math.round(LEFT * this.#ratio), 0);
    pen.setTransform(this.#ratio, 0, 0, this.#ratio, 0, 0);
    pen.font = "10.5px system-ui, sans-serif";
    pen.fillStyle = colors().quiet;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    drawValues(pen, this.axis, this.#size);
    const { width, height } = this.#size;
    pen.textBaseline = "alphabetic";
    const { follow } = this.page;
    this.#drawSteps(pen, span);
    if (follow.held !== null) drawCursor(pen, follow.held, this.#along, this.#size);
    const { step } = this.page.cursor.point;
    if (step !== null && step !== undefined) drawCursor(pen, step, this.#along, this.#size);
    this.brush.show(pen, { x: LEFT, y: 0, w: width - LEFT, h: height - BOTTOM });
  }

  /** Draws the steps at the foot, and where the axis leaves some out. @param {CanvasRenderingContext2D} pen
   * @param {[number, number]} span */
  #drawSteps(pen, span) {
    const { width, height } = this.#size;
    const [along, wide] = [this.#along, width - LEFT];
    const { card, quiet } = colors();
    const isWide = wide / (along.to - along.from || 1) >= SPLIT_PX;
    for (const share of along.marks(wide, NOTCH_PX)) {
      const x = LEFT + share * wide - 0.5;
      pen.fillStyle = card;
      if (isWide) pen.fillRect(x, 0, 1, height - BOTTOM);
      pen.fillStyle = quiet;
      pen.fillRect(x, height - BOTTOM, 1, 3);
    }
    pen.fillStyle = quiet;
    let free = -Infinity;
    for (const step of along.ticks(Math.max(2, wide / TICK_PX))) {
      const words = this.page.clock.text(step, span);
      const half = pen.measureText(words).width / 2;
      const x = Math.min(width - half, Math.max(LEFT + half, LEFT + along.share(step) * wide));
      if (x - half < free) continue;
      free = x + half + 8;
      pen.textAlign = "center";
      pen.fillText(words, x, height - 3);
    }
  }

  /** Zooms to what a box contains. @param {Box} box @param {boolean} wide @param {boolean} high */
  #take({ left, right, top, bottom }, wide, high) {
    const [from, to] = [left, right].map((x) => this.#stepAt(Math.max(LEFT, x)));
    const [most, least] = [top, bottom].map((y) => this.find(LEFT, y)?.value ?? Number.NaN);
    if (high && most > least) this.#zoomTo([least, most]);
    if (wide && from !== null && to !== null && to > from) this.page.follow.zoom(from, to);
  }

  /** @param {[number, number] | null} values */
  #zoomTo(values) {
    this.zoomed = values;
    this.reset.hidden = values === null;
    this.draw();
  }

  /** @override @param {Point | null} at */
  choose(at) {
    this.onOpen?.(at && this.#stopAt(at.step));
  }

  /** @override @returns {Point | null} */
  start() {
    return this.#shown && { step: this.#stopAt(this.#shown[1]), value: 0 };
  }

  /** @override @param {Point} at @param {number} right @param {number} up */
  next({ step, value }, right, up) {
    const [span, axis] = [this.#shown, this.axis];
    if (!span || !axis) return null;
    const to = Number.isFinite(right) ? this.#stopAt(step, right) : this.#stopAt(span[right > 0 ? 1 : 0]);
    return { step: to, value: axis.value(Math.max(0, Math.min(1, axis.place(value) + up / PLACES))) };
  }

  /** @override @param {Point} at @returns {[number, number]} */
  cornerOf({ step, value }) {
    const [span, axis] = [this.#shown, this.axis];
    if (!span || !axis) return [0, 0];
    return [LEFT + this.#along.share(step - 0.5) * (this.#size.width - LEFT), topOf(axis, value, this.#size)];
  }

  /** @override @param {Point} at */
  wordsOf(at) {
    return this.shape && this.axis ? say(this.shape, this.axis, at) : "";
  }

  /** @override @param {Point} at */
  cursorOf({ step }) {
    return { step, ...(this.module === undefined ? {} : { module: this.module }) };
  }
}
