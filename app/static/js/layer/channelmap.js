// @ts-check
/** The numbers of a probe on a canvas: steps to the right, channels downwards, and the value as the color. */
import { CanvasChart, pixelRatio } from "../canvas.js";
import { paletteOf } from "../colors.js";
import { count } from "../format.js";
import { BOTTOM, drawCursor, LEFT } from "../hist/axes.js";
import { prefs } from "../prefs.js";
import { colors } from "../theme.js";
import { hideTip, showTip } from "../tip.js";
import { columnOf, orderOf, paintChannels, say, scaleOf } from "./channelshape.js";

const ROW = 7; // CSS pixels
const [LEAST, MOST] = [112, 384]; // of the height
const LETTERS = 13;

/** @typedef {import("./channelshape.js").Channels} Channels */

export class ChannelMap extends CanvasChart {
  /** @type {Channels | null} */
  shape = null;
  /** @type {import("../scale.js").Scale | null} */
  scale = null;
  /** @type {Uint32Array} */
  order = new Uint32Array();
  /** @type {{step: number, place: number} | null} */
  #at = null;
  /** @type {ImageData | null} */
  #picture = null;
  #ratio = 1;
  /** @type {[number, number] | null} */
  #span = null;

  /** @param {import("../page.js").Page} page @param {HTMLElement} element gets the canvas */
  constructor(page, element) {
    super(page, element, {
      label: "Channels over steps. Arrow keys move the cursor, Enter holds the step",
      name: "channelmap",
      height: LEAST,
    });
    const compose = () => page.schedule.soon(this.canvas, () => this.#compose());
    this.onClose(page.cursor.on("move", () => page.schedule.isSeen(this.canvas) && compose()));
    this.canvas.addEventListener("click", ({ clientX, clientY }) => {
      const at = this.#placeOf(clientX, clientY);
      if (at) page.follow.hold(at.step);
    });
  }

  /** @param {Channels} shape @param {{sort: string, kind: string, span: [number, number] | null, step: number | null}} how */
  show(shape, { sort, kind, span, step }) {
    this.shape = shape;
    this.#span = span;
    this.order = orderOf(shape, sort, columnOf(shape, step));
    this.scale = scaleOf(shape.values, kind);
    this.canvas.style.height = `${Math.min(MOST, Math.max(LEAST, shape.rows * ROW + BOTTOM))}px`;
    this.draw();
  }

  /** The steps on the axis. @returns {[number, number] | null} */
  get shown() {
    const { shape } = this;
    if (this.#span || !shape?.columns) return this.#span;
    return [shape.first[0], shape.ends[shape.columns - 1] - 1];
  }

  get #size() {
    return { width: this.canvas.clientWidth, height: this.canvas.clientHeight, ratio: this.#ratio };
  }

  /** @override */
  paint() {
    const span = this.shown;
    const { width, height } = this.#size;
    if (!this.shape?.rows || !this.scale || !span || width <= LEFT + 8) return;
    this.#ratio = pixelRatio();
    const [across, down] = [Math.round(width * this.#ratio), Math.round(height * this.#ratio)];
    if (this.canvas.width !== across) this.canvas.width = across;
    if (this.canvas.height !== down) this.canvas.height = down;
    const image = new ImageData(
      Math.max(1, across - Math.round(LEFT * this.#ratio)),
      Math.max(1, down - Math.round(BOTTOM * this.#ratio)),
    );
    const pixels = new Uint32Array(image.data.buffer);
    const palette = paletteOf(/** @type {any} */ (prefs.get("colors")));
    paintChannels(pixels, image.width, image.height, this.shape, this.order, span, this.scale, palette);
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
    this.#drawAxes(pen, span);
    const step = this.page.cursor.point.step;
    if (step !== null && step !== undefined) drawCursor(pen, step, span, this.#size);
  }

  /** The numbers of some channels, and the first and last step. @param {CanvasRenderingContext2D} pen @param {[number, number]} span */
  #drawAxes(pen, span) {
    const shape = /** @type {Channels} */ (this.shape);
    const { width, height } = this.#size;
    const row = (height - BOTTOM) / shape.rows;
    const every = Math.max(1, Math.ceil(LETTERS / row), Math.floor(shape.rows / 12));
    pen.font = "10.5px system-ui, sans-serif";
    pen.fillStyle = colors().quiet;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (let place = 0; place < shape.rows; place += every) {
      const y = Math.min(height - BOTTOM - 5, Math.max(6, (place + 0.5) * row));
      pen.fillText(count(shape.channel[this.order[place]]), LEFT - 7, y);
      pen.fillRect(LEFT - 4, Math.round((place + 0.5) * row), 3, 1);
    }
    pen.textBaseline = "alphabetic";
    pen.textAlign = "left";
    pen.fillText(count(span[0]), LEFT, height - 3);
    pen.textAlign = "right";
    pen.fillText(count(span[1]), width, height - 3);
  }

  /** @param {number} x in the window @param {number} y */
  #placeOf(x, y) {
    const [box, span] = [this.canvas.getBoundingClientRect(), this.shown];
    if (!span || !this.shape?.rows || x < box.left + LEFT || y >= box.bottom - BOTTOM) return null;
    const step = Math.floor(span[0] + ((x - box.left - LEFT) / (box.width - LEFT)) * (span[1] - span[0] + 1));
    const place = Math.floor(((y - box.top) / (box.height - BOTTOM)) * this.shape.rows);
    return { step: Math.min(span[1], step), place: Math.min(this.shape.rows - 1, Math.max(0, place)) };
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
    if (this.#at) this.page.follow.hold(this.#at.step);
  }

  /** @param {{step: number, place: number} | null} at @param {number} [x] @param {number} [y] */
  #point(at, x = 0, y = 0) {
    this.#at = at;
    this.page.cursor.move({ step: at?.step ?? null }, this);
    if (!at || !this.shape) return hideTip();
    const words = say(this.shape, this.order, at);
    showTip(words, x, y);
    return words;
  }

  /** @override @param {number} right @param {number} up */
  move(right, up) {
    const span = this.shown;
    if (!span || !this.shape?.rows) return false;
    const from = this.#at ?? { step: span[1], place: 0 };
    const step = Math.max(span[0], Math.min(span[1], from.step + right));
    const place = Math.max(0, Math.min(this.shape.rows - 1, from.place - up));
    const box = this.canvas.getBoundingClientRect();
    const x = box.left + LEFT + ((step - span[0]) / (span[1] - span[0] + 1)) * (box.width - LEFT);
    const y = box.top + ((place + 0.5) / this.shape.rows) * (box.height - BOTTOM);
    this.page.announce(this.#point({ step, place }, x, y) ?? "");
    return true;
  }
}
