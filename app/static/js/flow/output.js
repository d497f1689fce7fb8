// @ts-check
/** The bars of one step as a table and as pictures. */

import { number } from "../format.js";
import { drawMarks, escaped, svgOf as svgOfMarks } from "../heat/pen.js";
import { imageOf } from "../plot/files.js";
import { colors } from "../theme.js";
import { MISSING } from "../worst.js";

const TITLE_PX = 26;

/** @typedef {import("./profile.js").Profile} Profile */

/** A canvas with as many pixels as the screen has there, empty. @param {HTMLCanvasElement} canvas @param {number} width @param {number} height */
export function sized(canvas, width, height) {
  const ratio = globalThis.devicePixelRatio || 1;
  const size = { width: Math.round(width * ratio), height: Math.round(height * ratio) };
  if (canvas.width !== size.width || canvas.height !== size.height) Object.assign(canvas, size);
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}

/** The value of these bits; null if it was not sampled. @param {number | undefined} bits */
export function floatOf(bits) {
  return bits === undefined || bits === MISSING ? null : new Float32Array(Uint32Array.of(bits).buffer)[0];
}

/** @param {number | undefined} bits */
export function wordOf(bits) {
  const value = floatOf(bits);
  return value === null ? "not captured" : number(value);
}

/** @param {Profile} profile @returns {{columns: string[], rows: any[][]}} the first layer last: tables are read from their end */
export function tableOf({ shown, bits, values }) {
  const columns = ["layer", "type", `activation ${values[0].stat()}`, `gradient ${values[1].stat()}`];
  const rows = shown.map((layer, place) => [
    layer.label,
    layer.type,
    floatOf(bits[0]?.[place]),
    floatOf(bits[1]?.[place]),
  ]);
  return { columns, rows: rows.reverse() };
}

/** @param {Profile} profile */
function titleOf({ page, step }) {
  return [`Step ${step ?? ""}, from input to output`, page.runName].filter(Boolean).join(" \u00b7 ");
}

/** @param {Profile} profile @returns {Promise<Blob>} */
export async function pngOf(profile) {
  const { clientWidth: width, clientHeight: height } = profile.plot;
  const canvas = document.createElement("canvas");
  const pen = sized(canvas, width, height + TITLE_PX);
  const page = colors();
  pen.fillStyle = page.card;
  pen.fillRect(0, 0, width, height + TITLE_PX);
  drawMarks(pen, [
    { kind: "text", x: 10, y: TITLE_PX / 2, text: titleOf(profile), fill: page.ink, align: "left", bold: true },
  ]);
  pen.translate(0, TITLE_PX);
  drawMarks(pen, profile.marks);
  return imageOf(canvas);
}

/** @param {Profile} profile */
export function svgOf(profile) {
  const { clientWidth: width, clientHeight: height } = profile.plot;
  const page = colors();
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height + TITLE_PX}" viewBox="0 ${-TITLE_PX} ${width} ${height + TITLE_PX}">`,
    `<rect y="${-TITLE_PX}" width="${width}" height="${height + TITLE_PX}" fill="${page.card}"/>`,
    `<text x="10" y="${-TITLE_PX / 2}" fill="${page.ink}" font-family="system-ui, sans-serif" font-size="14" font-weight="600">${escaped(titleOf(profile))}</text>`,
    svgOfMarks(profile.marks),
    "</svg>",
  ].join("\n");
}
