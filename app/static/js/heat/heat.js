/** A live heatmap of layers by steps on a canvas: thousands of rows, a new column in a few milliseconds. */
import { Columns, stopAt } from "../canvas/columns.js";
import { Card } from "../card.js";
import { makeButton } from "../dom.js";
import { kindWords } from "../format.js";
import { LIVE_STEPS } from "../vocabulary.js";
import { pngOf, svgOf, tableOf } from "./picture.js";
import { sameRows, sorted } from "./rows.js";
import { Screen } from "./screen.js";

/** @import { Taken } from "../canvas/columns.js"
 * @import { CardOptions } from "../card.js"
 * @import { Fit, Row, Sort } from "./rows.js"
 * @import { Page } from "../page.js"
 * @import { Kind } from "../scale.js" */

/**
 * @typedef {object} HeatOptions
 * @property {string} title
 * @property {string} [kind] of the taps, for the label of the color scale
 * @property {string} [stat]
 * @property {string} [noun] what a row is; a layer if not given
 * @property {boolean} [lumped] whether an infinity stands for any value that is not finite, so that NaN is not known
 * @property {string} [merged] what a value of several steps is; "largest magnitude" if not given
 * @property {(row: Row, step: number) => void} [onPick] a click on a layer
 * @property {(row: Row) => void} [onName] a click on the name of a layer; as `onPick` if not given
 * @property {(row: Row, step: number | null) => void} [onAside] a click that asks for another tab, without a step on a
 * name
 * @property {() => [number, number] | null} [span] the steps that are shown; those of the page if not given
 * @property {CardOptions["query"]} [query] the same numbers, asked of the server; for the export
 */

export class Heat {
  /** @type {readonly Row[]} */
  rows = [];
  /** @type {Columns | null} */
  columns = null;
  /** All rows that are shown, from the top. @type {Int32Array} */
  order = new Int32Array(0);
  /** The rows that the reader zoomed in on, of those in the order. @type {Set<number> | null} */
  only = null;
  /** Whether they stand in the model's order. */
  grouped = true;
  /** @type {Fit} */
  fit = "fit";
  relative = false;
  /** @type {Kind} */
  kind = "log";
  /** @type {[number, number] | null} null: found in the shown values */
  range = null;
  #quantity = "";

  /** @param {Page} page @param {HTMLElement} element the figure, or what holds the picture
   * @param {HeatOptions} options */
  constructor(page, element, options) {
    this.page = page;
    this.options = options;
    this.screen = new Screen(page, this, /** @type {HTMLElement} */ (element.querySelector(".plot") ?? element));
    this.reset = makeButton("Reset zoom", () => this.zoomRows(null), { class: "button small", hidden: true });
    const query = options.query ? { query: options.query } : {};
    this.card = element.matches("figure")
      ? new Card(page, element, {
          title: options.title,
          table: () => this.table(),
          png: () => pngOf(this),
          svg: async () => svgOf(this),
          ...query,
        })
      : null;
    this.card?.tools.prepend(this.reset);
    page.follow.on("change", () => this.draw());
    page.clock.on("change", () => this.draw());
  }

  /** What a row is called. */
  get noun() {
    return this.options.noun ?? "layer";
  }

  /** The element with the picture. */
  get plot() {
    return this.screen.plot;
  }

  /** The quantity and the scale of the colors, in words. */
  get words() {
    const { kind = "", stat = "" } = this.options;
    const of = [stat, kindWords(kind)].filter(Boolean).join(" of ");
    return [of, this.relative ? "relative to the row's median" : `${this.kind} scale`].filter(Boolean).join(", ");
  }

  /** The steps that are shown. @returns {[number, number] | null} */
  get span() {
    const chosen = (this.options.span ?? (() => this.page.follow.span))();
    if (chosen !== null || !this.columns?.length) return chosen;
    return [this.columns.first(0), this.columns.last(this.columns.length - 1)];
  }

  /** Returns the captured step that a step stands for, or the one that is `by` columns further.
   * @param {number} step @param {number} [by] */
  stopAt(step, by) {
    const { columns, span } = this;
    return columns?.length && span ? stopAt(columns, step, span, by) : step;
  }

  /** Sets the layers of the rows. If they are the same as before, the values stay. @param {readonly Row[]} rows
   * @param {[number, number]} [capacity] columns, and steps that share one @param {string} [quantity] what the values
   * are: different quantities can't share a picture */
  setRows(rows, [many, width] = [LIVE_STEPS + 1, 1], quantity = "") {
    const { columns } = this;
    // A restarted server says "none" until the trainer has sent the names: the existing rows are still right.
    if (!rows.length && this.rows.length && quantity === this.#quantity) return;
    const others = !sameRows(this.rows, rows);
    if (!others && quantity === this.#quantity && columns?.capacity === many && columns.width === width) return;
    if (quantity !== this.#quantity) this.screen.forgetRange();
    this.#quantity = quantity;
    this.rows = rows;
    if (others && this.only) this.zoomRows(null);
    this.columns = new Columns(rows.length, many, width);
    this.screen.forget();
    if (others) this.setOrder(rows.map((_, row) => row));
  }

  /** @param {Taken} frame */
  take(frame) {
    if (this.columns === null) return;
    const changed = this.columns.take(frame);
    this.screen.changed(frame.kind === "snapshot" ? null : changed);
  }

  /** Sets the shown rows and their order. @param {number[]} shown in the model's order @param {Sort} [sort] */
  setOrder(shown, sort = "model") {
    const order = sorted(shown, sort, this.columns);
    const same = order.length === this.order.length && order.every((row, place) => row === this.order[place]);
    this.grouped = sort === "model";
    this.order = order;
    // Of rows that the filter hides, a zoom would leave nothing.
    if (this.only && !this.visible.some((row) => this.only?.has(row))) this.zoomRows(null);
    else if (!same) this.screen.arrange();
  }

  /** The visible rows, from the top: all in the order, or those that the reader zoomed in on. */
  get visible() {
    const { only } = this;
    return only ? this.order.filter((row) => only.has(row)) : this.order;
  }

  /** Shows only some rows, or all again. @param {Iterable<number> | null} rows */
  zoomRows(rows) {
    this.only = rows && new Set(rows);
    this.reset.hidden = !this.only;
    this.screen.arrange();
  }

  /** @param {Fit} fit */
  setFit(fit) {
    this.fit = fit;
    this.screen.arrange();
  }

  /** @param {Kind} kind @param {[number, number] | null} [range] null: most of the shown values */
  setScale(kind, range = null) {
    if (kind !== this.kind) this.screen.forgetRange();
    this.kind = kind;
    this.range = range;
    this.draw();
  }

  /** Shows values as multiples of their row's median. @param {boolean} relative */
  setRelative(relative) {
    if (relative === this.relative) return;
    this.relative = relative;
    this.screen.forgetRange();
    this.screen.forget();
  }

  /** Draws in the next frame, if the picture is visible. */
  draw() {
    this.screen.draw();
  }

  /** Returns the shown rows, with their newest value, their extremes, and since when they are non-finite. */
  table() {
    return tableOf(this);
  }
}
