/** Charts on a canvas: sharp, redrawn when their size or colors change, read by pointer and by arrow keys. */
import { h } from "../dom.js";
import { imageOf } from "../plot/files.js";
import { prefs } from "../prefs.js";
import { colors, onTheme } from "../theme.js";

/** @import { Page } from "../page.js" */

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
};

/** How far a key moves to the right, and up. @param {KeyboardEvent} event @returns {[number, number]} */
export function movedBy({ key, shiftKey }) {
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

/** A subclass draws in `paint`, and reads values in `point`, `leave`, and `move`. */
export class CanvasChart {
  /** @type {(() => void)[]} */
  #undo = [];

  /** @param {Page} page @param {HTMLElement} element gets the canvas @param {{label: string, name?: string, height?:
   * number}} options `name` is the canvas's class; without a height, the chart sets its size itself */
  constructor(page, element, { label, name = "", height }) {
    this.page = page;
    this.canvas = /** @type {HTMLCanvasElement} */ (
      h("canvas", { class: name || null, tabindex: "0", role: "application", "aria-label": label })
    );
    if (height) Object.assign(this.canvas.style, { width: "100%", height: `${height}px` });
    element.append(this.canvas);
    const again = () => this.draw();
    const sized = new ResizeObserver(again);
    sized.observe(element);
    page.schedule.watch(this.canvas, again);
    this.onClose(() => sized.disconnect(), onTheme(again), prefs.on("colors", again));
    this.canvas.addEventListener("pointermove", ({ clientX, clientY }) => this.point(clientX, clientY));
    for (const gone of ["pointerleave", "blur"]) this.canvas.addEventListener(gone, () => this.leave());
    this.canvas.addEventListener("keydown", (event) => this.#hear(event));
  }

  /** Draws in the next frame, if the canvas is visible. */
  draw() {
    if (this.page.schedule.isSeen(this.canvas)) this.page.schedule.soon(this, () => this.paint());
  }

  paint() {}

  /** @returns {Promise<Blob>} a PNG of the current chart, even if it is out of view */
  image() {
    this.paint();
    return imageOf(this.canvas);
  }

  /** @param {number} _x in the window @param {number} _y */
  point(_x, _y) {}

  leave() {}

  /** Moves the cursor, and returns whether the chart can. @param {number} _right @param {number} _up */
  move(_right, _up) {
    return false;
  }

  /** Opens what the cursor is at. */
  enter() {}

  /** @param {KeyboardEvent} event */
  #hear(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter") return this.enter();
    const [right, up] = movedBy(event);
    if (!(right || up) || !this.move(right, up)) return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** @param {...() => void} undo called by `close` */
  onClose(...undo) {
    this.#undo.push(...undo);
  }

  /** Removes the chart from the page. */
  close() {
    for (const undo of this.#undo) undo();
    this.canvas.remove();
  }
}
