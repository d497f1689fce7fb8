// @ts-check
/** A picture with the steps to the right: painted once, and composed with its axes whenever the cursor moves. */
import { CanvasChart, fitCanvas, pixelRatio } from "../canvas/index.js";
import { stopAt } from "../canvas/stops.js";
import { hideTip, showTip } from "../canvas/tip.js";
import { colors } from "../theme.js";
import { BOTTOM, drawBox, drawCursor, LEFT } from "./axes.js";
import { Brush } from "./brush.js";
import { STRIP } from "./paint.js";
import { stopsOf } from "./shape.js";

/** @typedef {[number, number]} Span the first and the last step */

/** A subclass knows its steps, paints the picture, and draws the axis on the left. */
export class StepMap extends CanvasChart {
  /** On the axis; null for all captured steps. @type {Span | null} */
  span = null;
  /** The columns of the picture. @type {{first: Float64Array, last: Float64Array, ends: Float64Array, columns: number}
   * | null} */
  shape = null;
  /** What the cursor is at. @type {any} */
  at = null;
  /** @type {ImageData | null} */
  #picture = null;
  #ratio = 1;

  /** @param {import("../page.js").Page} page @param {HTMLElement} element gets the canvas
   * @param {{label: string, name: string, height: number, high?: boolean}} options `high`: its values can be zoomed */
  constructor(page, element, options) {
    super(page, element, options);
    this.brush = new Brush(this.canvas, {
      high: options.high ?? false,
      draw: () => compose(),
      take: (box, wide, high) => this.#take(box, wide, high),
    });
    const compose = () => page.schedule.soon(this.canvas, () => this.#compose());
    const look = () => page.schedule.isSeen(this.canvas) && compose();
    this.onClose(page.cursor.on("move", look), page.follow.on("change", look), page.clock.on("change", look));
  }

  /** @param {import("./brush.js").Box} box @param {boolean} wide @param {boolean} high */
  #take({ left, right, top, bottom }, wide, high) {
    const x = this.canvas.getBoundingClientRect().left;
    const [from, to] = [this.stepAt(Math.max(x + LEFT, x + left)), this.stepAt(Math.max(x + LEFT, x + right))];
    if (high) this.zoom(top, bottom);
    if (wide && from !== null && to !== null && to > from) this.page.follow.zoom(from, to);
  }

  /** Shows only the values between two heights. @param {number} _top @param {number} _bottom in CSS pixels */
  zoom(_top, _bottom) {}

  /** All captured steps; null if there are none. @returns {Span | null} */
  get captured() {
    const { shape } = this;
    return shape?.columns ? [shape.first[0], shape.ends[shape.columns - 1] - 1] : null;
  }

  /** The steps on the axis. */
  get shown() {
    return this.span ?? this.captured;
  }

  /** The captured step that a step stands for, or the one so many columns further.
   * @param {number} step @param {number} [by] */
  stopAt(step, by) {
    const { shape, shown } = this;
    return shape && shown ? stopAt(stopsOf(shape), step, shown, by) : step;
  }

  /** In CSS pixels, and device pixels for each. */
  get size() {
    return { width: this.canvas.clientWidth, height: this.canvas.clientHeight, ratio: this.#ratio };
  }

  /** What is at a place in the window, with its step; null if nothing is. @param {number} _x @param {number} _y
   * @returns {{step: number} | null} */
  placeOf(_x, _y) {
    return null;
  }

  /** @override @param {number} x @param {number} y */
  point(x, y) {
    this.pointAt(this.placeOf(x, y), x, y);
  }

  /** @override */
  leave() {
    this.pointAt(null);
  }

  /** Moves the page's cursor there, and says in words what is there.
   * @param {{[name: string]: any, step: number} | null} at @param {number} [x] @param {number} [y] */
  pointAt(at, x = 0, y = 0) {
    this.at = at;
    this.page.cursor.move(this.cursorAt(at), this);
    const words = at && this.say(at);
    if (!words) return hideTip();
    showTip(words, x, y);
    return words;
  }

  /** What the cursor of the page is at. @param {{step: number} | null} at @returns {Record<string, any>} */
  cursorAt(at) {
    return { step: at?.step ?? null };
  }

  /** What is at a place, in words; "" if nothing is drawn. @param {any} _at */
  say(_at) {
    return "";
  }

  /** @param {Uint32Array} _pixels @param {number} _across @param {number} _down @param {Span} _span */
  fill(_pixels, _across, _down, _span) {}

  /** @param {CanvasRenderingContext2D} _pen */
  drawLeft(_pen) {}

  /** @override */
  paint() {
    const span = this.shown;
    const { width, height } = this.size;
    if (!span || width <= LEFT + 8) return;
    this.#ratio = pixelRatio();
    fitCanvas(this.canvas, width, height, this.#ratio);
    const image = new ImageData(
      Math.max(1, this.canvas.width - Math.round(LEFT * this.#ratio)),
      Math.max(4 * STRIP, this.canvas.height - Math.round(BOTTOM * this.#ratio)),
    );
    this.fill(new Uint32Array(image.data.buffer), image.width, image.height, span);
    this.#picture = image;
    this.#compose();
  }

  #compose() {
    const [pen, span] = [this.canvas.getContext("2d"), this.shown];
    if (!pen || !span || !this.#picture) return;
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    pen.putImageData(this.#picture, Math.round(LEFT * this.#ratio), 0);
    pen.setTransform(this.#ratio, 0, 0, this.#ratio, 0, 0);
    pen.font = "10.5px system-ui, sans-serif";
    pen.fillStyle = colors().quiet;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    this.drawLeft(pen);
    const { width, height } = this.size;
    pen.textBaseline = "alphabetic";
    const { clock, follow } = this.page;
    pen.fillText(clock.text(span[1], span), width, height - 3);
    pen.textAlign = "left";
    pen.fillText(clock.text(span[0], span), LEFT, height - 3);
    if (follow.held !== null) drawCursor(pen, follow.held, span, this.size);
    const step = this.page.cursor.point.step;
    if (step !== null && step !== undefined) drawCursor(pen, step, span, this.size);
    const { box } = this.brush;
    if (box) drawBox(pen, box, this.size);
  }

  /** The step at a place in the window; null outside of the picture. @param {number} x */
  stepAt(x) {
    const [box, span] = [this.canvas.getBoundingClientRect(), this.shown];
    if (!span || x < box.left + LEFT) return null;
    const share = (x - box.left - LEFT) / (box.width - LEFT);
    return Math.min(span[1], Math.floor(span[0] + share * (span[1] - span[0] + 1)));
  }

  /** The step as many columns to the right of another one, of the newest if there is none, and its place in the window.
   * @param {number | undefined} from @param {number} right @param {Span} span */
  moved(from, right, span) {
    const step = this.stopAt(from ?? span[1], right);
    const box = this.canvas.getBoundingClientRect();
    return {
      step,
      x: box.left + LEFT + ((step - span[0]) / (span[1] - span[0] + 1)) * (box.width - LEFT),
      top: box.top,
    };
  }
}
