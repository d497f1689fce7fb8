/** What a chart of lines is made of: traces, axis, and layout for Plotly, words and a table for readers. No DOM. */
import { Along, together } from "../along.js";
import { count, number } from "../format.js";
import { shortened } from "../paths.js";
import { Scale, ticks } from "../scale.js";
import { SANS } from "../theme.js";
import { countTicks } from "../timeline/clock.js";
import { escaped } from "./library.js";
import { drawn } from "./thin.js";
import { summaryOf, tableOf } from "./words.js";

/** @import { Drawn, Line } from "./thin.js"
 * @import { Kind as ScaleName } from "../scale.js"
 * @import { Clock } from "../timeline/clock.js" */

const AIR = 0.06; // above and below the values
/** @type {{digits: number, style: "auto"}} */
const FORM = { digits: 4, style: "auto" };
const MAX_DECADES = 12; // of a log axis: smaller values are drawn at its foot

export class Axis {
  /** @param {ScaleName} wanted @param {number} low the smallest value @param {number} high the largest
   * @param {number} [least] the smallest above zero */
  constructor(wanted, low, high, least = low) {
    /** The scale in use: there is no log of negative values. @type {ScaleName} */
    this.kind = wanted === "log" && (low < 0 || !(high > 0)) ? (low < 0 ? "symlog" : "linear") : wanted;
    if (!(low <= high)) [low, high] = [0, 1];
    if (this.kind === "log") low = Math.max(least > 0 ? least : high, high / 10 ** MAX_DECADES);
    this.scale = new Scale(this.kind, low, high);
    const ends = [this.scale.bend(low), this.scale.bend(high)];
    const air = (ends[1] - ends[0]) * AIR || (this.kind === "linear" ? Math.abs(ends[0]) * AIR || 1 : 0.5);
    /** Where it begins and ends, as `place` counts. @type {[number, number]} */
    this.range = low === 0 && high === 0 ? [0, 1] : [ends[0] - air, ends[1] + air];
    this.#ends = this.range;
  }

  /** @type {[number, number]} */
  #ends;

  /** Shows only a part. @param {[number, number]} values its ends */
  zoom([low, high]) {
    const ends = [this.scale.bend(low), this.scale.bend(high)];
    if (ends[1] > ends[0]) this.range = /** @type {[number, number]} */ (ends);
  }

  /** Makes room above the values for lines of words. @param {number} rows */
  raise(rows) {
    const [low, high] = this.range;
    this.range = [low, high + (high - low) * RAIL_ROW * rows];
  }

  /** The position of a value; a value without one (zero on a log axis) is at the foot. @param {number} value */
  place(value) {
    return Math.min(this.#ends[1], Math.max(this.#ends[0], this.scale.bend(value)));
  }

  /** The values at two places. @param {[number, number]} places @returns {[number, number]} */
  values([low, high]) {
    return [this.scale.unbend(low), this.scale.unbend(high)];
  }

  /** The values of another part: so many times as much of the axis, moved by a share of it. Null if that is all.
   * @param {number} times @param {number} [by] @returns {[number, number] | null} */
  part(times, by = 0) {
    const [low, high] = this.range;
    const moved = (low + high) / 2 + by * (high - low);
    const middle = Math.min(this.#ends[1], Math.max(this.#ends[0], moved));
    const half = ((high - low) / 2) * times;
    const slack = (this.#ends[1] - this.#ends[0]) * 1e-9; // what was bent to and fro is rounded
    const isAll = times > 1 && middle - half <= this.#ends[0] + slack && middle + half >= this.#ends[1] - slack;
    return isAll ? null : this.values([middle - half, middle + half]);
  }

  /** The ticks: values, not exponents. @param {number} [many] @returns {{at: number, text: string}[]} */
  ticks(many = 5) {
    const [low, high] = this.values(this.range);
    return ticks(new Scale(this.kind, low, high), many).map((value) => ({
      at: this.scale.bend(value),
      text: number(value, FORM),
    }));
  }
}

/** The axis for these values. @param {ScaleName} kind @param {Iterable<ArrayLike<number>>} many */
export function axisOf(kind, many) {
  let low = Infinity;
  let high = -Infinity;
  let least = Infinity;
  for (const values of many) {
    for (let i = 0; i < values.length; i += 1) {
      const value = values[i];
      if (!Number.isFinite(value)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
      if (value > 0 && value < least) least = value;
    }
  }
  return new Axis(kind, low, high, least);
}

const RAIL_ROW = 0.08; // of the axis' length
const LETTER = 6; // pixels of a letter of usual width
const MAX_RAIL = 4; // lines of words above the values
const FAR = 2; // times the usual range of the lines: what goes farther leaves the axis
const DECADES = 2; // from so many on, an axis is logarithmic by itself

/** How far the lines reach. @param {Drawn} points @returns {[number, number]} */
function reachOf({ raw, min, max }) {
  const finite = [...raw, ...min, ...max].filter(Number.isFinite);
  return [least(finite), -least(finite.map((value) => -value))];
}

/** @param {number[]} values */
function least(values) {
  return values.reduce((low, value) => Math.min(low, value), Infinity);
}

/** @param {number[]} values @param {number} share */
function quantile(values, share) {
  const sorted = values.filter(Number.isFinite).sort((a, b) => a - b);
  return sorted[Math.round(share * (sorted.length - 1))] ?? NaN;
}

/** Whether values that are all positive span so much that only the largest would be seen. @param {number[]} values */
export function spansDecades(values) {
  const [low, high] = [0.01, 0.99].map((share) => quantile(values, share));
  return least(values.filter(Number.isFinite)) > 0 && high > low * 10 ** DECADES;
}

/** The value above which a line leaves the axis, because an axis for all values would flatten most lines: those of runs
 * that diverged. Infinity if none does. @param {Drawn[]} many */
export function limitOf(many) {
  const reaches = many.map(reachOf).filter(([low]) => low < Infinity);
  if (reaches.length < 3) return Infinity;
  // The usual range is that of most lines, with all that they span: that of a single one may be narrow.
  const usual = [...reaches].sort((one, other) => one[1] - other[1]).slice(0, (reaches.length >> 1) + 1);
  const [low, high] = [least(usual.map(([end]) => end)), usual[usual.length - 1][1]];
  const isWide = low > 0 && high > low * 10 ** DECADES;
  const limit = isWide ? high * (high / low) ** FAR : high + FAR * Math.max(high - low, Math.abs(high) * 0.1);
  const gone = reaches.filter(([, peak]) => peak > limit).length;
  return gone && gone * 2 < reaches.length ? limit : Infinity;
}

/** Where a line leaves the axis or is not finite for the first time. @typedef {{line: number, x: number, sign: "out" |
 * "nan" | "inf" | "-inf", step: number, peak: number}} Exit */

/** @param {Drawn[]} drawn as they stand on the axis @param {number} limit @returns {Exit[]} */
function exitsOf(drawn, limit) {
  return drawn.flatMap((points, line) => {
    const [, peak] = reachOf(points);
    const place = points.raw.findIndex((value) => value > limit && value < Infinity);
    const mark = points.marks[0];
    const out = /** @type {Exit[]} */ (
      place < 0 ? [] : [{ line, x: points.x[place], sign: "out", step: points.steps.first[place], peak }]
    );
    const bad = /** @type {Exit[]} */ (mark ? [{ line, x: mark.x, sign: mark.sign, step: mark.first, peak }] : []);
    const [first] = [...out, ...bad].sort((one, other) => one.x - other.x);
    return first ? [first] : [];
  });
}

/** A line up to where it leaves the axis. @param {Drawn} points @param {number} limit @returns {Drawn} */
function within(points, limit) {
  const cut = (/** @type {number[]} */ values) => values.map((value) => (value > limit ? NaN : value));
  const at = points.raw.findIndex((value) => value > limit && value < Infinity);
  const raw = cut(points.raw);
  if (at >= 0) raw[at] = limit;
  const min = cut(points.min);
  // A band that reaches beyond the limit ends there: without its upper edge, its lower one would have no counterpart.
  const max = points.max.map((value, place) => (Number.isNaN(min[place]) ? NaN : Math.min(value, limit)));
  return { ...points, raw, smooth: cut(points.smooth), min, max, marks: [] };
}

/** The words of an exit. @param {string} name @param {Exit} exit */
export function exitWords(name, { sign, step, peak }) {
  const at = `step ${count(step)}`;
  return sign === "out"
    ? `${name} leaves at ${at}, up to ${number(peak, FORM)}`
    : `${name}: ${SIGNS[sign][2]} at ${at}`;
}

/** The rail above the values: which line left the axis or was not finite, and since when.
 * @param {Pick<LineFigure, "lines" | "exits" | "along" | "widthOf">} figure @param {Axis} axis
 * @param {Record<string, string>} colors @param {number} width of the axis in pixels */
function railOf({ lines, exits, along: { from, to }, widthOf }, axis, colors, width) {
  const [low, high] = axis.range;
  const rows = Math.min(MAX_RAIL, exits.length);
  const row = ((high - low) / (1 + RAIL_ROW * rows)) * RAIL_ROW;
  return exits.slice(0, MAX_RAIL).map((exit, place) => {
    const color = colorOf(lines[exit.line], exit.line, colors);
    const isLast = place === MAX_RAIL - 1 && exits.length > MAX_RAIL;
    const words = isLast ? `${exits.length - place} more runs` : exitWords(lines[exit.line].name, exit);
    const share = (exit.x - from) / (to - from || 1);
    const isFar = share > 0.5;
    const room = Math.max(share, 1 - share) * width - 12;
    const fitting = shortened(words, (text) => widthOf(text) <= room);
    return {
      type: "scatter",
      mode: "markers+text",
      x: [exit.x],
      y: [high - row * (place + 0.5)],
      text: [isFar ? `${escaped(fitting)} ` : ` ${escaped(fitting)}`],
      textposition: isFar ? "middle left" : "middle right",
      textfont: { size: 11, color },
      marker: {
        symbol: exit.sign === "out" ? "triangle-up" : SIGNS[exit.sign][0],
        size: 8,
        color,
        line: { color, width: 1.75 },
      },
      name: "rail",
      showlegend: false,
      hoverinfo: "none",
      cliponaxis: false,
    };
  });
}

const RAW_BEHIND = 0.35;
const BAND = 0.18;
const ROUND = 0.02; // of the axis' length: the marks stand so far above its foot

/** The marks of non-finite values: symbol, color name, label. @type {Record<string, [string, string, string]>} */
export const SIGNS = {
  nan: ["x-thin", "nan", "NaN"],
  inf: ["triangle-up", "inf", "Infinity"],
  "-inf": ["triangle-down", "inf", "-Infinity"],
};

/** @param {string} color #rgb or #rrggbb @param {number} share */
export function faint(color, share) {
  const hex = color.length === 4 ? [...color.slice(1)].map((sign) => sign + sign).join("") : color.slice(1);
  const parts = [0, 2, 4].map((place) => parseInt(hex.slice(place, place + 2), 16));
  return parts.some(Number.isNaN) ? color : `rgba(${parts.join(",")},${share})`;
}

/** @param {Line} line @param {number} place of it among the lines @param {Record<string, string>} colors */
export function colorOf(line, place, colors) {
  return line.color ? (colors[line.color] ?? line.color) : colors[`line${(place % 4) + 1}`];
}

/** @param {Line[]} lines @param {Drawn[]} drawn @param {Axis} axis
 * @param {Record<string, string>} colors @param {number[]} [gaps] where the axis leaves steps out @returns {any[]} */
export function tracesOf(lines, drawn, axis, colors, gaps = []) {
  const bands = lines.map((line, place) => bandOf(line, drawn[place], axis, colorOf(line, place, colors)));
  const strokes = lines.flatMap((line, place) => strokesOf(line, drawn[place], axis, colorOf(line, place, colors)));
  return [...bands.filter(Boolean), ...strokes, ...marksOf(drawn, axis, colors), ...leftOut(gaps, axis, colors)];
}

/** The band from min to max: a closed shape for each stretch without a hole.
 * @param {Line} line @param {Drawn} points @param {Axis} axis @param {string} color */
function bandOf(line, points, axis, color) {
  const parts = stretches(points.min);
  if (!parts.length) return null; // no band, or no finite value: a shape without points is an error in SVG
  const shapes = parts.map(([from, to]) => {
    const [xs, tops, bottoms] = [points.x, points.max, points.min].map((values) => values.slice(from, to));
    return { x: [...xs, ...[...xs].reverse()], y: [...tops, ...bottoms.reverse()].map((value) => axis.place(value)) };
  });
  const joined = (/** @type {number[][]} */ many) => many.flatMap((part, i) => (i ? [null, ...part] : part));
  const only = line.mean ? {} : { name: escaped(line.name) };
  return {
    type: "scatter",
    mode: "lines",
    x: joined(shapes.map(({ x }) => x)),
    y: joined(shapes.map(({ y }) => y)),
    fill: "toself",
    fillcolor: faint(color, line.opacity ?? BAND),
    // A band needs two points: that of one between holes is a line.
    line: { width: parts.some(([from, to]) => to - from === 1) ? 2 : 0, color: faint(color, RAW_BEHIND) },
    hoverinfo: "skip",
    showlegend: !line.mean,
    name: `${escaped(line.name)}, min to max`,
    ...only,
  };
}

/** From where to where values are finite. @param {number[]} values @returns {[number, number][]} */
export function stretches(values) {
  /** @type {[number, number][]} */
  const parts = [];
  let from = -1;
  for (let i = 0; i <= values.length; i += 1) {
    const there = i < values.length && Number.isFinite(values[i]);
    if (there && from < 0) from = i;
    if (there || from < 0) continue;
    parts.push([from, i]);
    from = -1;
  }
  return parts;
}

/** The line, with the raw one behind it if it is smoothed.
 * @param {Line} line @param {Drawn} points @param {Axis} axis @param {string} color */
function strokesOf(line, points, axis, color) {
  if (!line.mean) return [];
  const smooth = points.smooth.length > 0;
  const common = { type: "scatter", x: points.x, hoverinfo: "none", connectgaps: false };
  const dash = line.dashed ? "dash" : "solid";
  const raw = {
    ...common,
    ...pen(points.raw, color, smooth ? 1 : 1.75, dash),
    y: onAxis(points.raw, axis),
    name: escaped(line.name),
    opacity: smooth ? RAW_BEHIND : 1,
    showlegend: !smooth,
  };
  if (!smooth) return [raw];
  return [
    raw,
    {
      ...common,
      ...pen(points.smooth, color, 1.75, dash),
      y: onAxis(points.smooth, axis),
      name: escaped(line.name),
      showlegend: true,
    },
  ];
}

/** A line needs two points: one between holes is a dot.
 * @param {number[]} values @param {string} color @param {number} width @param {string} dash */
function pen(values, color, width, dash) {
  const alone = new Set(
    stretches(values)
      .filter(([from, to]) => to - from === 1)
      .map(([from]) => from),
  );
  const line = { color: color, width, dash, simplify: true };
  if (!alone.size) return { mode: "lines", line };
  return {
    mode: "lines+markers",
    line,
    marker: { color: color, size: values.map((_, place) => (alone.has(place) ? 4 : 0)) },
  };
}

/** @param {number[]} values @param {Axis} axis */
function onAxis(values, axis) {
  return values.map((value) => (Number.isFinite(value) ? axis.place(value) : null));
}

/** Where the axis leaves steps out: notches at its foot. @param {number[]} gaps @param {Axis} axis
 * @param {Record<string, string>} colors */
function leftOut(gaps, axis, colors) {
  if (!gaps.length) return [];
  const marker = { symbol: "line-ns", size: 5, color: colors.quiet, line: { color: colors.quiet, width: 1 } };
  const y = gaps.map(() => axis.range[0]);
  const about = { name: "steps left out", showlegend: false, hoverinfo: "none", cliponaxis: false };
  return [{ type: "scatter", mode: "markers", x: gaps, y, marker, ...about }];
}

/** What was not finite, at the foot of the axis, by symbol and color.
 * @param {Drawn[]} drawn @param {Axis} axis @param {Record<string, string>} colors */
function marksOf(drawn, axis, colors) {
  const foot = axis.range[0] + (axis.range[1] - axis.range[0]) * ROUND;
  return Object.entries(SIGNS).flatMap(([sign, [symbol, color, words]]) => {
    const at = [
      ...new Set(drawn.flatMap(({ marks }) => marks.filter((mark) => mark.sign === sign).map(({ x }) => x))),
    ].sort((a, b) => a - b);
    if (!at.length) return [];
    const marker = {
      symbol,
      size: 7,
      color: colors[color],
      line: { color: colors[color], width: sign === "nan" ? 1.75 : 0 },
    };
    return [
      {
        type: "scatter",
        mode: "markers",
        x: at,
        y: at.map(() => foot),
        marker,
        name: words,
        hoverinfo: "none",
        cliponaxis: false,
      },
    ];
  });
}

/** @typedef {{title?: string, scale?: ScaleName, fixed?: boolean, low?: number, high?: number}} YAxis `scale` holds
 * where the address says none; where it is `fixed` the address says nothing about it. low and high are always on the
 * axis. */

const MAX_POINTS = 1000;
const NOTCH_PX = 4; // between two marks of the axis
export const MARGIN = { l: 66, r: 14, t: 8, b: 40 };

export class LineFigure {
  /** @type {Line[]} */
  lines = [];
  /** @type {Drawn[]} */
  drawn = [];
  /** The values between which the reader zoomed in. @type {[number, number] | null} */
  zoomed = null;
  /** @type {Axis | null} */
  axis = null;
  /** What the lines are of. */
  about = "";
  /** Which lines leave the axis, or are not finite: of a chart of several runs. @type {Exit[]} */
  exits = [];
  /** Where steps stand on the axis. */
  along = new Along(null, [0, 1], false);
  /** The lines of the held step alone, once they were asked for. @type {{step: number, lines?: Line[]} | null} */
  exact = null;

  /** @param {{state: {optional(name: string): string}, clock?: Clock, follow: {span: [number, number] | null, range?:
   * [number, number] | null}}} page @param {{title: string, y?: YAxis, legend?: boolean, captured?: boolean, several?:
   * boolean}} options @param {(text: string) => number} [widthOf] in pixels, in the font of the axes */
  constructor(page, options, widthOf = (text) => LETTER * text.length) {
    this.page = page;
    this.options = options;
    this.widthOf = widthOf;
  }

  /** Takes lines. A zoom is of its subject: the values of another one are shown whole.
   * @param {Line[]} lines @param {string} about */
  take(lines, about) {
    if (about !== this.about) this.zoomed = null;
    this.about = about;
    this.lines = lines;
    this.exact = null;
  }

  /** The steps on the axis: those of the page, so that all charts of it agree. */
  #makeAlong() {
    const { clock } = this.page;
    const many = this.drawn.filter(({ first }) => first.length);
    const firsts = many.map(({ first }) => first[0]);
    const lasts = many.map(({ last }) => last[last.length - 1]);
    const [from, to] = this.#span ?? [Math.min(...firsts, Infinity), Math.max(...lasts, -Infinity)];
    const packs = Boolean(this.options.captured && clock?.packs);
    const ends = /** @type {[number, number]} */ (from <= to ? [from, to] : [0, 1]);
    return new Along(packs ? together(many) : null, ends, packs, clock?.by === "step" ? null : clock);
  }

  /** The scale of these lines: logarithmic by itself if the values need it, unless one is chosen. @param {Drawn[]} many
   * @returns {ScaleName} */
  #scaleFor(many) {
    const { fixed = false, low } = this.options.y ?? {};
    const isChosen = fixed || low !== undefined || this.page.state.optional("y") === "linear";
    if (this.scale !== "linear" || isChosen) return this.scale;
    return spansDecades(many.flatMap(({ raw }) => raw)) ? "log" : "linear";
  }

  /** @returns {ScaleName} */
  get scale() {
    const { scale = "linear", fixed = false } = this.options.y ?? {};
    const chosen = fixed ? "" : this.page.state.optional("y");
    return chosen === "log" || chosen === "symlog" || chosen === "linear" ? chosen : scale;
  }

  /** @param {Record<string, string>} colors @param {number} width @param {number} height
   * @param {boolean} [alone] without the page around it: with title and legend */
  make(colors, width, height, alone = false) {
    this.thin();
    const { low, high } = this.options.y ?? {};
    const ends = [low, high].filter((value) => value !== undefined);
    const limit = this.options.several ? limitOf(this.drawn) : Infinity;
    const kept = this.drawn.filter((points) => reachOf(points)[1] <= limit);
    const axis = axisOf(this.#scaleFor(kept), [
      /** @type {number[]} */ (ends),
      ...kept.flatMap(({ raw, min, max }) => [raw, min, max]),
    ]);
    this.along = this.#makeAlong();
    const stood = this.drawn.map((points) => standing(points, this.along, !this.options.captured));
    const edge = Math.min(limit, axis.values(axis.range)[1]);
    this.exits = this.options.several && this.lines.length > 1 ? exitsOf(stood, edge) : [];
    axis.raise(Math.min(MAX_RAIL, this.exits.length));
    if (this.zoomed && !alone) axis.zoom(this.zoomed);
    this.axis = axis;
    const traces = tracesOf(
      this.lines,
      this.exits.length ? stood.map((points) => within(points, edge)) : stood,
      axis,
      colors,
      this.along.marks(width, NOTCH_PX).map((share) => this.along.from + share * (this.along.to - this.along.from)),
    );
    traces.push(...railOf(this, axis, colors, width - MARGIN.l - MARGIN.r));
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
   * page. @returns {[number, number] | null} */
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

/** The points where their steps stand on the axis. Between two that don't adjoin there is a hole, unless the line has
 * all values that were ever there. @param {Drawn} points @param {Along} along @param {boolean} isWhole
 * @returns {Drawn} */
function standing(points, along, isWhole) {
  const middle = (/** @type {number} */ first, /** @type {number} */ last) =>
    along.packs ? (along.place(first - 0.5) + along.place(last + 0.5)) / 2 : along.place((first + last) / 2);
  const x = points.first.map((first, i) => middle(first, points.last[i]));
  const marks = points.marks.map((mark) => ({ ...mark, x: middle(mark.first, mark.last) }));
  const ends = isWhole ? [] : x.flatMap((_, i) => (i && !along.adjoin(points.last[i - 1], points.first[i]) ? [i] : []));
  if (!ends.length) return { ...points, x, marks };
  const split = (/** @type {number[]} */ values, /** @type {(i: number) => number} */ between) => {
    if (!values.length) return values;
    const parts = [0, ...ends].map((from, part) => values.slice(from, ends[part] ?? values.length));
    return parts.flatMap((part, i) => (i ? [between(ends[i - 1]), ...part] : part));
  };
  const [raw, smooth, min, max] = [points.raw, points.smooth, points.min, points.max].map((values) =>
    split(values, () => NaN),
  );
  return { ...points, x: split(x, (i) => (x[i - 1] + x[i]) / 2), raw, smooth, min, max, marks };
}

/** @param {LineFigure} figure @param {Axis} axis @param {Record<string, string>} colors
 * @param {number} width @param {number} height @param {boolean} alone */
function layoutOf(figure, axis, colors, width, height, alone) {
  const { clock } = figure.page;
  const { from, to } = figure.along;
  const many = Math.max(2, Math.floor(width / 110));
  const steps = figure.along.packs
    ? figure.along.ticks(many).map((step) => ({ at: figure.along.place(step), text: count(step) }))
    : clock
      ? clock.ticks(from, to, many)
      : countTicks(from, to, many);
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
      ...named(figure.along.packs ? "captured step" : (clock?.title ?? "step")),
    },
    yaxis: {
      ...common,
      range: axis.range,
      tickvals: ticks.map(({ at }) => at),
      ticktext: ticks.map(({ text }) => text),
      ...named(shortened(y?.title || title, (text) => figure.widthOf(text) <= height - MARGIN.t - MARGIN.b)),
    },
  };
}
