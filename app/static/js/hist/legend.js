// @ts-check
/** What the colors of histograms mean. */
import { cssOf, tableOf } from "../colors.js";
import { h } from "../dom.js";
import { percent } from "../format.js";
import { prefs } from "../prefs.js";
import { onTheme } from "../theme.js";
import { SHARES } from "./paint.js";

const COLORS = 132;

/** A bar with shares, and signs for what no bin holds. */
export function histLegend() {
  const bar = /** @type {HTMLCanvasElement} */ (
    h("canvas", { width: COLORS, height: 1, role: "img", "aria-label": "dark: few of a step's values; bright: many" })
  );
  const draw = () => {
    const pen = bar.getContext("2d");
    const table = tableOf(/** @type {any} */ (prefs.get("colors")));
    for (let x = 0; pen && x < COLORS; x += 1) {
      pen.fillStyle = cssOf(table[Math.round((x / (COLORS - 1)) * 255)]);
      pen.fillRect(x, 0, 1, 1);
    }
  };
  draw();
  onTheme(draw);
  prefs.on("colors", draw);
  const sign = (/** @type {string} */ name, /** @type {string} */ words) =>
    h("span", {}, h("span", { class: `swatch ${name}`, "aria-hidden": "true" }), words);
  return h(
    "span",
    { class: "hist-legend" },
    h(
      "span",
      { class: "scale" },
      "share of a step's values: \u2264",
      `${100 * SHARES[0]}%`,
      bar,
      `\u2265 ${percent(SHARES[1]).replace(".0", "")}`,
    ),
    sign("nan", "NaN"),
    sign("inf", "infinite"),
    sign("missing", "not captured"),
  );
}
