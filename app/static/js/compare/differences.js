// @ts-check
/** How far two runs are apart, layer by step, as a heatmap. */
import { get } from "../api.js";
import { EVERYTHING, parse } from "../find.js";
import { Heat } from "../heat.js";
import { bitsOf } from "./bits.js";

const COLUMNS = 300;
const ROWS = 2000;

export class Differences {
  found = EVERYTHING;

  /** @param {import("../page.js").Page} page @param {HTMLElement} figure @param {() => Record<string, any>} asked @param {(module: string) => void} onPick */
  constructor(page, figure, asked, onPick) {
    this.page = page;
    this.asked = asked;
    this.said = /** @type {HTMLElement} */ (figure.querySelector("#differences-said"));
    const query = () => ({ path: "compare/heatmap", query: { ...asked(), columns: COLUMNS, rows: ROWS } });
    this.heat = new Heat(page, figure, { title: "Difference by layer and step", kind: "", stat: "relative difference", onPick: (row) => onPick(row.module), query });
    page.state.on("f", () => this.arrange());
  }

  async load() {
    try {
      const { rows, first_step: first, last_step: last, worst, state } = await get("compare/heatmap", { ...this.asked(), columns: COLUMNS, rows: ROWS });
      this.heat.setRows(rows.map((/** @type {any} */ row) => ({ ...row, group: row.taps })), [Math.max(1, first.length), 1], "difference");
      this.heat.take({ kind: "snapshot", k: first.length, n: rows.length, bits: bitsOf(worst, state), first, last });
      this.arrange();
    } catch (error) {
      this.said.textContent = /** @type {Error} */ (error).message;
    }
  }

  /** Which rows are found. */
  arrange() {
    this.found = parse(this.page.state.get("f"), this.found);
    const { rows } = this.heat;
    const shown = [...rows.keys()].filter((row) => this.found.test({ path: rows[row].module, type: rows[row].type }));
    this.heat.setOrder(shown);
    this.said.textContent = this.found.problem || (shown.length < rows.length ? `${shown.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rows` : "");
    this.heat.draw();
  }
}
