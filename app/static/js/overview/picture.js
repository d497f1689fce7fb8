/** The heatmap of the whole model, on the Summary. Loaded when it comes into view. */
import { byId } from "../dom.js";
import { Finder } from "../finder.js";
import { count } from "../format.js";
import { LayerMap } from "../heat/layers.js";
import { MAX_LIVE_ROWS } from "../limits.js";

/** @import { LayerNames } from "../drawer/names.js"
 * @import { Page } from "../page.js" */

/** @param {Page} page @param {LayerNames} names */
export function showModel(page, names) {
  const { state } = page;
  const cut = byId("model-cut");
  const usual = byId("model").dataset.kind ?? "";
  const asked = () => ({ kind: state.get("kind") || usual, stat: state.get("stat") || "norm" });
  const finder = new Finder(page, () => map.choose());
  const map = new LayerMap(page, "model", names, {
    title: "All layers",
    asked,
    rows: () => (state.get("f") ? `idx:0-${MAX_LIVE_ROWS - 1}` : undefined),
    finder,
    told: ({ rows, taps }) => {
      cut.hidden = !finder.text || taps <= rows.length;
      cut.textContent = `The filter searches the first ${count(rows.length)} of ${count(taps)} layers here.`;
    },
  });
  for (const name of ["kind", "stat", "f"]) state.on(name, () => map.renew());
  for (const name of ["kind", "stat"])
    state.on(name, () => {
      byId("model-larger").href = page.address("flow", asked());
    });
}
