// @ts-check
/** One layer's histograms over steps: signed-log values upwards, and the share of a step's values as the color. */
import { paletteOf, pixelOf } from "../canvas/colors.js";
import { makeButton } from "../dom.js";
import { colors } from "../theme.js";
import { BOTTOM, drawValues, LEFT, topOf } from "./axes.js";
import { paint, STRIP } from "./paint.js";
import { say, tableOf } from "./say.js";
import { AxisPart, extentOf, SignedLog, shapeOf } from "./shape.js";
import { StepMap } from "./stepmap.js";

const PLACES = 40; // steps of the arrow keys from the bottom to the top

/**
 * @typedef {{title: string, height?: number, module?: string, onOpen?: (step: number | null) => void,
 *   zoomed?: [number, number] | null}} Options `zoomed` is the zoom with which it begins
 */

export class HistMap extends StepMap {
  /** @override @type {import("./shape.js").Shape | null} */
  shape = null;
  /** @type {import("./shape.js").Values | null} */
  axis = null;
  /** The values between which the reader zoomed in. @type {[number, number] | null} */
  zoomed = null;
  /** The axis shared with other charts, if any. @type {SignedLog | null} */
  shared = null;

  /** @param {import("../page.js").Page} page @param {HTMLElement} element gets the canvas @param {Options} options */
  constructor(page, element, { title, height = 160, module, onOpen, zoomed = null }) {
    const keys = `Arrow keys move the cursor${onOpen ? ", Enter opens the layer" : ""}`;
    super(page, element, { label: `${title}: histograms over steps. ${keys}`, name: "histmap", height, high: true });
    const look = { class: "button small reset-zoom", hidden: zoomed === null };
    this.reset = makeButton("Reset zoom", () => this.#zoomTo(null), look);
    this.zoomed = zoomed;
    element.append(this.reset);
    this.onClose(() => this.reset.remove());
    this.module = module;
    this.onOpen = onOpen;
    this.canvas.addEventListener("click", ({ clientX, clientY }) => {
      this.#open(this.placeOf(clientX, clientY)?.step ?? null);
    });
  }

  /** Shows one answer of `api/v1/histograms`. @param {import("../answers.js").Histograms} said
   * @param {[number, number] | null} [span] @param {SignedLog | null} [shared] */
  show(said, span = null, shared = null) {
    this.shape = shapeOf(said);
    this.span = span;
    this.shared = shared;
    this.draw();
  }

  /** Returns the shown numbers. */
  table() {
    return this.shape ? tableOf(this.shape) : { columns: ["step"], rows: [] };
  }

  /** @override @param {Uint32Array} pixels @param {number} across @param {number} down
   * @param {import("./stepmap.js").Span} span */
  fill(pixels, across, down, span) {
    if (!this.shape) return;
    const whole = this.shared ?? new SignedLog(extentOf([this.shape]));
    this.axis = this.zoomed ? new AxisPart(whole, this.zoomed) : whole;
    paint(pixels, across, down, this.shape, this.axis, span, paletteOf(), pixelOf(colors().band));
  }

  /** @override @param {CanvasRenderingContext2D} pen */
  drawLeft(pen) {
    if (this.axis) drawValues(pen, this.axis, this.size);
  }

  /** @override @param {number} top @param {number} bottom */
  zoom(top, bottom) {
    const x = this.canvas.getBoundingClientRect().left + LEFT;
    const y = this.canvas.getBoundingClientRect().top;
    const [high, low] = [this.placeOf(x, y + top), this.placeOf(x, y + bottom)];
    if (low && high && high.value > low.value) this.#zoomTo([low.value, high.value]);
  }

  /** @param {[number, number] | null} values */
  #zoomTo(values) {
    this.zoomed = values;
    this.reset.hidden = values === null;
    this.draw();
  }

  /** @override @param {number} x in the window @param {number} y */
  placeOf(x, y) {
    const [box, step] = [this.canvas.getBoundingClientRect(), this.stepAt(x)];
    if (step === null || !this.axis) return null;
    const strip = STRIP / this.size.ratio;
    const place = 1 - (y - box.top - strip) / (box.height - BOTTOM - 2 * strip);
    return { step, value: this.axis.value(Math.min(1, Math.max(0, place))) };
  }

  /** @override */
  enter() {
    this.#open(this.at?.step ?? null);
  }

  /** @param {number | null} step */
  #open(step) {
    this.onOpen?.(step === null ? null : this.stopAt(step));
  }

  /** @override @param {{step: number} | null} at */
  cursorAt(at) {
    return { ...super.cursorAt(at), ...(this.module === undefined ? {} : { module: at ? this.module : null }) };
  }

  /** @override @param {{step: number, value: number}} at */
  say(at) {
    return this.shape && this.axis ? say(this.shape, this.axis, at) : "";
  }

  /** @override @param {number} right @param {number} up */
  move(right, up) {
    const span = this.shown;
    if (!span || !this.axis) return false;
    const { step, x, top } = this.moved(this.at?.step, right, span);
    const place = this.axis.place(this.at?.value ?? 0) + up / PLACES;
    const value = this.axis.value(Math.max(0, Math.min(1, place)));
    this.page.announce(this.pointAt({ step, value }, x, top + topOf(this.axis, value, this.size)) ?? "");
    return true;
  }
}
