// @ts-check
/** The bars of one step as a table and as pictures. */

import { pixelRatio } from "../canvas/index.js";
import { titledPng, titledSvg } from "../canvas/titled.js";
import { MISSING } from "../canvas/worst.js";
import { number } from "../format.js";
import { drawMarks, svgOf as svgOfMarks } from "../heat/pen.js";

/** @typedef {import("./profile.js").Profile} Profile */

/** The value of these bits; null if it was not captured. @param {number | undefined} bits */
function floatOf(bits) {
  return bits === undefined || bits === MISSING ? null : new Float32Array(Uint32Array.of(bits).buffer)[0];
}

/** @param {number | undefined} bits */
export function wordOf(bits) {
  const value = floatOf(bits);
  return value === null ? "not captured" : number(value);
}

/** Returns the layers from last to first, because tables show their end first.
 * @param {Profile} profile @returns {{columns: string[], rows: any[][]}} */
export function tableOf({ shown, bits, values }) {
  const columns = ["layer", "type", `activation ${values[0].stat}`, `gradient ${values[1].stat}`];
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
export function pngOf(profile) {
  const { clientWidth: width, clientHeight: height } = profile.canvas;
  return titledPng(titleOf(profile), width, height, pixelRatio(), (pen) => drawMarks(pen, profile.marks));
}

/** @param {Profile} profile */
export function svgOf(profile) {
  const { clientWidth: width, clientHeight: height } = profile.canvas;
  return titledSvg(titleOf(profile), width, height, svgOfMarks(profile.marks));
}
