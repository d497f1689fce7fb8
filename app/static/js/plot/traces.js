// @ts-check
/** Lines as Plotly's traces. Pure: data in, data out; where a value stands is the axis' business. */

/** @typedef {import("./thin.js").Drawn} Drawn */
/** @typedef {import("./thin.js").Line} Line */

const RAW_BEHIND = 0.35;
const BAND = 0.18;
const ROUND = 0.02; // of the axis' length: the marks stand so far above its foot

/** What stands for what is not finite: its symbol, its colour's name, its words. @type {Record<string, [string, string, string]>} */
export const SIGNS = { nan: ["x-thin", "nan", "NaN"], inf: ["triangle-up", "inf", "Infinity"], "-inf": ["triangle-down", "inf", "-Infinity"] };

/** @param {string} colour #rgb or #rrggbb @param {number} share */
export function faint(colour, share) {
  const hex = colour.length === 4 ? [...colour.slice(1)].map((sign) => sign + sign).join("") : colour.slice(1);
  const parts = [0, 2, 4].map((place) => parseInt(hex.slice(place, place + 2), 16));
  return parts.some(Number.isNaN) ? colour : `rgba(${parts.join(",")},${share})`;
}

/** @param {Line} line @param {number} place of it among the lines @param {Record<string, string>} colours */
export function colourOf(line, place, colours) {
  return line.colour ? (colours[line.colour] ?? line.colour) : colours[`line${(place % 4) + 1}`];
}

/**
 * @param {Line[]} lines @param {Drawn[]} drawn @param {import("./axis.js").Axis} axis @param {Record<string, string>} colours
 * @returns {any[]}
 */
export function tracesOf(lines, drawn, axis, colours) {
  const bands = lines.map((line, place) => bandOf(line, drawn[place], axis, colourOf(line, place, colours)));
  const strokes = lines.flatMap((line, place) => strokesOf(line, drawn[place], axis, colourOf(line, place, colours)));
  return [...bands.filter(Boolean), ...strokes, ...marksOf(drawn, axis, colours)];
}

/** The band from min to max: a closed shape for each stretch without a hole. @param {Line} line @param {Drawn} points @param {import("./axis.js").Axis} axis @param {string} colour */
function bandOf(line, points, axis, colour) {
  if (!points.min.length) return null;
  const x = [];
  const y = [];
  for (const [from, to] of stretches(points.min)) {
    if (x.length) x.push(null), y.push(null);
    for (let i = from; i < to; i += 1) x.push(points.x[i]), y.push(axis.place(points.max[i]));
    for (let i = to - 1; i >= from; i -= 1) x.push(points.x[i]), y.push(axis.place(points.min[i]));
  }
  const only = line.mean ? {} : { name: line.name };
  return { type: "scatter", mode: "lines", x, y, fill: "toself", fillcolor: faint(colour, line.opacity ?? BAND), line: { width: 0 }, hoverinfo: "skip", showlegend: !line.mean, name: `${line.name}, min to max`, ...only };
}

/** From where to where values are finite. @param {number[]} values @returns {[number, number][]} */
export function stretches(values) {
  /** @type {[number, number][]} */
  const found = [];
  let from = -1;
  for (let i = 0; i <= values.length; i += 1) {
    const there = i < values.length && Number.isFinite(values[i]);
    if (there && from < 0) from = i;
    if (!there && from >= 0) found.push([from, i]), (from = -1);
  }
  return found;
}

/** The line, with what came behind it where it is smoothed. @param {Line} line @param {Drawn} points @param {import("./axis.js").Axis} axis @param {string} colour */
function strokesOf(line, points, axis, colour) {
  if (!line.mean) return [];
  const smooth = points.smooth.length > 0;
  const common = { type: "scatter", x: points.x, hoverinfo: "none", connectgaps: false };
  const dash = line.dashed ? "dash" : "solid";
  const raw = { ...common, ...pen(points.raw, colour, smooth ? 1 : 1.75, dash), y: placed(points.raw, axis), name: line.name, opacity: smooth ? RAW_BEHIND : 1, showlegend: !smooth };
  if (!smooth) return [raw];
  return [raw, { ...common, ...pen(points.smooth, colour, 1.75, dash), y: placed(points.smooth, axis), name: line.name, showlegend: true }];
}

/** A line needs two points: one between holes is a dot. @param {number[]} values @param {string} colour @param {number} width @param {string} dash */
function pen(values, colour, width, dash) {
  const alone = new Set(stretches(values).filter(([from, to]) => to - from === 1).map(([from]) => from));
  const line = { color: colour, width, dash, simplify: true };
  if (!alone.size) return { mode: "lines", line };
  return { mode: "lines+markers", line, marker: { color: colour, size: values.map((_, place) => (alone.has(place) ? 4 : 0)) } };
}

/** @param {number[]} values @param {import("./axis.js").Axis} axis */
function placed(values, axis) {
  return values.map((value) => (Number.isFinite(value) ? axis.place(value) : null));
}

/** What was not finite, at the foot of the axis, by symbol and colour. @param {Drawn[]} drawn @param {import("./axis.js").Axis} axis @param {Record<string, string>} colours */
function marksOf(drawn, axis, colours) {
  const foot = axis.range[0] + (axis.range[1] - axis.range[0]) * ROUND;
  return Object.entries(SIGNS).flatMap(([sign, [symbol, colour, words]]) => {
    const at = [...new Set(drawn.flatMap(({ marks }) => marks.filter((mark) => mark.sign === sign).map(({ x }) => x)))].sort((a, b) => a - b);
    if (!at.length) return [];
    const marker = { symbol, size: 7, color: colours[colour], line: { color: colours[colour], width: sign === "nan" ? 1.75 : 0 } };
    return [{ type: "scatter", mode: "markers", x: at, y: at.map(() => foot), marker, name: words, hoverinfo: "none", cliponaxis: false }];
  });
}
