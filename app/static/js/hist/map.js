// @ts-check
/** One layer's histograms over steps: signed-log values upwards, and the share of a step's values as the color. */
import { CanvasChart, pixelRatio } from "../canvas.js";
import { paletteOf, pixelOf } from "../colors.js";
import { prefs } from "../prefs.js";
import { colors } from "../theme.js";
import { hideTip, showTip } from "../tip.js";
import { BOTTOM, drawAxes, drawCursor, LEFT, topOf } from "./axes.js";
import { paint, STRIP } from "./paint.js";
import { say, tableOf } from "./say.js";
import { endsOf, extentOf, SignedLog, shapeOf } from "./shape.js";

const PLACES = 40; // steps of the arrow keys from the bottom to the top

/** @typedef {{title: string, height?: number, module?: string, onOpen?: (step: number | null) => void}} Options */

export class HistMap extends CanvasChart {
  /** @type {import("./shape.js").Shape | null} */
  shape = null;
  /** @type {SignedLog | null} */
  axis = null;
  /** First and last step on the axis; null for all captured steps. @type {[number, number] | null} */
  span = null;
  /** The axis shared with other charts, if any. @type {SignedLog | null} */
  shared = null;
  /** @type {{step: number, value: number} | null} */
  #at = null;
  /** @type {ImageData | null} */
  #picture = null;
  #ratio = 1;
  /** @type {Float64Array} */
  #ends = new Float64Array();

  /** @param {import("../page.js").Page} page @param {HTMLElement} element gets the canvas @param {Options} options */
  constructor(page, element, { title, height = 160, module, onOpen }) {
    const label = `${title}: histograms over steps. Arrow keys move the cursor${onOpen ? ", Enter opens the layer" : ""}`;
    super(page, element, { label, name: "histmap", height });
    this.module = module;
    this.onOpen = onOpen;
    const compose = () => page.schedule.soon(this.canvas, () => this.#compose());
    this.onClose(page.cursor.on("move", () => page.schedule.isSeen(this.canvas) && compose()));
    this.canvas.addEventListener("click", ({ clientX, clientY }) => {
      onOpen?.(this.#placeOf(clientX, clientY)?.step ?? null);
    });
  }

  /** Shows one answer of `api/v1/histograms`. @param {import("../answers.js").Histograms} said
   * @param {[number, number] | null} [span] @param {SignedLog | null} [shared] */
  show(said, span = null, shared = null) {
    this.shape = shapeOf(said);
    this.#ends = endsOf(this.shape);
    this.span = span;
    this.shared = shared;
    this.draw();
  }

  /** Returns the shown numbers. */
  table() {
    return this.shape ? tableOf(this.shape) : { columns: ["step"], rows: [] };
  }

  /** The steps on the axis. @returns {[number, number] | null} */
  get shown() {
    if (this.span || !this.shape?.columns) return this.span;
    return [this.shape.first[0], this.#ends[this.shape.columns - 1] - 1];
  }

  get #size() {
    return { width: this.canvas.clientWidth, height: this.canvas.clientHeight, ratio: this.#ratio };
  }

  /** @override */
  paint() {
    const span = this.shown;
    const { width, height } = this.#size;
    if (!this.shape || !span || width <= LEFT + 8) return;
    this.axis = this.shared ?? new SignedLog(extentOf([this.shape]));
    this.#ratio = pixelRatio();
    const [across, down] = [Math.round(width * this.#ratio), Math.round(height * this.#ratio)];
    if (this.canvas.width !== across) this.canvas.width = across;
    if (this.canvas.height !== down) this.canvas.height = down;
    const image = new ImageData(
      Math.max(1, across - Math.round(LEFT * this.#ratio)),
      Math.max(4 * STRIP, down - Math.round(BOTTOM * this.#ratio)),
    );
    const palette = paletteOf(/** @type {any} */ (prefs.get("colors")));
    paint(
      new Uint32Array(image.data.buffer),
      image.width,
      image.height,
      this.shape,
      this.axis,
      span,
      palette,
      pixelOf(colors().band),
    );
    this.#picture = image;
    this.#compose();
  }

  #compose() {
    const [pen, span] = [this.canvas.getContext("2d"), this.shown];
    if (!pen || !span || !this.axis || !this.#picture) return;
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    pen.putImageData(this.#picture, Math.round(LEFT * this.#ratio), 0);
    pen.setTransform(this.#ratio, 0, 0, this.#ratio, 0, 0);
    drawAxes(pen, this.axis, span, this.#size);
    const step = this.page.cursor.point.step;
    if (step !== null && step !== undefined) drawCursor(pen, step, span, this.#size);
  }

  /** @param {number} x in the window @param {number} y */
  #placeOf(x, y) {
    const [box, span] = [this.canvas.getBoundingClientRect(), this.shown];
    if (!span || !this.axis || x < box.left + LEFT) return null;
    const strip = STRIP / this.#ratio;
    const place = 1 - (y - box.top - strip) / (box.height - BOTTOM - 2 * strip);
    const step = Math.floor(span[0] + ((x - box.left - LEFT) / (box.width - LEFT)) * (span[1] - span[0] + 1));
    return { step: Math.min(span[1], step), value: this.axis.value(Math.min(1, Math.max(0, place))) };
  }

  /** @override @param {number} x @param {number} y */
  point(x, y) {
    this.#point(this.#placeOf(x, y), x, y);
  }

  /** @override */
  leave() {
    this.#point(null);
  }

  /** @override */
  enter() {
    this.onOpen?.(this.#at?.step ?? null);
  }

  /** @param {{step: number, value: number} | null} at @param {number} [x] @param {number} [y] */
  #point(at, x = 0, y = 0) {
    this.#at = at;
    this.page.cursor.move(
      { step: at?.step ?? null, ...(this.module === undefined ? {} : { module: at ? this.module : null }) },
      this,
    );
    if (!at || !this.shape || !this.axis) return hideTip();
    const words = say(this.shape, this.#ends, this.axis, at);
    showTip(words, x, y);
    return words;
  }

  /** @override @param {number} right @param {number} up */
  move(right, up) {
    const span = this.shown;
    if (!span || !this.axis) return false;
    const from = this.#at ?? { step: span[1], value: 0 };
    const step = Math.max(span[0], Math.min(span[1], from.step + right));
    const value = this.axis.value(Math.max(0, Math.min(1, this.axis.place(from.value) + up / PLACES)));
    const box = this.canvas.getBoundingClientRect();
    const x = box.left + LEFT + ((step - span[0]) / (span[1] - span[0] + 1)) * (box.width - LEFT);
    this.page.announce(this.#point({ step, value }, x, box.top + topOf(this.axis, value, this.#size)) ?? "");
    return true;
  }
}
