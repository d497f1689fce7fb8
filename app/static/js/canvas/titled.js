// @ts-check
/** Pictures of a chart with its title above. */

import { escaped } from "../heat/pen.js";
import { imageOf } from "../plot/files.js";
import { colors } from "../theme.js";
import { penOf } from "./index.js";

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
