/** Lines as SVG, from what Plotly would be given: what a chart shows until Plotly, which takes longest of all a page
 * loads, is there. It stands where Plotly draws the same. */

const SVG = "http://www.w3.org/2000/svg";
const TEXT_GAP = 3; // between the axis and its words
const SIZE = 3.5; // half of a mark
/** @type {Record<string, string>} */
const SYMBOLS = {
  "line-ns": `M0 ${-SIZE}V${SIZE}`,
  "x-thin": `M${-SIZE} ${-SIZE}L${SIZE} ${SIZE}M${SIZE} ${-SIZE}L${-SIZE} ${SIZE}`,
  "triangle-up": `M0 ${-SIZE}L${SIZE} ${SIZE}H${-SIZE}Z`,
  "triangle-down": `M0 ${SIZE}L${SIZE} ${-SIZE}H${-SIZE}Z`,
};

/** @typedef {(value: number) => number} To pixels */

/** @param {string} tag @param {Record<string, string | number | undefined>} attributes
 * @param {...(Node | string)} children */
function svg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes))
    if (value !== undefined) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/** The path of a line with holes. Pure. @param {ArrayLike<number | null>} xs @param {ArrayLike<number | null>} ys
 * @param {To} toX @param {To} toY */
export function pathOf(xs, ys, toX, toY) {
  let path = "";
  let pen = "M";
  for (let i = 0; i < xs.length; i += 1) {
    const [x, y] = [xs[i], ys[i]];
    if (x === null || y === null) {
      pen = "M";
      continue;
    }
    path += `${pen}${toX(x).toFixed(1)} ${toY(y).toFixed(1)}`;
    pen = "L";
  }
  return path;
}

/** @param {any} trace @param {To} toX @param {To} toY @returns {SVGElement[]} */
function drawn({ x, y, mode, fill, fillcolor, line, marker, opacity }, toX, toY) {
  const parts = [];
  if (fill)
    parts.push(svg("path", { d: `${pathOf(x, y, toX, toY).replaceAll("M", "ZM").slice(1)}Z`, fill: fillcolor }));
  else if (mode.includes("lines"))
    parts.push(
      svg("path", {
        d: pathOf(x, y, toX, toY),
        fill: "none",
        stroke: line.color,
        "stroke-width": line.width,
        "stroke-dasharray": line.dash === "dash" ? "9 9" : undefined,
        "stroke-linejoin": "round",
        opacity,
      }),
    );
  if (mode.includes("markers"))
    for (let i = 0; i < x.length; i += 1) {
      const at = `translate(${toX(x[i])} ${toY(y[i])})`;
      if (marker.symbol) {
        const stroke = { stroke: marker.line.width ? marker.color : undefined, "stroke-width": marker.line.width };
        parts.push(svg("path", { d: SYMBOLS[marker.symbol], transform: at, fill: marker.color, ...stroke }));
      } else if (marker.size[i])
        parts.push(svg("circle", { r: marker.size[i] / 2, transform: at, fill: marker.color }));
    }
  return parts;
}

/** The names of both axes. @param {any} layout */
function titlesOf({ width, height, margin, xaxis, yaxis, font }) {
  const common = { "font-size": 11, "font-family": font.family, "text-anchor": "middle" };
  return [xaxis, yaxis].flatMap(({ title }, isUp) => {
    if (!title) return [];
    const [x, y] = isUp ? [12, (margin.t + height - margin.b) / 2] : [(margin.l + width - margin.r) / 2, height - 4];
    const turned = isUp ? { transform: `rotate(-90 ${x} ${y})` } : {};
    return [svg("text", { ...common, ...turned, fill: title.font.color, x, y }, title.text)];
  });
}

/** @param {{traces: any[], layout: any}} figure @returns {SVGElement} */
export function sketchOf({ traces, layout }) {
  const { width, height, margin, xaxis, yaxis, font } = layout;
  const [left, right, top, bottom] = [margin.l, width - margin.r, margin.t, height - margin.b];
  /** @type {To} */
  const toX = (value) => left + ((value - xaxis.range[0]) / (xaxis.range[1] - xaxis.range[0])) * (right - left);
  /** @type {To} */
  const toY = (value) => bottom - ((value - yaxis.range[0]) / (yaxis.range[1] - yaxis.range[0])) * (bottom - top);
  const grid = yaxis.tickvals.map((/** @type {number} */ value) =>
    svg("path", { d: `M${left} ${toY(value)}H${right}`, stroke: yaxis.gridcolor }),
  );
  const [side, foot] = [left - 0.5, bottom + 0.5];
  const axes = svg("path", { d: `M${side} ${top}V${foot}H${right}`, fill: "none", stroke: yaxis.linecolor });
  const words = (/** @type {any} */ axis, /** @type {(value: number) => Record<string, string | number>} */ at) =>
    svg(
      "g",
      { fill: axis.tickfont.color, "font-size": axis.tickfont.size, "font-family": font.family },
      ...axis.tickvals.map((/** @type {number} */ value, /** @type {number} */ place) =>
        svg("text", at(value), axis.ticktext[place]),
      ),
    );
  const clipped = svg("svg", { x: left, y: top, width: right - left, height: bottom - top });
  clipped.setAttribute("viewBox", `${left} ${top} ${right - left} ${bottom - top}`);
  clipped.append(...traces.flatMap((trace) => drawn(trace, toX, toY)));
  return svg(
    "svg",
    { class: "plot-sketch", width, height, "aria-hidden": "true" },
    ...grid,
    axes,
    clipped,
    words(yaxis, (value) => ({ x: left - TEXT_GAP, y: toY(value) + 4, "text-anchor": "end" })),
    ...titlesOf({ width, height, margin, xaxis, yaxis, font }),
    words(xaxis, (value) => ({ x: toX(value), y: bottom + 14, "text-anchor": "middle" })),
  );
}
