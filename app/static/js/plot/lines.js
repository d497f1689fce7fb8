// @ts-check
/** What a chart of lines is made of: traces and layout for Plotly, words and a table for readers. No DOM. */

import { SANS } from "../theme.js";
import { countTicks } from "../timeline/knots.js";
import { axisOf } from "./axis.js";
import { escaped } from "./library.js";
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
   * @param {boolean} [alone] without the page around it: with title and legend */
  make(colors, width, height, alone = false) {
    this.thin();
    const { low, high } = this.options.y ?? {};
    const ends = [low, high].filter((value) => value !== undefined);
    const axis = axisOf(this.scale, [
      /** @type {number[]} */ (ends),
      ...this.drawn.flatMap(({ raw, min, max }) => [raw, min, max]),
    ]);
    this.range = rangeOf(this.#span, this.drawn);
    if (this.zoomed && !alone) axis.zoom(this.zoomed);
    this.axis = axis;
    const traces = tracesOf(
      this.lines,
      this.drawn.map((points) => placed(points, this.page.clock)),
      axis,
      colors,
    );
    return { traces, layout: layoutOf(this, axis, colors, width, height, alone) };
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

/** @param {LineFigure} figure @param {import("./axis.js").Axis} axis @param {Record<string, string>} colors
 * @param {number} width @param {number} height @param {boolean} alone */
function layoutOf(figure, axis, colors, width, height, alone) {
  const { clock } = figure.page;
  const [from, to] = figure.range.map((step) => clock?.place(step) ?? step);
  const many = Math.max(2, Math.floor(width / 110));
  const steps = clock ? clock.ticks(from, to, many) : countTicks(from, to, many);
  const ticks = axis.ticks(Math.max(3, Math.floor(height / 42)));
  const common = {
    gridcolor: colors.line,
    linecolor: colors.line,
    zeroline: false,
    tickfont: { color: colors.quiet, size: 11 },
  };
  const named = (/** @type {string | undefined} */ text) =>
    text ? { title: { text: escaped(text), standoff: 6, font: { size: 11, color: colors.quiet } } } : {};
  const { title, y } = figure.options;
  return {
    width,
    height,
    margin: alone ? { l: 74, r: 20, t: 44, b: 74 } : MARGIN,
    paper_bgcolor: alone ? colors.card : "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: SANS, size: 12, color: colors.ink },
    ...(alone ? { title: { text: escaped(title), font: { size: 14 }, x: 0.02 } } : {}),
    showlegend: alone,
    legend: { orientation: "h", y: -0.22, x: 0 },
    dragmode: "zoom",
    hovermode: false,
    xaxis: {
      ...common,
      showgrid: false,
      range: [from, to],
      tickvals: steps.map(({ at }) => at),
      ticktext: steps.map(({ text }) => text),
      ...(alone ? named(clock?.title ?? "step") : {}),
    },
    yaxis: {
      ...common,
      range: axis.range,
      tickvals: ticks.map(({ at }) => at),
      ticktext: ticks.map(({ text }) => text),
      ...(alone ? named(y?.title) : {}),
    },
  };
}
