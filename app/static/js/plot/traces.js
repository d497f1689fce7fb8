// @ts-check
/** Lines as traces for Plotly. Pure; the axis places the values. */
import { escaped } from "./library.js";

/** @typedef {import("./thin.js").Drawn} Drawn */
/** @typedef {import("./thin.js").Line} Line */

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

/** @param {Line[]} lines @param {Drawn[]} drawn @param {import("./axis.js").Axis} axis
 * @param {Record<string, string>} colors @returns {any[]} */
export function tracesOf(lines, drawn, axis, colors) {
  const bands = lines.map((line, place) => bandOf(line, drawn[place], axis, colorOf(line, place, colors)));
  const strokes = lines.flatMap((line, place) => strokesOf(line, drawn[place], axis, colorOf(line, place, colors)));
  return [...bands.filter(Boolean), ...strokes, ...marksOf(drawn, axis, colors)];
}

/** The band from min to max: a closed shape for each stretch without a hole.
 * @param {Line} line @param {Drawn} points @param {import("./axis.js").Axis} axis @param {string} color */
function bandOf(line, points, axis, color) {
  const parts = stretches(points.min);
  if (!parts.length) return null; // no band, or no finite value: a shape without points is an error in SVG
  const shapes = parts.map(([from, to]) => {
    const [xs, tops, bottoms] = [points.x, points.max, points.min].map((each) => each.slice(from, to));
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
    line: { width: 0 },
    hoverinfo: "skip",
    showlegend: !line.mean,
    name: `${escaped(line.name)}, min to max`,
    ...only,
  };
}

/** From where to where values are finite. @param {number[]} values @returns {[number, number][]} */
export function stretches(values) {
  /** @type {[number, number][]} */
  const found = [];
  let from = -1;
  for (let i = 0; i <= values.length; i += 1) {
    const there = i < values.length && Number.isFinite(values[i]);
    if (there && from < 0) from = i;
    if (there || from < 0) continue;
    found.push([from, i]);
    from = -1;
  }
  return found;
}

/** The line, with the raw one behind it if it is smoothed.
 * @param {Line} line @param {Drawn} points @param {import("./axis.js").Axis} axis @param {string} color */
function strokesOf(line, points, axis, color) {
  if (!line.mean) return [];
  const smooth = points.smooth.length > 0;
  const common = { type: "scatter", x: points.x, hoverinfo: "none", connectgaps: false };
  const dash = line.dashed ? "dash" : "solid";
  const raw = {
    ...common,
    ...pen(points.raw, color, smooth ? 1 : 1.75, dash),
    y: placed(points.raw, axis),
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
      y: placed(points.smooth, axis),
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

/** @param {number[]} values @param {import("./axis.js").Axis} axis */
function placed(values, axis) {
  return values.map((value) => (Number.isFinite(value) ? axis.place(value) : null));
}

/** What was not finite, at the foot of the axis, by symbol and color.
 * @param {Drawn[]} drawn @param {import("./axis.js").Axis} axis @param {Record<string, string>} colors */
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
