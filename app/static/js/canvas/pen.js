/** Draws marks on a canvas or as SVG, and pictures of a chart with its title above. */

import { colors, SANS } from "../theme.js";
import { imageOf, penOf } from "./chart.js";

const MONO = 'ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace';
const SIZE = { sans: 11, mono: 10 };

/** @typedef {{kind: "rect", x: number, y: number, w: number, h: number, fill: string, hatch?: string} | {kind: "text",
 * x: number, y: number, text: string, fill: string, align: "left" | "right" | "center", mono?: boolean}} Mark */

/** @param {number} x @param {number} y @param {number} w @param {number} h @param {string} fill @param {string} [hatch]
 * @returns {Mark} */
export function rect(x, y, w, h, fill, hatch) {
  return { kind: "rect", x, y, w, h, fill, ...(hatch === undefined ? {} : { hatch }) };
}

/** @param {number} x @param {number} y its middle @param {string} text @param {string} fill
 * @param {"left" | "right" | "center"} align @param {{mono?: boolean}} [how] @returns {Mark} */
export function words(x, y, text, fill, align, how) {
  return { kind: "text", x, y, text, fill, align, ...how };
}

/** @param {CanvasRenderingContext2D} context @param {readonly Mark[]} marks */
export function drawMarks(context, marks) {
  context.textBaseline = "middle";
  let font = "";
  for (const mark of marks) {
    context.fillStyle = mark.fill;
    if (mark.kind === "rect") {
      context.fillRect(mark.x, mark.y, mark.w, mark.h);
      if (mark.hatch) hatch(context, mark, mark.hatch);
      continue;
    }
    const wanted = `${mark.mono ? SIZE.mono : SIZE.sans}px ${mark.mono ? MONO : SANS}`;
    if (wanted !== font) context.font = font = wanted;
    context.textAlign = mark.align;
    context.fillText(mark.text, mark.x, mark.y);
  }
}

/** @param {CanvasRenderingContext2D} context @param {{x: number, y: number, w: number, h: number}} box
 * @param {string} color */
function hatch(context, box, color) {
  context.save();
  context.beginPath();
  context.rect(box.x, box.y, box.w, box.h);
  context.clip();
  context.strokeStyle = color;
  context.beginPath();
  for (let x = box.x - box.h; x < box.x + box.w; x += 4) {
    context.moveTo(x, box.y + box.h);
    context.lineTo(x + box.h, box.y);
  }
  context.stroke();
  context.restore();
}

/** @param {readonly Mark[]} marks @returns {string} */
export function svgOf(marks) {
  const anchors = { left: "start", right: "end", center: "middle" };
  return marks
    .map((mark) => {
      if (mark.kind === "rect")
        return `<rect x="${mark.x}" y="${mark.y}" width="${mark.w}" height="${mark.h}" fill="${mark.fill}"/>`;
      const [family, size] = mark.mono ? [MONO, SIZE.mono] : [SANS, SIZE.sans];
      const font = `font-family="${escaped(family)}" font-size="${size}"`;
      const place = `x="${mark.x}" y="${mark.y}" text-anchor="${anchors[mark.align]}" dominant-baseline="central"`;
      return `<text ${place} fill="${mark.fill}" ${font}>${escaped(mark.text)}</text>`;
    })
    .join("\n");
}

/** @param {string} text */
export function escaped(text) {
  const words = /** @type {Record<string, string>} */ ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" });
  // biome-ignore lint/suspicious/noControlCharactersInRegex: XML has no way to write them.
  return text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, "\ufffd").replace(/[&<>"]/g, (sign) => words[sign]);
}

const TITLE_PX = 26;

/** @param {string} title @param {number} width @param {number} height of the chart @param {number} ratio
 * @param {(pen: CanvasRenderingContext2D, top: number) => void} paint the pen is at the chart's corner; `top` is its
 *   place in device pixels @returns {Promise<Blob>} */
export function titledPng(title, width, height, ratio, paint) {
  const canvas = document.createElement("canvas");
  const pen = penOf(canvas, width, height + TITLE_PX, ratio);
  const { card, ink } = colors();
  pen.fillStyle = card;
  pen.fillRect(0, 0, width, height + TITLE_PX);
  pen.fillStyle = ink;
  pen.font = "600 14px system-ui, sans-serif";
  pen.textBaseline = "middle";
  pen.fillText(title, 10, TITLE_PX / 2);
  pen.translate(0, TITLE_PX);
  paint(pen, Math.round(TITLE_PX * ratio));
  return imageOf(canvas);
}

/** @param {string} title @param {number} width @param {number} height @param {...string} body elements */
export function titledSvg(title, width, height, ...body) {
  const { card, ink } = colors();
  const tall = height + TITLE_PX;
  const font = 'font-family="system-ui, sans-serif" font-size="14" font-weight="600" dominant-baseline="central"';
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${tall}" ` +
      `viewBox="0 ${-TITLE_PX} ${width} ${tall}">`,
    `<rect y="${-TITLE_PX}" width="${width}" height="${tall}" fill="${card}"/>`,
    `<text x="10" y="${-TITLE_PX / 2}" fill="${ink}" ${font}>${escaped(title)}</text>`,
    ...body,
    "</svg>",
  ].join("\n");
}
