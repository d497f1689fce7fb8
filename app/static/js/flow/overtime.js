/** What the page Flow shows over steps: all layers, and the updates of parameters. Loaded when it comes into view. */
import { LayerMap } from "../heat/layers.js";

/** @import { LayerNames } from "../drawer/names.js"
 * @import { Finder } from "../finder.js"
 * @import { Row } from "../heat/rows.js"
 * @import { Page } from "../page.js" */

export class Maps {
  /** @param {Page} page @param {LayerNames} names @param {Finder} finder @param {(row: Row) => boolean} fits */
  constructor(page, names, finder, fits) {
    const { state } = page;
    const asked = () => ({ kind: state.get("kind"), stat: state.get("stat") });
    this.overTime = new LayerMap(page, "flow", names, { title: "Over steps", asked, finder, fits });
    const ratio = { title: "Update-to-weight ratio", asked: () => ({ kind: "update", stat: "ratio" }) };
    this.ratio = new LayerMap(page, "ratio", names, { ...ratio, finder, fits });
    const { heat } = this.overTime;
    /** @type {[string, () => void][]} */
    const looks = [
      ["rows", () => heat.setFit(state.get("rows") === "read" ? "read" : "fit")],
      ["y", () => heat.setScale(/** @type {any} */ (state.get("y")))],
      ["relative", () => heat.setRelative(state.get("relative") === "1")],
    ];
    for (const [name, look] of looks) {
      state.on(name, look);
      look();
    }
    for (const name of ["kind", "stat"]) state.on(name, () => this.overTime.renew());
    state.on("sort", () => this.overTime.choose());
  }

  /** Shows what matches the filter now. */
  choose() {
    this.overTime.choose();
    this.ratio.choose();
  }

  /** The modules in the order that is seen. */
  get modules() {
    const { order, rows } = this.overTime.heat;
    return Array.from(order, (row) => rows[row].module);
  }
}
