// @ts-check
/** A heatmap as a picture with its title, as SVG, and as a table. */
import { imageOf } from "../plot/files.js";
import { MISSING } from "../worst.js";
import { escaped, svgOf as svgOfMarks } from "./pen.js";
import { marksOf } from "./picture.js";
import { labelOf, onsets } from "./rows.js";

const TITLE_PX = 26;

/** @typedef {import("./index.js").Heat} Heat */

/** The title, and of what it is. @param {Heat} heat */
function titleOf(heat) {
  return [heat.options.title, heat.page.runName].filter(Boolean).join(" \u00b7 ");
}

/** @param {Heat} heat @returns {Promise<Blob>} */
export async function pngOf(heat) {
  const { screen } = heat;
  const picture = screen.copy();
  const ratio = picture.width / Math.max(1, screen.plot.clientWidth);
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: picture.width, height: picture.height + Math.round(TITLE_PX * ratio) });
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const page = screen.scene?.page ?? { card: "#fff", ink: "#000" };
  context.fillStyle = page.card;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(picture, 0, Math.round(TITLE_PX * ratio));
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = page.ink;
  context.font = "600 14px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.fillText(titleOf(heat), 10, TITLE_PX / 2);
  return imageOf(canvas);
}

/** Names, axes and legend as text; the cells as an embedded picture. @param {Heat} heat */
export function svgOf(heat) {
  const { scene } = heat.screen;
  if (scene === null) throw new Error("the chart is still empty");
  const { width, height, plot } = scene.layout;
  const copy = heat.screen.copy();
  const ratio = copy.width / width;
  const cells = document.createElement("canvas");
  Object.assign(cells, { width: Math.round(plot.w * ratio), height: Math.round(plot.h * ratio) });
  cells.getContext("2d")?.drawImage(copy, -Math.round(plot.x * ratio), -Math.round(plot.y * ratio));
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height + TITLE_PX}" viewBox="0 ${-TITLE_PX} ${width} ${height + TITLE_PX}">`,
    `<rect y="${-TITLE_PX}" width="${width}" height="${height + TITLE_PX}" fill="${scene.page.card}"/>`,
    `<text x="10" y="${-TITLE_PX / 2}" fill="${scene.page.ink}" font-family="system-ui, sans-serif" font-size="14" font-weight="600" dominant-baseline="central">${escaped(titleOf(heat))}</text>`,
    `<image x="${plot.x}" y="${plot.y}" width="${plot.w}" height="${plot.h}" preserveAspectRatio="none" style="image-rendering:pixelated" href="${cells.toDataURL("image/png")}"/>`,
    svgOfMarks(marksOf(scene)),
    "</svg>",
  ].join("\n");
}

/** @param {Heat} heat @returns {{columns: string[], rows: any[][]}} the last row of the picture first: tables are read from their end */
export function tableOf(heat) {
  const { columns, rows, order, span } = heat;
  const names = ["layer", "type", "value", "smallest", "largest", "non-finite since step"];
  if (columns === null || !columns.length || span === null) return { columns: names, rows: [] };
  const at = Math.max(0, columns.find(heat.page.follow.step ?? span[1]));
  const since = onsets(columns);
  const found = Array.from(order, (row) => {
    const [low, high] = extremes(columns, row);
    return [
      labelOf(rows[row]),
      rows[row].type ?? "",
      cellValue(columns, at, row),
      low,
      high,
      Number.isFinite(since[row]) ? since[row] : null,
    ];
  });
  return { columns: names, rows: found.reverse() };
}

/** The value of a cell; null if it was not sampled. @param {import("../columns.js").Columns} columns @param {number} i @param {number} row */
export function cellValue(columns, i, row) {
  return columns.bits(i)[row] === MISSING ? null : columns.value(i, row);
}

/** @param {import("../columns.js").Columns} columns @param {number} row @returns {[number | null, number | null]} */
function extremes(columns, row) {
  let [low, high] = [Infinity, -Infinity];
  for (let i = 0; i < columns.length; i += 1) {
    const value = columns.value(i, row);
    if (!Number.isFinite(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return low <= high ? [low, high] : [null, null];
}
