// @ts-check
/** A picture with the steps to the right: painted once, and composed with its axes whenever the cursor moves. */
import { CanvasChart, pixelRatio } from "../canvas/index.js";
import { stopAt } from "../canvas/stops.js";
import { colors } from "../theme.js";
import { BOTTOM, drawBox, drawCursor, LEFT } from "./axes.js";
import { Brush } from "./brush.js";
import { STRIP } from "./paint.js";

/** @typedef {[number, number]} Span the first and the last step */

/** A subclass knows its steps, paints the picture, and draws the axis on the left. */
export class StepMap extends CanvasChart {
  /** On the axis; null for all captured steps. @type {Span | null} */
  span = null;
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
    return null;
  }

  /** The steps on the axis. */
  get shown() {
    return this.span ?? this.captured;
  }

  /** The columns of the picture. @returns {import("../canvas/stops.js").Stops | null} */
  get stops() {
    return null;
  }

  /** The captured step that a step stands for, or the one so many columns further.
   * @param {number} step @param {number} [by] */
  stopAt(step, by) {
    const { stops, shown } = this;
    return stops && shown ? stopAt(stops, step, shown, by) : step;
  }

  /** In CSS pixels, and device pixels for each. */
  get size() {
    return { width: this.canvas.clientWidth, height: this.canvas.clientHeight, ratio: this.#ratio };
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
    const [across, down] = [Math.round(width * this.#ratio), Math.round(height * this.#ratio)];
    if (this.canvas.width !== across) this.canvas.width = across;
    if (this.canvas.height !== down) this.canvas.height = down;
    const image = new ImageData(
      Math.max(1, across - Math.round(LEFT * this.#ratio)),
      Math.max(4 * STRIP, down - Math.round(BOTTOM * this.#ratio)),
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
