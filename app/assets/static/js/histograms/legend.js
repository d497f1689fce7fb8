// @ts-check
/** The legend of histograms over steps. */
import { makeBar, paintBar, swatch } from "../canvas/colorbar.js";
import { h } from "../dom.js";
import { percent } from "../format.js";
import { prefs } from "../prefs.js";
import { SHARES } from "./paint.js";

/** Returns a bar of shares, and the signs of values outside of all bins. */
export function histLegend() {
  const bar = makeBar("dark: few of a step's values; bright: many");
  const draw = () => paintBar(bar, prefs.get("colors"));
  draw();
  prefs.on("colors", draw);
  const ends = [`\u2264${100 * SHARES[0]}%`, `\u2265 ${percent(SHARES[1]).replace(".0", "")}`];
  return h(
    "span",
    { class: "hist-legend" },
    h("span", { class: "scale" }, "share of a step's values: ", ends[0], bar, ends[1]),
    swatch("nan", "NaN"),
    swatch("inf", "infinite"),
    swatch("missing", "not captured"),
  );
}
