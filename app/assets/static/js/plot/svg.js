// @ts-check
/** Charts of lines as SVG. */
import { colors, SANS } from "../theme.js";
import { SIGNS } from "./traces.js";

const SVG = "http://www.w3.org/2000/svg";
const TEXT_GAP = 3; // between the axis and its words
const FONT = { "font-family": SANS, "font-size": 11 };

/** @typedef {(value: number) => number} To pixels */
/** @typedef {{range: [number, number], ticks: {at: number, text: string}[], title?: string}} Side an axis */
/**
 * @typedef {{traces: import("./traces.js").Trace[], width: number, height: number,
 *   margin: {l: number, r: number, t: number, b: number}, x: Side, y: Side}} Picture
 */

/** @param {string} tag @param {Record<string, string | number | undefined>} attributes
 * @param {...(Node | string)} children */
export function svg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes))
    if (value !== undefined) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/** The path of a line with holes. Pure. @param {ArrayLike<number>} xs @param {ArrayLike<number | null>} ys
 * @param {To} toX @param {To} toY */
export function pathOf(xs, ys, toX, toY) {
  let path = "";
  let pen = "M";
  for (let i = 0; i < xs.length; i += 1) {
    const y = ys[i];
    if (y !== null) path += `${pen}${toX(xs[i]).toFixed(1)} ${toY(y).toFixed(1)}`;
    pen = y === null ? "M" : "L";
  }
  return path;
}

/** @param {import("./traces.js").Trace} trace @param {To} toX @param {To} toY @returns {SVGElement} */
function shapeOf({ kind, x, y, color, opacity, width, dashed, sign = "nan" }, toX, toY) {
  if (kind === "marks") {
    const texts = x.map((step, i) => svg("text", { x: toX(step), y: toY(Number(y[i])) + 3 }, SIGNS[sign][0]));
    return svg("g", { class: `marks ${sign}`, fill: color, "font-size": 9, "text-anchor": "middle" }, ...texts);
  }
  const d = pathOf(x, y, toX, toY);
  if (kind === "band") return svg("path", { class: "band", d: `${d}Z`, fill: color, opacity });
  const dash = dashed ? "9 9" : undefined;
  const line = { stroke: color, "stroke-width": width, "stroke-dasharray": dash, "stroke-linejoin": "round" };
  return svg("path", { class: "stroke", d, fill: "none", ...line, "stroke-linecap": dash ? "butt" : "round", opacity });
}

/** @param {Picture} picture */
export function svgOf({ traces, width, height, margin, x, y }) {
  const page = colors();
  const [left, right, top, bottom] = [margin.l, width - margin.r, margin.t, height - margin.b];
  /** @type {To} */
  const toX = (value) => left + ((value - x.range[0]) / (x.range[1] - x.range[0])) * (right - left);
  /** @type {To} */
  const toY = (value) => bottom - ((value - y.range[0]) / (y.range[1] - y.range[0])) * (bottom - top);
  const grid = y.ticks.map(({ at }) => svg("path", { d: `M${left} ${toY(at)}H${right}`, stroke: page.line }));
  const [side, foot] = [left - 0.5, bottom + 0.5];
  const axes = svg("path", { d: `M${side} ${top}V${foot}H${right}`, fill: "none", stroke: page.line });
  const words = (/** @type {string} */ name, /** @type {SVGElement[]} */ texts) =>
    svg("g", { class: name, fill: page.quiet, ...FONT }, ...texts);
  const middle = { "text-anchor": "middle" };
  const up = y.ticks.map(({ at, text }) =>
    svg("text", { x: left - TEXT_GAP, y: toY(at) + 4, "text-anchor": "end" }, text),
  );
  const along = x.ticks.map(({ at, text }) => svg("text", { x: toX(at), y: bottom + 14, ...middle }, text));
  const turned = `translate(12 ${(top + bottom) / 2}) rotate(-90)`;
  const titles = [
    ...(x.title ? [svg("text", { x: (left + right) / 2, y: bottom + 32, ...middle }, x.title)] : []),
    ...(y.title ? [svg("text", { transform: turned, ...middle }, y.title)] : []),
  ];
  const box = { x: left, y: top, width: right - left, height: bottom - top };
  const clipped = svg("svg", { ...box, viewBox: Object.values(box).join(" ") });
  clipped.append(...traces.map((trace) => shapeOf(trace, toX, toY)));
  return svg(
    "svg",
    { class: "plot-lines", width, height, "aria-hidden": "true", "data-steps": x.range.join(" ") },
    ...grid,
    axes,
    clipped,
    words("ytick", up),
    words("xtick", along),
    words("titles", titles),
  );
}
