// @ts-check
/** What a chart of lines is made of: traces and axes, words and a table for readers. No DOM. */
import { countTicks } from "../timeline/knots.js";
import { axisOf } from "./axis.js";
import { drawn } from "./thin.js";
import { tracesOf } from "./traces.js";
import { summaryOf, tableOf } from "./words.js";

/**
 * @typedef {{title?: string, scale?: import("./axis.js").ScaleName, fixed?: boolean, low?: number, high?: number}}
 * YAxis `scale` holds
 *   where the address says none; where it is `fixed` the address says nothing about it. low and high are always on
 * the axis. */

const MAX_POINTS = 1000;
export const MARGIN = { l: 54, r: 14, t: 8, b: 28 };
const ALONE = { l: 74, r: 20, t: 8, b: 44 }; // with the titles of the axes

export class LineFigure {
  /** @type {import("./thin.js").Line[]} */
  lines = [];
  /** @type {import("./thin.js").Drawn[]} */
  drawn = [];
  /** The steps on the axis. @type {[number, number]} */
  range = [0, 1];
  /** The values between which the reader zoomed in. @type {[number, number] | null} */
  zoomed = null;
  /** @type {import("./axis.js").Axis | null} */
  axis = null;
  /** What the lines are of. */
  about = "";
  /** The lines of the held step alone, once they were asked for.
   * @type {{step: number, lines?: import("./thin.js").Line[]} | null} */
  exact = null;

  /** @param {{state: {optional(name: string): string}, clock?: import("../timeline/clock.js").Clock,
   *   follow: {span: [number, number] | null, range?: [number, number] | null}}} page
   * @param {{title: string, y?: YAxis, legend?: boolean}} options */
  constructor(page, options) {
    this.page = page;
    this.options = options;
  }

  /** Takes lines. A zoom is of its subject: the values of another one are shown whole.
   * @param {import("./thin.js").Line[]} lines @param {string} about */
  take(lines, about) {
    if (about !== this.about) this.zoomed = null;
    this.about = about;
    this.lines = lines;
    this.exact = null;
  }

  /** @returns {import("./axis.js").ScaleName} */
  get scale() {
    const { scale = "linear", fixed = false } = this.options.y ?? {};
    const asked = fixed ? "" : this.page.state.optional("y");
    return asked === "log" || asked === "symlog" || asked === "linear" ? asked : scale;
  }

  /** @param {Record<string, string>} colors @param {number} width @param {number} height
   * @param {boolean} [alone] without the page around it: with the titles of the axes, and all values
   * @returns {import("./svg.js").Picture} */
  make(colors, width, height, alone = false) {
    this.thin();
    const { low, high, title } = this.options.y ?? {};
    const { clock } = this.page;
    const ends = [low, high].filter((value) => value !== undefined);
    const axis = axisOf(this.scale, [
      /** @type {number[]} */ (ends),
      ...this.drawn.flatMap(({ raw, min, max }) => [raw, min, max]),
    ]);
    this.range = rangeOf(this.#span, this.drawn);
    if (this.zoomed && !alone) axis.zoom(this.zoomed);
    this.axis = axis;
    const points = this.drawn.map((each) => placed(each, clock));
    const [from, to] = this.range.map((step) => clock?.place(step) ?? step);
    const many = Math.max(2, Math.floor(width / 110));
    const ticks = clock ? clock.ticks(from, to, many) : countTicks(from, to, many);
    const titles = alone ? [clock?.title ?? "step", title] : [];
    return {
      traces: tracesOf(this.lines, points, axis, colors),
      width,
      height,
      margin: alone ? ALONE : MARGIN,
      x: { range: [from, to], ticks, title: titles[0] },
      y: { range: axis.range, ticks: axis.ticks(Math.max(3, Math.floor(height / 42))), title: titles[1] },
    };
  }

  /** The newest step that is drawn. */
  get newest() {
    return this.drawn.reduce(
      (/** @type {number | null} */ newest, { last }) =>
        last.length ? Math.max(newest ?? 0, last[last.length - 1]) : newest,
      null,
    );
  }

  summary() {
    return summaryOf(this.lines, this.drawn);
  }

  /** Computes the drawing. */
  thin() {
    const halfLife = Number(this.page.state.optional("smooth")) || 0;
    this.drawn = this.lines.map((line) => drawn(line, halfLife, MAX_POINTS, this.#span));
  }

  /** The steps on the axis; null is all of the lines. Those of another run may reach farther than the steps of the
   * page.
   * @returns {[number, number] | null} */
  get #span() {
    const { span, range = null } = this.page.follow;
    return range === null && this.lines.some(({ steps }) => steps) ? null : span;
  }

  /** What is shown, also if it was not drawn because its table hides it. */
  table() {
    this.thin();
    return tableOf(this.lines, this.drawn);
  }
}

/** The points where their steps stand on the axis. @param {import("./thin.js").Drawn} points
 * @param {import("../timeline/clock.js").Clock} [clock] @returns {import("./thin.js").Drawn} */
function placed(points, clock) {
  if (!clock || clock.by === "step") return points;
  const marks = points.marks.map((mark) => ({ ...mark, x: clock.place(mark.x) }));
  return { ...points, x: points.x.map((step) => clock.place(step)), marks };
}

/** The steps on the axis: those of the page, so that all charts of it agree.
 * @param {[number, number] | null} span @param {import("./thin.js").Drawn[]} many @returns {[number, number]} */
function rangeOf(span, many) {
  const firsts = many.filter(({ first }) => first.length).map(({ first }) => first[0]);
  const lasts = many.filter(({ last }) => last.length).map(({ last }) => last[last.length - 1]);
  const [from, to] = span ?? [Math.min(...firsts, Infinity), Math.max(...lasts, -Infinity)];
  return from <= to ? [from - 0.5, to + 0.5] : [0, 1];
}
