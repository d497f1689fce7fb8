/** What the boxes are worth at the shown step: their values, gradients, colors, and where NaN begins. */
import { cssOf, Painter, paletteOf } from "../canvas/colors.js";
import { Columns, INFINITE, isBad, MANTISSA, MISSING } from "../canvas/columns.js";
import { MAX_LIVE_ROWS } from "../limits.js";
import { Feed } from "../live/subscription.js";
import { Range, Scale } from "../scale.js";
import { Emitter } from "../state.js";
import { LIVE_STEPS } from "../vocabulary.js";
import { BoxValues } from "./boxes.js";
import { originsOf, reversed, sourcesOf } from "./tree.js";
/** @import { LiveRow as Row } from "../answers.js"
 * @import { Palette } from "../canvas/colors.js"
 * @import { Taken } from "../canvas/columns.js"
 * @import { Structure } from "./structure.js"
 * @import { Page } from "../page.js"
 * @import { Kind } from "../scale.js" */

export class Source {
  /** @type {readonly Row[]} */
  rows = [];
  /** @type {Columns | null} */
  columns = null;
  #quantity = "";

  /** @param {Page} page @param {() => Record<string, any> | null} query kind and stat
   * @param {{rows: () => void, frame: () => void}} told
   * @param {[number, number]} [capacity] columns, and steps that share one; otherwise as many as the page shows */
  constructor(page, query, told, capacity) {
    this.capacity = capacity;
    const whole = () => {
      const wanted = query();
      return wanted && { rows: `fit:${MAX_LIVE_ROWS}`, ...wanted };
    };
    this.feed = new Feed(page, this, whole, told);
  }

  /** As a heatmap takes them. @param {readonly Row[]} rows @param {[number, number]} [capacity]
   * @param {string} [quantity] */
  setRows(rows, capacity = [LIVE_STEPS + 1, 1], quantity = "") {
    const [many, width] = this.capacity ?? capacity;
    const { columns } = this;
    // A server that was started again says "none" until the trainer has sent their names.
    if (!rows.length && this.rows.length && quantity === this.#quantity) return;
    const same = quantity === this.#quantity && rows.length === this.rows.length && columns?.capacity === many;
    this.rows = rows;
    if (same && columns?.width === width) return;
    this.#quantity = quantity;
    this.columns = new Columns(rows.length, many, width);
  }

  /** @param {Taken} frame */
  take(frame) {
    this.columns?.take(frame);
  }

  /** The column of a step, and the steps that it is about; null if the step wasn't captured.
   * @param {number} step @returns {{bits: Uint32Array, first: number, last: number} | null} */
  at(step) {
    const { columns } = this;
    const place = columns?.find(step) ?? -1;
    if (!columns || place < 0 || columns.last(place) < step) return null;
    return { bits: columns.bits(place), first: columns.first(place), last: columns.last(place) };
  }

  /** Asks again if the question is another. */
  renew() {
    this.feed.renew();
  }
}

const WIDTHS = 6;
const THIN = 1;
const THICK = 5;

/** Fills, and the color of text on them. */
export class Ink {
  /** @type {Map<number, {fill: string, text: string}>} */
  #colors = new Map();

  /** @param {Scale} scale @param {Palette} palette @param {string} [quantity] what the values are */
  constructor(scale, palette, quantity = "") {
    this.quantity = quantity;
    this.painter = new Painter(scale, palette);
  }

  /** @param {number} bits of a value */
  of(bits) {
    const pixel = this.painter.color(bits);
    let colors = this.#colors.get(pixel);
    if (!colors) {
      colors = { fill: cssOf(pixel), text: isDarkPixel(pixel) ? "#fff" : "#000" };
      this.#colors.set(pixel, colors);
    }
    return colors;
  }
}

/** Whether white text is read better on a color than black text. @param {number} pixel */
export function isDarkPixel(pixel) {
  const channel = (/** @type {number} */ shift) => {
    const share = ((pixel >> shift) & 255) / 255;
    return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  };
  return 0.2126 * channel(0) + 0.7152 * channel(8) + 0.0722 * channel(16) < 0.179;
}

/** How lines are drawn: one of a few widths, or as what isn't finite.
 * @typedef {{width: number, state: "plain" | "nan" | "inf" | "unknown"}} Stroke */

/** @param {number} bits of the largest gradient @param {Scale | null} scale @returns {Stroke} */
export function strokeOf(bits, scale) {
  if (bits === MISSING || scale === null) return { width: THIN, state: "unknown" };
  if ((bits & INFINITE) === INFINITE) return { width: THICK, state: bits & MANTISSA ? "nan" : "inf" };
  WORD[0] = bits;
  const share = VALUE[0] === 0 ? 0 : Math.round(scale.place(VALUE[0]) * (WIDTHS - 1)) / (WIDTHS - 1);
  return { width: THIN + share * (THICK - THIN), state: "plain" };
}

const WORD = new Uint32Array(1);
const VALUE = new Float32Array(WORD.buffer);

const SAMPLED = 24; // columns, for the range of the colors
const GRADIENT = { kind: "output_grad", stat: "norm" };

/** Emits "data" when values have arrived, "rows" when what was captured is another, and "blank" at each step at which
 * no box has a value, and at the first one after it. */
export class Readings extends Emitter {
  /** @type {BoxValues | null} */
  values = null;
  /** @type {BoxValues | null} */
  gradients = null;
  /** @type {Set<number>} */
  origins = new Set();
  /** The steps of the values; null if nothing was captured. @type {{first: number, last: number} | null} */
  steps = null;
  /** @type {Ink | null} */
  ink = null;
  /** @type {Scale | null} of the lines */
  lines = null;
  #range = new Range();
  #lineRange = new Range();
  #quantity = "";
  #isBlank = false;
  /** @type {number[][]} */
  #sources = [];
  /** @type {number[][]} */
  #users = [];

  /** @param {Page} page @param {Structure} structure */
  constructor(page, structure) {
    super();
    this.page = page;
    this.structure = structure;
    const told = { rows: () => this.#prepare(), frame: () => this.emit("data") };
    const first = { ...told, rows: () => this.#begin() };
    this.color = new Source(page, () => this.asked, first);
    this.gradient = new Source(page, () => GRADIENT, first);
    // The step that is held, where the window is so long that several steps share a column.
    this.exact = new Source(page, () => this.#exactly(this.color, this.asked), told, [1, 1]);
    this.exactGradient = new Source(page, () => this.#exactly(this.gradient, GRADIENT), told, [1, 1]);
    structure.on("model", () => this.#prepare());
    for (const name of ["kind", "stat"]) page.state.on(name, () => this.renew());
  }

  /** The kind and the stat of the colors. */
  get asked() {
    const { state } = this.page;
    return { kind: state.get("kind") || this.usual, stat: state.get("stat") };
  }

  /** The kind that the server chose. */
  usual = document.getElementById("model")?.dataset.kind ?? "output";

  /** @param {Source} source @param {{kind: string, stat: string}} quantity */
  #exactly({ columns }, quantity) {
    const { held } = this.page.follow;
    const wide = columns !== null && columns.width > 1;
    return held !== null && wide ? { ...quantity, from: held, to: held, columns: 1 } : null;
  }

  renew() {
    for (const source of [this.color, this.exact]) source.renew();
  }

  /** The columns are known, and so whether steps share them. */
  #begin() {
    this.#prepare();
    for (const source of [this.exact, this.exactGradient]) source.renew();
  }

  #prepare() {
    const { tree } = this.structure;
    if (!tree) return;
    this.values = new BoxValues(tree, this.color.rows);
    this.gradients = new BoxValues(tree, this.gradient.rows);
    this.#sources = sourcesOf(tree);
    this.#users = reversed(this.#sources);
    this.emit("rows");
    this.emit("data");
  }

  /** Takes the values of a step. @param {number | null} step
   * @param {boolean} held whether they must be of this very step */
  show(step, held) {
    const { values, gradients } = this;
    if (!values || !gradients) return;
    const at = (/** @type {Source} */ exact, /** @type {Source} */ source) =>
      step === null ? null : ((held ? exact.at(step) : null) ?? source.at(step));
    const column = at(this.exact, this.color);
    const lines = at(this.exactGradient, this.gradient);
    values.take(column && column.bits.length === this.color.rows.length ? column.bits : null);
    gradients.take(lines && lines.bits.length === this.gradient.rows.length ? lines.bits : null);
    this.steps = column;
    const wasBlank = this.#isBlank;
    this.#isBlank = values.bits.every((bits) => bits === MISSING);
    if (wasBlank || this.#isBlank) this.emit("blank");
    const { kind } = this.asked;
    const backward = kind.endsWith("_grad");
    const flows = ["output", "input", "output_grad", "input_grad"].includes(kind);
    const isBadBox = (/** @type {number} */ box) => values.known[box] === 1 && isBad(values.bits[box]);
    this.origins = new Set(flows ? originsOf(backward ? this.#users : this.#sources, isBadBox) : []);
  }

  /** Chooses the colors. @param {number} now in milliseconds @returns {boolean} whether they are others than before */
  paint(now) {
    const [ink, lines] = [this.ink, this.lines];
    const quantity = JSON.stringify([this.asked, this.page.state.get("y")]);
    if (quantity !== this.#quantity) this.#range.forget();
    this.#quantity = quantity;
    const kind = /** @type {Kind} */ (this.page.state.get("y"));
    const [low, high] = this.#range.of(sampleOf(this.color), kind, now);
    const signed = kind !== "log" && low < 0 && high > 0;
    const most = Math.max(Math.abs(low), Math.abs(high));
    const scale = signed ? new Scale(kind, -most, most) : new Scale(kind, low, high);
    if (!this.ink?.painter.scale.equals(scale) || this.ink.quantity !== quantity)
      this.ink = new Ink(scale, paletteOf(signed), quantity);
    const lineScale = new Scale("log", ...this.#lineRange.of(sampleOf(this.gradient), "log", now));
    if (!lineScale.equals(this.lines)) this.lines = lineScale;
    return this.ink !== ink || this.lines !== lines;
  }

  /** The theme or the color map is another. */
  repaint() {
    this.ink = null;
    this.emit("data");
  }

  /** @param {number} bits */
  stroke = (bits) => strokeOf(bits, this.gradient.rows.length ? this.lines : null);

  /** The columns of the captured steps: of the colors, or of the lines where nothing has a color. */
  get #columns() {
    return this.color.columns?.length ? this.color.columns : this.gradient.columns;
  }

  /** The captured steps that are known: the first step of each column. */
  get captured() {
    return this.#columns?.length ?? 0;
  }

  /** @param {number} place @returns {number} */
  stepOf(place) {
    const columns = this.#columns;
    return columns?.length ? columns.first(Math.max(0, Math.min(columns.length - 1, place))) : 0;
  }

  /** The place of the captured step at or before one; -1 if there is none. @param {number | null} step */
  placeOf(step) {
    const columns = this.#columns;
    return columns && step !== null ? columns.find(step) : -1;
  }
}

/** Values of some columns. @param {Source} source */
function sampleOf({ columns }) {
  if (!columns?.length) return new Float32Array();
  const many = Math.min(SAMPLED, columns.length);
  const sampled = new Float32Array(many * columns.rows);
  for (let at = 0; at < many; at += 1)
    sampled.set(columns.column(Math.round((at / Math.max(1, many - 1)) * (columns.length - 1))), at * columns.rows);
  return sampled;
}
