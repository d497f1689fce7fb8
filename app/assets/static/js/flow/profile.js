// @ts-check
/** One step from input to output: a bar for each layer's activation, and one for the gradient that came back to it. */
import { penOf } from "../canvas/index.js";
import { MISSING } from "../canvas/worst.js";
import { Card } from "../card.js";
import { h } from "../dom.js";
import { count, stepWords } from "../format.js";
import { drawMarks } from "../heat/pen.js";
import { labelOf } from "../heat/rows.js";
import { Subscription } from "../live/subscription.js";
import { prefs } from "../prefs.js";
import { colors, onTheme } from "../theme.js";
import { barsIn, barsOf, decadesOf } from "./bars.js";
import { Hand } from "./hand.js";
import { blockMarks, boxesOf, panelMarks } from "./marks.js";
import { pngOf, svgOf, tableOf, wordOf } from "./output.js";

const TITLES = ["Activations", "Gradients"];
const LINES = ["line1", "line2"];
const TABLE_MS = 500; // it is read, not watched

export class Profile {
  /** @type {Layer[]} all of them, from input to output */
  layers = [];
  /** @type {Layer[]} those that fit the filter */
  shown = [];
  /** @type {Uint32Array[]} of activations and gradients, as `shown` */
  bits = [];
  /** @type {([number, number] | null)[]} */
  #decades = [null, null];
  /** @type {import("../heat/marks.js").Mark[]} the marks drawn last */
  marks = [];
  /** @type {import("./marks.js").Box[]} */
  boxes = [];
  /** @type {ReturnType<typeof setTimeout> | null} */
  #table = null;
  #named = [/** @type {readonly any[]} */ ([]), /** @type {readonly any[]} */ ([])];

  /** @param {import("../page.js").Page} page @param {HTMLElement} element the figure
   * @param {{fits: (layer: Layer) => boolean, onPick: (layer: Layer) => void, onLayers: () => void}} options */
  constructor(page, element, options) {
    this.page = page;
    this.options = options;
    this.plot = /** @type {HTMLElement} */ (element.querySelector(".plot"));
    this.canvas = /** @type {HTMLCanvasElement} */ (h("canvas"));
    this.over = /** @type {HTMLCanvasElement} */ (h("canvas"));
    const words = "Activations and gradients from input to output. Arrow keys move between layers, Enter selects one.";
    this.pad = h("div", { class: "profile-pad", role: "application", tabindex: "0", "aria-label": words });
    this.plot.replaceChildren(this.canvas, this.over, this.pad);
    this.values = [
      new Values(
        page,
        "output",
        () => page.state.get("act"),
        () => this.changed(),
      ),
      new Values(
        page,
        "output_grad",
        () => page.state.get("grad"),
        () => this.changed(),
      ),
    ];
    page.state.on("act", () => this.values[0].renew());
    page.state.on("grad", () => this.values[1].renew());
    this.card = new Card(page, element, {
      title: "One step, from input to output",
      table: () => tableOf(this),
      png: () => pngOf(this),
      svg: async () => svgOf(this),
    });
    this.hand = new Hand(page, this);
    new ResizeObserver(() => this.soon()).observe(this.plot);
    page.schedule.watch(this.plot, () => this.soon());
    onTheme(() => this.soon());
  }

  soon() {
    if (this.page.schedule.isSeen(this.plot)) this.page.schedule.soon(this, () => this.draw());
    if (!this.card.table.hidden) this.#table ??= setTimeout(() => this.#writeTable(), TABLE_MS);
  }

  #writeTable() {
    this.#table = null;
    this.#gather();
    this.card.refresh();
  }

  /** The values of the layers that are shown. */
  #gather() {
    this.bits = this.values.map(({ bits }, place) =>
      Uint32Array.from(this.shown, ({ rows }) => (rows[place] < 0 ? MISSING : (bits[rows[place]] ?? MISSING))),
    );
  }

  /** Numbers came, or others are asked for. */
  changed() {
    if (this.values.some(({ rows }, place) => rows !== this.#named[place])) {
      this.#named = this.values.map(({ rows }) => rows);
      this.layers = merged(this.values[0].rows, this.values[1].rows);
      this.filter();
    }
    this.soon();
  }

  /** The filter is another one. */
  filter() {
    this.shown = this.layers.filter(this.options.fits);
    this.#decades = [null, null];
    this.options.onLayers();
    this.soon();
  }

  /** The steps that the bars are of, in words. */
  get about() {
    const { held, range } = this.page.follow;
    if (held !== null)
      return this.bits.some((bits) => bits.some((each) => each !== MISSING))
        ? `step ${count(held)}`
        : `Nothing was captured in step ${count(held)}`;
    if (range) return `newest values in ${stepWords(...range)}`;
    return this.step === null ? "" : `step ${count(this.step)}`;
  }

  /** The step that the bars are of. @returns {number | null} */
  get step() {
    return this.values.reduce(
      (most, { step }) => (step === null ? most : Math.max(most ?? step, step)),
      /** @type {number | null} */ (null),
    );
  }

  draw() {
    const began = performance.now();
    const { clientWidth: width, clientHeight: height } = this.plot;
    if (!width || !height) return;
    this.#gather();
    this.boxes = boxesOf(width, height, this.bits.length);
    const page = colors();
    const many = barsIn(this.shown.length, this.boxes[0].w);
    this.marks = this.boxes.flatMap((box, place) => {
      const bars = barsOf(this.bits[place], many);
      this.#decades[place] = decadesOf(bars, this.#decades[place]);
      const title = `${TITLES[place]}, ${this.values[place].stat()}`;
      return panelMarks(
        box,
        { title, bars, decades: /** @type {[number, number]} */ (this.#decades[place]), color: page[LINES[place]] },
        page,
      );
    });
    this.marks.push(...blockMarks(this.boxes[this.boxes.length - 1], this.shown, page));
    drawMarks(penOf(this.canvas, width, height), this.marks);
    this.hand.draw();
    this.options.onLayers();
    if (this.step !== null)
      document.dispatchEvent(
        new CustomEvent("hookcore:drawn", { detail: { kind: "bars", step: this.step, ms: performance.now() - began } }),
      );
  }

  /** The numbers of a layer, in words. @param {number} place */
  words(place) {
    const parts = TITLES.map(
      (title, panel) =>
        `${title.slice(0, -1).toLowerCase()} ${this.values[panel].stat()} ${wordOf(this.bits[panel][place])}`,
    );
    return `step ${count(this.step)} \u00b7 ${parts.join(", ")}`;
  }
}

/** @typedef {import("../heat/rows.js").Row} Row */
/**
 * @typedef {{label: string, module: string, type: string, rows: [number, number]}} Layer rows of activations and of
 * gradients; -1: none
 */

/** Activations come in the order of their calls. A gradient without an activation follows the layer that is before it
 * among the gradients.
 * @param {readonly Row[]} outputs @param {readonly Row[]} gradients @returns {Layer[]} */
export function merged(outputs, gradients) {
  /** @type {Map<string, Layer>} */
  const known = new Map(outputs.map((row, place) => [labelOf(row), layerOf(row, [place, -1])]));
  /** @type {Map<string, Layer[]>} */
  const behind = new Map();
  let before = "";
  for (const [place, row] of gradients.entries()) {
    const label = labelOf(row);
    const layer = known.get(label);
    if (layer) {
      layer.rows[1] = place;
      before = label;
    } else behind.set(before, [...(behind.get(before) ?? []), layerOf(row, [-1, place])]);
  }
  return [
    ...(behind.get("") ?? []),
    ...[...known.values()].flatMap((layer) => [layer, ...(behind.get(layer.label) ?? [])]),
  ];
}

/** @param {Row} row @param {[number, number]} rows @returns {Layer} */
function layerOf(row, rows) {
  return { label: labelOf(row), module: row.module, type: row.type ?? "", rows };
}

/** One stat of every layer at the step that is looked at: the newest ones as they come, or those of the held step. */
class Values {
  /** @type {readonly import("../heat/rows.js").Row[]} */
  rows = [];
  /** Why there are no rows. */
  why = "";
  bits = new Uint32Array(0);
  /** The step that the values are of. @type {number | null} */
  step = null;
  /** Whether an answer came. */
  known = false;

  /** @param {import("../page.js").Page} page @param {string} kind @param {() => string} stat
   * @param {() => void} changed */
  constructor(page, kind, stat, changed) {
    this.page = page;
    this.kind = kind;
    this.stat = stat;
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
    this.renew();
  }

  /** Requests another step or stat, if it has changed. */
  renew() {
    this.subscription.renew();
  }

  #query() {
    const { follow } = this.page;
    const asked = { view: "latest", kind: this.kind, stats: [this.stat()], hz: Number(prefs.get("rate")) };
    return { ...asked, ...follow.values };
  }

  /** What was not seen since stays as it was. @param {import("../live/frames.js").Frame} frame */
  #take(frame) {
    if (frame.bits === null) return;
    if (frame.kind === "snapshot" || this.bits.length !== frame.n) this.bits = frame.bits.slice(0, frame.n);
    else for (let row = 0; row < frame.n; row += 1) if (frame.bits[row] !== MISSING) this.bits[row] = frame.bits[row];
    if (frame.k) this.step = frame.last[0];
  }
}
