// @ts-check
/** The colors of a map as a bar, and the signs for values outside of it. */

import { h } from "../dom.js";
import { cssOf, STEPS, tableOf } from "./colors.js";

const COLORS = 128;

/** @param {string} label read aloud */
export function makeBar(label) {
  return /** @type {HTMLCanvasElement} */ (
    h("canvas", { width: COLORS, height: 1, role: "img", "aria-label": label, class: "color-bar" })
  );
}

/** Paints a bar from low to high. @param {HTMLCanvasElement} bar @param {boolean} [signed] as in `tableOf` */
export function paintBar(bar, signed) {
  const table = tableOf(signed);
  const pen = /** @type {CanvasRenderingContext2D} */ (bar.getContext("2d"));
  for (let x = 0; x < COLORS; x += 1) {
    pen.fillStyle = cssOf(table[Math.round((x / (COLORS - 1)) * (STEPS - 1))]);
    pen.fillRect(x, 0, 1, 1);
  }
  return bar;
}

/** @param {"nan" | "inf" | "missing"} name @param {string} words */
export function swatch(name, words) {
  return h("span", {}, h("span", { class: `swatch ${name}`, "aria-hidden": "true" }), words);
}
