/** One step from input to output: a bar for each layer's activation, and one for the gradient that came back to it. */
import { CanvasChart, penOf, reportDrawn } from "../canvas/chart.js";
import { MISSING, startOf, worse } from "../canvas/columns.js";
import { drawMarks } from "../canvas/pen.js";
import { Card } from "../card.js";
import { count, stepWords } from "../format.js";
import { labelOf } from "../heat/rows.js";
import { Subscription } from "../live/subscription.js";
import { prefs } from "../prefs.js";
import { colors } from "../theme.js";
import {
  barsIn,
  barsOf,
  blockMarks,
  boxesOf,
  decadesOf,
  layerAt,
  panelMarks,
  pngOf,
  svgOf,
  tableOf,
  wordOf,
} from "./bars.js";

/** @import { Box } from "./bars.js"
 * @import { Mark } from "../canvas/pen.js"
 * @import { Row } from "../heat/rows.js"
 * @import { Frame } from "../live/stream.js"
 * @import { Page } from "../page.js" */

const TITLES = ["Activations", "Gradients"];
const LINES = ["line1", "line2"];
const LABEL = "Activations and gradients from input to output. Arrow keys move between layers, Enter selects one.";

/** What the reader points at is a layer, by its place among those shown, and how many share its bar.
 * @extends {CanvasChart<{place: number, sharing: number}>} */
export class Profile extends CanvasChart {
  /** @type {Layer[]} all of them, from input to output */
  layers = [];
  /** @type {Layer[]} those that fit the filter */
  shown = [];
  /** @type {Uint32Array[]} of activations and gradients, as `shown` */
  bits = [];
  /** @type {([number, number] | null)[]} */
  #decades = [null, null];
  /** @type {Mark[]} the marks drawn last */
  marks = [];
  /** @type {Box[]} */
  #boxes = [];
  #named = [/** @type {readonly any[]} */ ([]), /** @type {readonly any[]} */ ([])];

  /** @param {Page} page @param {HTMLElement} element the figure
   * @param {{fits: (layer: Layer) => boolean, onPick: (row: Row) => void, onLayers: () => void}} options */
  constructor(page, element, options) {
    const plot = /** @type {HTMLElement} */ (element.querySelector(".plot"));
    super(page, plot, { label: LABEL });
    this.plot = plot;
    this.options = options;
    this.card = new Card(page, element, {
      title: "One step, from input to output",
      table: () => {
        this.#gather();
        return tableOf(this);
      },
      png: () => pngOf(this),
      svg: async () => svgOf(this),
    });
    this.values = [
      new Values(page, "output", "act", () => this.changed()),
      new Values(page, "output_grad", "grad", () => this.changed()),
    ];
    page.state.on("drawer", () => this.draw());
  }

  /** Collects the values of the shown layers. */
  #gather() {
    this.bits = this.values.map(({ bits }, place) =>
      Uint32Array.from(this.shown, ({ rows }) => (rows[place] < 0 ? MISSING : (bits[rows[place]] ?? MISSING))),
    );
  }

  /** Takes new values, or other layers. */
  changed() {
    if (this.values.some(({ rows }, place) => rows !== this.#named[place])) {
      this.#named = this.values.map(({ rows }) => rows);
      this.layers = merged(this.values[0].rows, this.values[1].rows);
      this.filter();
    }
    this.draw();
  }

  /** Applies another filter. */
  filter() {
    this.shown = this.layers.filter(this.options.fits);
    this.#decades = [null, null];
    this.options.onLayers();
    this.draw();
  }

  /** The steps that the bars are of, in words. */
  get about() {
    const { held, range } = this.page.follow;
    if (held !== null)
      return this.bits.some((bits) => bits.some((value) => value !== MISSING))
        ? `step ${count(held)}`
        : `Nothing was captured in step ${count(held)}`;
    if (range) return `newest values in ${stepWords(...range)}`;
    return this.step === null || !this.layers.length ? "" : `step ${count(this.step)}`;
  }

  /** The step that the bars are of. @returns {number | null} */
  get step() {
    return this.values.reduce(
      (most, { step }) => (step === null ? most : Math.max(most ?? step, step)),
      /** @type {number | null} */ (null),
    );
  }

  /** @override */
  draw() {
    super.draw();
    this.card.soon();
  }

  /** @override */
  paint() {
    const began = performance.now();
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !height) return;
    this.#gather();
    this.#boxes = boxesOf(width, height, this.bits.length);
    const page = colors();
    const many = barsIn(this.shown.length, this.#boxes[0].w);
    this.marks = this.#boxes.flatMap((box, place) => {
      const bars = barsOf(this.bits[place], many);
      this.#decades[place] = decadesOf(bars, this.#decades[place]);
      const title = `${TITLES[place]}, ${this.values[place].stat}`;
      return panelMarks(
        box,
        { title, bars, decades: /** @type {[number, number]} */ (this.#decades[place]), color: page[LINES[place]] },
        page,
      );
    });
    this.marks.push(...blockMarks(this.#boxes[this.#boxes.length - 1], this.shown, page));
    const pen = penOf(this.canvas, width, height);
    drawMarks(pen, this.marks);
    const { module } = this.page.cursor.point;
    this.#frame(pen, this.#placeOf(new URLSearchParams(this.page.state.get("drawer")).get("module")), page.accent);
    this.#frame(pen, this.at?.place ?? this.#placeOf(module), page.ink);
    this.options.onLayers();
    if (this.step !== null) reportDrawn("bars", this.step, performance.now() - began);
  }

  /** A frame around a layer: the one that was picked, or the one that is pointed at, here or in another chart.
   * @param {CanvasRenderingContext2D} pen @param {number} place @param {string} color */
  #frame(pen, place, color) {
    if (place < 0 || place >= this.shown.length) return;
    const [top, bottom] = [this.#boxes[0], this.#boxes[this.#boxes.length - 1]];
    const width = top.w / this.shown.length;
    pen.strokeStyle = color;
    pen.lineWidth = 1.5;
    pen.strokeRect(top.x + place * width, top.y - 1, Math.max(2, width), bottom.y + bottom.h - top.y + 2);
  }

  /** @param {string | null | undefined} module */
  #placeOf(module) {
    return this.shown.findIndex((layer) => layer.module === module);
  }

  /** Returns the values of a layer in words. @param {number} place */
  #words(place) {
    const parts = TITLES.map(
      (title, panel) =>
        `${title.slice(0, -1).toLowerCase()} ${this.values[panel].stat} ${wordOf(this.bits[panel][place])}`,
    );
    return `step ${count(this.step)} \u00b7 ${parts.join(", ")}`;
  }

  /** @override @param {number} x */
  find(x) {
    const { shown } = this;
    if (!this.#boxes.length) return null;
    const many = barsIn(shown.length, this.#boxes[0].w);
    const bar = layerAt(this.#boxes[0], many, x);
    if (bar < 0) return null;
    const [from, to] = [startOf(bar, shown.length, many), startOf(bar + 1, shown.length, many)];
    return { place: this.#worstIn(from, to), sharing: to - from };
  }

  /** Returns, of layers that share a bar, the one with the worst gradient, or activation if there are no gradients.
   * @param {number} from @param {number} to */
  #worstIn(from, to) {
    const [activations, gradients] = this.bits;
    const bits = gradients.some((value) => value !== MISSING) ? gradients : activations;
    let worst = from;
    for (let place = from; place < to; place += 1) if (worse(bits[worst], bits[place]) !== bits[worst]) worst = place;
    return worst;
  }

  /** @override */
  start() {
    return this.#boxes.length && this.shown.length ? { place: 0, sharing: 1 } : null;
  }

  /** @override @param {{place: number}} at @param {number} right @param {number} up */
  next({ place }, right, up) {
    return { place: Math.min(this.shown.length - 1, Math.max(0, place + (right || -up))), sharing: 1 };
  }

  /** @override @param {{place: number}} at @returns {[number, number]} */
  cornerOf({ place }) {
    return [this.#boxes[0].x + (place / this.shown.length) * this.#boxes[0].w, 20];
  }

  /** @override @param {{place: number, sharing: number}} at */
  wordsOf({ place, sharing }) {
    const layer = this.shown[place];
    const more = sharing > 1 ? `\nthe worst of ${sharing} layers here` : "";
    return layer ? `${layer.label}${layer.type ? ` (${layer.type})` : ""}\n${this.#words(place)}${more}` : "";
  }

  /** @override @param {{place: number}} at */
  cursorOf({ place }) {
    return { module: this.shown[place]?.module ?? null, tap: null, step: this.step };
  }

  /** @override @param {{place: number} | null} at */
  choose(at) {
    const { rows: [output, gradient] = [-1, -1] } = (at && this.shown[at.place]) ?? {};
    const row = this.values[0].rows[output] ?? this.values[1].rows[gradient];
    if (row) this.options.onPick(row);
  }
}

/** @typedef {{label: string, module: string, type: string, rows: [number, number]}} Layer rows of activations and of
 * gradients; -1: none */

/** Activations come in the order of their calls. A gradient without an activation follows the layer that is before it
 * among the gradients. @param {readonly Row[]} outputs @param {readonly Row[]} gradients @returns {Layer[]} */
export function merged(outputs, gradients) {
  /** @type {Map<string, Layer>} */
  const layers = new Map(outputs.map((row, place) => [labelOf(row), layerOf(row, [place, -1])]));
  /** @type {Map<string, Layer[]>} */
  const behind = new Map();
  let before = "";
  for (const [place, row] of gradients.entries()) {
    const label = labelOf(row);
    const layer = layers.get(label);
    if (layer) {
      layer.rows[1] = place;
      before = label;
    } else behind.set(before, [...(behind.get(before) ?? []), layerOf(row, [-1, place])]);
  }
  return [
    ...(behind.get("") ?? []),
    ...[...layers.values()].flatMap((layer) => [layer, ...(behind.get(layer.label) ?? [])]),
  ];
}

/** @param {Row} row @param {[number, number]} rows @returns {Layer} */
function layerOf(row, rows) {
  return { label: labelOf(row), module: row.module, type: row.type ?? "", rows };
}

/** One stat of every layer: the newest values as they come, or those of the held step. */
class Values {
  /** @type {readonly Row[]} */
  rows = [];
  /** Why there are no rows. */
  why = "";
  bits = new Uint32Array(0);
  /** The step that the values are of. @type {number | null} */
  step = null;
  /** Whether an answer came. */
  known = false;

  /** @param {Page} page @param {string} kind @param {string} name of the stat in the address
   * @param {() => void} changed */
  constructor(page, kind, name, changed) {
    this.page = page;
    this.kind = kind;
    this.name = name;
    this.subscription = new Subscription(page, () => this.#query(), {
      rows: ({ rows, why = "" }) => {
        this.rows = rows;
        this.why = why;
        this.known = true;
      },
      frame: (frame) => {
        this.#take(frame);
        changed();
      },
    });
    page.state.on(name, () => this.subscription.renew());
    this.subscription.renew();
  }

  get stat() {
    return this.page.state.get(this.name);
  }

  #query() {
    const { follow } = this.page;
    const query = { view: "latest", kind: this.kind, stats: [this.stat], hz: Number(prefs.get("rate")) };
    return { ...query, ...follow.values };
  }

  /** Takes values; layers that aren't in the frame keep theirs. @param {Frame} frame */
  #take(frame) {
    if (frame.kind === "snapshot" || this.bits.length !== frame.n) this.bits = frame.bits.slice(0, frame.n);
    else for (let row = 0; row < frame.n; row += 1) if (frame.bits[row] !== MISSING) this.bits[row] = frame.bits[row];
    if (frame.k) this.step = frame.last[0];
  }
}
