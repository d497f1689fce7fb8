// @ts-check
/** A box that a pointer draws over a picture: what lies in it is zoomed. A click stays a click. */

const DRAG_PX = 5; // less is a click

/** @typedef {{left: number, right: number, top: number, bottom: number}} Box in CSS pixels of the picture */

export class Brush {
  /** @type {{id: number, x: number, y: number, toX: number, toY: number} | null} */
  #drag = null;
  #isOver = false;

  /** @param {HTMLCanvasElement} canvas
   * @param {{high: boolean, draw: () => void, take: (box: Box, wide: boolean, high: boolean) => void}} options `high`:
   * the height of the box counts as well */
  constructor(canvas, options) {
    this.canvas = canvas;
    this.options = options;
    canvas.addEventListener("pointerdown", (event) => this.#press(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    canvas.addEventListener("pointerup", () => this.#release());
    canvas.addEventListener("pointercancel", () => this.#cancel());
    canvas.addEventListener("keydown", (event) => event.key === "Escape" && this.#cancel());
    // The click that ends a drag means nothing else.
    canvas.addEventListener("click", (event) => this.#isOver && event.stopImmediatePropagation(), { capture: true });
  }

  /** The box, once it is more than a click. @returns {Box | null} */
  get box() {
    if (!this.#drag || !(this.#isWide || this.#isHigh)) return null;
    const { x, y, toX, toY } = this.#drag;
    const box = this.canvas.getBoundingClientRect();
    return {
      left: Math.min(x, toX) - box.left,
      right: Math.max(x, toX) - box.left,
      top: this.#isHigh ? Math.min(y, toY) - box.top : 0,
      bottom: this.#isHigh ? Math.max(y, toY) - box.top : box.height,
    };
  }

  get #isWide() {
    return this.#drag !== null && Math.abs(this.#drag.toX - this.#drag.x) > DRAG_PX;
  }

  get #isHigh() {
    return this.options.high && this.#drag !== null && Math.abs(this.#drag.toY - this.#drag.y) > 2 * DRAG_PX;
  }

  /** @param {PointerEvent} event */
  #press({ button, pointerId: id, clientX: x, clientY: y }) {
    this.#isOver = false;
    if (button === 0) this.#drag = { id, x, y, toX: x, toY: y };
  }

  /** @param {PointerEvent} event */
  #move({ pointerId, clientX, clientY }) {
    if (this.#drag?.id !== pointerId) return;
    Object.assign(this.#drag, { toX: clientX, toY: clientY });
    if (!this.box) return;
    this.canvas.setPointerCapture(pointerId);
    this.options.draw();
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
}
