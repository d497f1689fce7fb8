/** Charts on a canvas: sharp, redrawn when their size or colors change, read by pointer and by arrow keys. */
import { h } from "../dom.js";
import { hideTip, showTip } from "../popup.js";
import { prefs } from "../prefs.js";
import { Emitter } from "../state.js";
import { colors, onTheme } from "../theme.js";

/** @import { Point } from "../follow.js"
 * @import { Page } from "../page.js" */

const WIDE_PX = 5; // less is a click
const HIGH_PX = 14; // a hand that moves along the steps is never quite level

/** In CSS pixels of the picture. A box that is level is as high as the picture, and an upright one as wide.
 * @typedef {{left: number, right: number, top: number, bottom: number}} Box */

export class Brush {
  /** @type {{id: number, x: number, y: number, toX: number, toY: number} | null} */
  #drag = null;
  #isOver = false;

  /** @param {HTMLElement} element with the picture
   * @param {{draw: () => void, take: (box: Box, wide: boolean, high: boolean) => void}} options */
  constructor(element, options) {
    this.element = element;
    this.options = options;
    element.addEventListener("pointerdown", (event) => this.#press(event));
    element.addEventListener("pointermove", (event) => this.#move(event));
    element.addEventListener("pointerup", () => this.#release());
    element.addEventListener("pointercancel", () => this.#cancel());
    element.addEventListener("keydown", (event) => event.key === "Escape" && this.#cancel());
    // The click that ends a drag means nothing else.
    element.addEventListener("click", (event) => this.#isOver && event.stopImmediatePropagation(), { capture: true });
  }

  get isMoving() {
    return this.box !== null;
  }

  /** The box, once it is more than a click. @returns {Box | null} */
  get box() {
    if (!this.#drag || !(this.#isWide || this.#isHigh)) return null;
    const { x, y, toX, toY } = this.#drag;
    const { left, top, width, height } = this.element.getBoundingClientRect();
    const [from, to] = this.#isWide ? [Math.min(x, toX) - left, Math.max(x, toX) - left] : [0, width];
    const [high, low] = this.#isHigh ? [Math.min(y, toY) - top, Math.max(y, toY) - top] : [0, height];
    return { left: from, right: to, top: high, bottom: low };
  }

  get #isWide() {
    return this.#drag !== null && Math.abs(this.#drag.toX - this.#drag.x) > WIDE_PX;
  }

  get #isHigh() {
    return this.#drag !== null && Math.abs(this.#drag.toY - this.#drag.y) > HIGH_PX;
  }

  /** @param {PointerEvent} event */
  #press({ button, pointerId: id, clientX: x, clientY: y }) {
    this.#isOver = false;
    if (button !== 0) return;
    this.#drag = { id, x, y, toX: x, toY: y };
    this.element.setPointerCapture(id);
  }

  /** @param {PointerEvent} event */
  #move({ pointerId, clientX, clientY }) {
    if (this.#drag?.id !== pointerId) return;
    Object.assign(this.#drag, { toX: clientX, toY: clientY });
    if (this.box) this.options.draw();
  }

  #release() {
    const { box } = this;
    const [wide, high] = [this.#isWide, this.#isHigh];
    this.#drag = null;
    if (!box) return;
    this.#isOver = true;
    this.options.take(box, wide, high);
    this.options.draw();
  }

  #cancel() {
    this.#drag = null;
    this.options.draw();
  }

  /** Draws the box, as far as it is in the plot: light on dark, and dark on light.
   * @param {CanvasRenderingContext2D} pen @param {{x: number, y: number, w: number, h: number}} plot */
  show(pen, plot) {
    const { box } = this;
    if (!box) return;
    const [x, y] = [Math.max(plot.x, box.left), Math.max(plot.y, box.top)];
    const [w, h] = [Math.min(plot.x + plot.w, box.right) - x, Math.min(plot.y + plot.h, box.bottom) - y];
    const { card, ink } = colors();
    pen.globalAlpha = 0.25;
    pen.fillStyle = card;
    pen.fillRect(x, y, w, h);
    pen.globalAlpha = 1;
    pen.lineWidth = 1;
    pen.strokeStyle = card;
    pen.strokeRect(x + 1.5, y + 1.5, w - 3, h - 3);
    pen.strokeStyle = ink;
    pen.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
  }
}

const FAR = 10; // times as far with Shift
/** @type {Record<string, [number, number]>} to the right, and up */
const MOVES = {
  ArrowLeft: [-1, 0],
  ArrowRight: [1, 0],
  ArrowUp: [0, 1],
  ArrowDown: [0, -1],
  PageUp: [0, FAR],
  PageDown: [0, -FAR],
  Home: [-Infinity, 0],
  End: [Infinity, 0],
};

/** How far a key moves to the right, and up. @param {KeyboardEvent} event @returns {[number, number]} */
function movedBy({ key, shiftKey }) {
  const [right, up] = MOVES[key] ?? [0, 0];
  const far = shiftKey ? FAR : 1;
  return [right * far, up * far];
}

/** Returns the device pixels per CSS pixel, at most two: more would only take time. */
export function pixelRatio() {
  return Math.min(2, globalThis.devicePixelRatio || 1);
}

/** Fits a canvas to its size on the screen. To set the same size again would clear it.
 * @param {HTMLCanvasElement} canvas @param {number} width @param {number} height @param {number} ratio */
export function fitCanvas(canvas, width, height, ratio) {
  const size = { width: Math.round(width * ratio), height: Math.round(height * ratio) };
  if (canvas.width !== size.width || canvas.height !== size.height) Object.assign(canvas, size);
}

/** Fits a canvas to its size on the screen, and returns a pen for CSS pixels on an empty canvas.
 * @param {HTMLCanvasElement} canvas @param {number} width @param {number} height @param {number} [ratio] */
export function penOf(canvas, width, height, ratio = pixelRatio()) {
  fitCanvas(canvas, width, height, ratio);
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}

/** For benchmarks: what was drawn, the step that it shows, and how long it took.
 * @param {string} kind @param {number | null} step @param {number} ms */
export function reportDrawn(kind, step, ms) {
  if (!performance.getEntriesByName("hookcore:live").length) performance.mark("hookcore:live");
  document.dispatchEvent(new CustomEvent("hookcore:drawn", { detail: { kind, step, ms } }));
}

const READ_MS = 400; // of a key that is held down, only the last place is read aloud

/** Owns a chart's canvas, pointer, keys, tip, and words, and its share of the cursor that all charts of a page have. A
 * subclass draws in `paint`, and knows what is at a place (`find`), where the keys begin and lead (`start`, `next`),
 * its words (`wordsOf`), and what a choice means (`choose`).
 * @template At what the reader points at */
export class CanvasChart extends Emitter {
  /** What the reader points at. @type {At | null} */
  at = null;
  /** The drag of a box, in charts that zoom. @type {{isMoving: boolean} | null} */
  drag = null;
  /** What this chart has set of the cursor. @type {Point} */
  #own = {};
  /** @type {(() => void)[]} */
  #undo = [];
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #reading;

  /** @param {Page} page @param {HTMLElement} element gets the canvas @param {{label: string, name?: string, height?:
   * number, pad?: HTMLElement, isLinked?: boolean}} options `name` is the canvas's class; without a height, the chart
   * sets its size itself; `pad` lies over the canvas and gets the pointer and the keys */
  constructor(page, element, { label, name = "", height, pad, isLinked = true }) {
    super();
    this.page = page;
    this.isLinked = isLinked;
    this.canvas = /** @type {HTMLCanvasElement} */ (h("canvas", { class: name || null }));
    if (height) Object.assign(this.canvas.style, { width: "100%", height: `${height}px` });
    this.pad = pad ?? this.canvas;
    for (const [key, value] of Object.entries({ tabindex: "0", role: "application", "aria-label": label }))
      this.pad.setAttribute(key, value);
    element.append(this.canvas);
    if (pad) element.append(pad);
    const sized = new ResizeObserver(() => this.resized());
    sized.observe(element);
    page.schedule.watch(this.canvas, () => this.draw());
    const recolored = () => this.recolored();
    this.onClose(() => sized.disconnect(), onTheme(recolored), prefs.on("colors", recolored));
    if (isLinked) this.onClose(page.cursor.on("move", ({ source }) => source === this || this.mark()));
    this.#listen();
  }

  #listen() {
    const { pad } = this;
    pad.addEventListener("pointermove", (event) => {
      if (this.drag?.isMoving) hideTip();
      else this.pointAt(this.under(event), event.clientX, event.clientY);
    });
    for (const gone of ["pointerleave", "pointercancel", "blur"]) pad.addEventListener(gone, () => this.pointAt(null));
    pad.addEventListener("click", (event) => this.choose(this.under(event), event));
    pad.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !this.press(event)) return;
      event.preventDefault();
      event.stopPropagation();
    });
  }

  /** Returns what a pointer is at. @param {MouseEvent} event */
  under({ clientX, clientY }) {
    const { left, top } = this.canvas.getBoundingClientRect();
    return this.find(clientX - left, clientY - top);
  }

  /** Draws in the next frame, if the canvas is visible. */
  draw() {
    if (this.page.schedule.isSeen(this.canvas)) this.page.schedule.soon(this, () => this.paint());
  }

  paint() {}

  /** Draws the cursor in the next frame, if the canvas is visible. */
  mark() {
    if (this.page.schedule.isSeen(this.canvas)) this.page.schedule.soon(this.canvas, () => this.paintCursor());
  }

  /** Draws the cursor; the whole chart, unless a subclass keeps its picture. */
  paintCursor() {
    this.paint();
  }

  resized() {
    this.draw();
  }

  recolored() {
    this.draw();
  }

  /** @returns {Promise<Blob>} a PNG of the current chart, even if it is out of view */
  image() {
    this.paint();
    return imageOf(this.canvas);
  }

  /** Returns what is at a place. @param {number} _x from the canvas's left edge @param {number} _y
   * @returns {At | null} */
  find(_x, _y) {
    return null;
  }

  /** Returns where the keys begin. @returns {At | null} */
  start() {
    return null;
  }

  /** Returns what a key leads to; null if nothing. @param {At} _at @param {number} _right infinite for Home and
   * End @param {number} _up @returns {At | null} */
  next(_at, _right, _up) {
    return null;
  }

  /** Scrolls to what a key leads to. @param {At} _at */
  scrollTo(_at) {}

  /** Returns the place of the tip when the keys lead there, from the corner of the canvas. @param {At} _at
   * @returns {[number, number]} */
  cornerOf(_at) {
    return [0, 0];
  }

  /** Returns what the tip says. @param {At} _at */
  wordsOf(_at) {
    return "";
  }

  /** Returns what is read aloud when the keys lead there. @param {At} at */
  spokenOf(at) {
    return this.wordsOf(at);
  }

  /** Returns what the cursor of the page's charts is at. @param {At} _at @returns {Point} */
  cursorOf(_at) {
    return {};
  }

  /** A click, or Enter. @param {At | null} _at @param {MouseEvent | KeyboardEvent} _event */
  choose(_at, _event) {}

  /** Shows words about what the reader points at. @param {At | null} at @param {number} x of the tip, in the window
   * @param {number} y */
  tell(at, x, y) {
    const words = at === null ? "" : this.wordsOf(at);
    if (words) showTip(words, x, y);
    else hideTip();
  }

  /** Points there, in all charts of the page. @param {At | null} at @param {number} [x] of the tip, in the window
   * @param {number} [y] */
  pointAt(at, x = 0, y = 0) {
    const { cursor } = this.page;
    const before = this.at;
    this.at = at;
    // Without a place, the cursor loses what this chart had set, and nothing else.
    this.#own =
      at === null ? Object.fromEntries(Object.keys(this.#own).map((name) => [name, null])) : this.cursorOf(at);
    if (this.isLinked && (at ?? before) !== null) cursor.move(this.#own, this);
    this.tell(at, x, y);
    if (at !== null || before !== null) this.mark();
  }

  /** Returns whether a key means anything. @param {KeyboardEvent} event @returns {boolean} */
  press(event) {
    if (event.key === "Enter") this.choose(this.at, event);
    else if (event.key === "Escape" && this.at !== null) this.pointAt(null);
    else return this.#move(...movedBy(event));
    return true;
  }

  /** @param {number} right @param {number} up */
  #move(right, up) {
    if (!right && !up) return false;
    const begins = this.at === null;
    const from = this.at ?? this.start();
    // The first key shows where the others begin.
    const at = from === null || (begins && Number.isFinite(right)) ? from : this.next(from, right, up);
    if (at === null) return false;
    this.scrollTo(at);
    const { left, top } = this.canvas.getBoundingClientRect();
    const [x, y] = this.cornerOf(at);
    this.pointAt(at, left + x, top + y);
    clearTimeout(this.#reading);
    this.#reading = setTimeout(() => this.page.announce(this.spokenOf(at)), READ_MS);
    return true;
  }

  /** @param {...() => void} undo called by `close` */
  onClose(...undo) {
    this.#undo.push(...undo);
  }

  /** Removes the chart from the page. */
  close() {
    for (const undo of this.#undo) undo();
    clearTimeout(this.#reading);
    this.canvas.remove();
  }
}

/** @param {HTMLCanvasElement} canvas @returns {Promise<Blob>} a PNG */
export async function imageOf(canvas) {
  const blob = await new Promise((/** @type {BlobCallback} */ done) => canvas.toBlob(done, "image/png"));
  if (!blob) throw new Error("the browser could not create the image");
  return blob;
}
