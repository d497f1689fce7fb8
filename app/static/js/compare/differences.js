/** How two runs differ, layer by step. Loaded when it comes into view. */
import { get } from "../api.js";
import { bitsOf, INFINITE, MISSING, NAN } from "../canvas/columns.js";
import { Finder } from "../finder.js";
import { count, counted } from "../format.js";
import { Heat } from "../heat/heat.js";
import { failedWords } from "../live/refresh.js";

const COLUMNS = 300;
const ROWS = 2000;

export class Differences {
  /** @param {import("../page.js").Page} page @param {HTMLElement} figure @param {() => Record<string, any>} asked
   * @param {string} run the one in which the find box searches @param {(module: string) => void} onPick */
  constructor(page, figure, asked, run, onPick) {
    this.page = page;
    this.asked = asked;
    this.said = /** @type {HTMLElement} */ (figure.querySelector("#differences-said"));
    const query = () => ({
      path: "compare/heatmap",
      query: { ...asked(), ...page.follow.values, columns: COLUMNS, rows: ROWS },
    });
    this.heat = new Heat(page, figure, {
      title: "Difference by layer and step",
      kind: "",
      stat: "relative difference",
      onPick: (row) => onPick(row.module),
      query,
    });
    this.finder = new Finder(page, () => this.arrange(), { run });
  }

  /** @param {AbortSignal} signal */
  async load(signal) {
    try {
      const query = { ...this.asked(), ...this.page.follow.values, columns: COLUMNS, rows: ROWS };
      const { rows, first_step: first, last_step: last, worst, state } = await get("compare/heatmap", query, signal);
      signal.throwIfAborted();
      this.heat.setRows(rows, [Math.max(1, first.length), 1], "difference");
      this.heat.take({ kind: "snapshot", k: first.length, n: rows.length, bits: cellsOf(worst, state), first, last });
      this.arrange();
      this.finder.renew();
    } catch (error) {
      if (!signal.aborted && !this.heat.rows.length) this.said.textContent = failedWords(error);
      throw error;
    }
  }

  /** Which rows are found. */
  arrange() {
    const { rows } = this.heat;
    const shown = [...rows.keys()].filter((row) => this.finder.fits(rows[row].module));
    this.heat.setOrder(shown);
    this.said.textContent =
      shown.length < rows.length ? `${count(shown.length)} of ${counted(rows.length, "row")}` : "";
    this.heat.draw();
  }
}

/** The bits of the cells. Three states are no numbers: not compared, finite in one run only (NaN), and NaN or infinite
 * in both (infinity). @param {(number | string)[][]} worst [row][column] @param {number[][]} state the same */
export function cellsOf(worst, state) {
  const signs = [MISSING, null, NAN, INFINITE];
  return bitsOf(worst, (_, row, column) => signs[state[row][column]]);
}
