// @ts-check
/** A box that a pointer draws over a picture: what lies in it is zoomed. A click stays a click. */
import { colors } from "../theme.js";

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
