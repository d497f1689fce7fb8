// @ts-check
/** Charts on a canvas of their own: sharp, redrawn when their size or colors change, read by pointer and by arrow keys.
 */
import { h } from "../dom.js";
import { imageOf } from "../plot/files.js";
import { prefs } from "../prefs.js";
import { onTheme } from "../theme.js";

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

  /** @param {import("../page.js").Page} page @param {HTMLElement} element gets the canvas
   * @param {{label: string, name?: string, height?: number}} options `name` is the canvas's class; without a height,
   * the chart sets its size itself */
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
