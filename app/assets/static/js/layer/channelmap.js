// @ts-check
/** The numbers of a probe on a canvas: steps to the right, channels downwards, and the value as the color. */
import { paletteOf } from "../canvas/colors.js";
import { count } from "../format.js";
import { BOTTOM, LEFT } from "../histograms/axes.js";
import { StepMap } from "../histograms/stepmap.js";
import { orderOf, paintChannels, say, scaleOf } from "./channelshape.js";

const ROW = 7; // CSS pixels
const [MIN_HEIGHT, MAX_HEIGHT] = [112, 384]; // of the height
const LETTERS = 13;

/** @typedef {import("./channelshape.js").Channels} Channels */

export class ChannelMap extends StepMap {
  /** @override @type {Channels | null} */
  shape = null;
  /** @type {import("../scale.js").Scale | null} */
  scale = null;
  /** @type {Uint32Array} */
  order = new Uint32Array();

  /** @param {import("../page.js").Page} page @param {HTMLElement} element gets the canvas */
  constructor(page, element) {
    super(page, element, {
      label: "Channels over steps. Arrow keys move the cursor, Enter holds the step",
      name: "channelmap",
      height: MIN_HEIGHT,
    });
    this.canvas.addEventListener("click", ({ clientX, clientY }) => {
      const at = this.placeOf(clientX, clientY);
      if (at) page.follow.hold(this.stopAt(at.step));
    });
  }

  /** @param {Channels} shape
   * @param {{sort: string, kind: string, span: import("../histograms/stepmap.js").Span | null, column: number}} how
   * `column` is the one that rows are sorted by */
  show(shape, { sort, kind, span, column }) {
    this.shape = shape;
    this.span = shape.rows ? span : null;
    this.order = orderOf(shape, sort, column);
    this.scale = scaleOf(shape.values, kind);
    this.canvas.style.height = `${Math.min(MAX_HEIGHT, Math.max(MIN_HEIGHT, shape.rows * ROW + BOTTOM))}px`;
    this.draw();
  }

  /** @override @returns {import("../histograms/stepmap.js").Span | null} */
  get captured() {
    return this.shape?.rows ? super.captured : null;
  }

  /** @override @param {Uint32Array} pixels @param {number} across @param {number} down
   * @param {import("../histograms/stepmap.js").Span} span */
  fill(pixels, across, down, span) {
    if (!this.shape || !this.scale) return;
    paintChannels(pixels, across, down, this.shape, this.order, span, this.scale, paletteOf());
  }

  /** The numbers of some channels. @override @param {CanvasRenderingContext2D} pen */
  drawLeft(pen) {
    const shape = /** @type {Channels} */ (this.shape);
    const { height } = this.size;
    const row = (height - BOTTOM) / shape.rows;
    const every = Math.max(1, Math.ceil(LETTERS / row), Math.floor(shape.rows / 12));
    for (let place = 0; place < shape.rows; place += every) {
      const y = Math.min(height - BOTTOM - 5, Math.max(6, (place + 0.5) * row));
      pen.fillText(count(shape.channel[this.order[place]]), LEFT - 7, y);
      pen.fillRect(LEFT - 4, Math.round((place + 0.5) * row), 3, 1);
    }
  }

  /** @override @param {number} x in the window @param {number} y */
  placeOf(x, y) {
    const [box, step] = [this.canvas.getBoundingClientRect(), this.stepAt(x)];
    if (step === null || !this.shape?.rows || y >= box.bottom - BOTTOM) return null;
    const place = Math.floor(((y - box.top) / (box.height - BOTTOM)) * this.shape.rows);
    return { step, place: Math.min(this.shape.rows - 1, Math.max(0, place)) };
  }

  /** @override */
  enter() {
    if (this.at) this.page.follow.hold(this.stopAt(this.at.step));
  }

  /** @override @param {{step: number, place: number}} at */
  say(at) {
    return this.shape ? say(this.shape, this.order, at) : "";
  }

  /** @override @param {number} right @param {number} up */
  move(right, up) {
    const span = this.shown;
    if (!span || !this.shape?.rows) return false;
    const { step, x, top } = this.moved(this.at?.step, right, span);
    const place = Math.max(0, Math.min(this.shape.rows - 1, (this.at?.place ?? 0) - up));
    const y = top + ((place + 0.5) / this.shape.rows) * (this.size.height - BOTTOM);
    this.page.announce(this.pointAt({ step, place }, x, y) ?? "");
    return true;
  }
}
