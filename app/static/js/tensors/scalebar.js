// @ts-check
/** What the colors of tiles mean. */
import { cssOf, tableOf } from "../colors.js";
import { h } from "../dom.js";
import { number } from "../format.js";
import { prefs } from "../prefs.js";
import { isDark } from "../theme.js";

const COLORS = 128;

/** Fills an element with the bar of a picture. @param {HTMLElement} element @param {import("./tiles.js").Tiles | null} tiles */
export function showScale(element, tiles) {
  element.replaceChildren();
  if (!tiles?.ranges.length) return;
  const { ranges } = tiles;
  const bar = /** @type {HTMLCanvasElement} */ (
    h("canvas", { width: COLORS, height: 1, role: "img", "aria-label": "the colors, from low to high" })
  );
  const table = tableOf(ranges[0].signed ? "diverging" : /** @type {any} */ (prefs.get("colors")), isDark());
  const pen = bar.getContext("2d");
  for (let x = 0; pen && x < COLORS; x += 1) {
    pen.fillStyle = cssOf(table[Math.round((x / (COLORS - 1)) * 255)]);
    pen.fillRect(x, 0, 1, 1);
  }
  const { low, high, clipped } = ranges[0];
  const ends =
    ranges.length > 1
      ? ["smallest", "largest of each tile"]
      : [`${clipped[0] ? "\u2264 " : ""}${number(low)}`, `${clipped[1] ? "\u2265 " : ""}${number(high)}`];
  const sign = (/** @type {string} */ name, /** @type {string} */ words) =>
    h("span", {}, h("span", { class: `swatch ${name}`, "aria-hidden": "true" }), words);
  element.append(
    ends[0],
    bar,
    ends[1],
    sign("nan", "NaN"),
    sign("inf", "infinite"),
    ...(tiles.causal ? [sign("missing", "masked")] : []),
  );
}
