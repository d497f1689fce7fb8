/** The heatmap of the whole model, on the Summary. Loaded when it comes into view. */
import { byId, tell } from "../dom.js";
import { layerOf } from "../drawer/names.js";
import { Finder } from "../finder.js";
import { count } from "../format.js";
import { Heat } from "../heat/heat.js";
import { MAX_LIVE_ROWS } from "../limits.js";
import { Feed } from "../live/subscription.js";

/** @import { RowsMessage } from "../answers.js"
 * @import { LayerNames } from "../drawer/names.js"
 * @import { Row } from "../heat/rows.js"
 * @import { Page } from "../page.js" */

export class ModelPicture {
  /** @type {readonly Row[]} */
  #rows = [];
  /** how many match, also those without a row */
  #taps = 0;
  #why = "";

  /** @param {Page} page @param {HTMLElement} element @param {LayerNames} names */
  constructor(page, element, names) {
    this.page = page;
    this.usual = element.dataset.kind ?? "";
    this.empty = byId("model-empty");
    this.cut = byId("model-cut");
    this.plot = /** @type {HTMLElement} */ (element.querySelector(".plot"));
    this.finder = new Finder(page, () => this.#choose());
    const query = () => ({
      path: "heatmap",
      query: { run: page.run, kind: this.kind, stat: this.stat, ...page.follow.shown },
    });
    this.heat = new Heat(page, element, {
      title: "All layers",
      kind: this.kind,
      stat: this.stat,
      query,
      onPick: (row, step) => {
        names.open(layerOf(row));
        page.follow.hold(step);
      },
      ...names.ofHeatmap,
    });
    this.feed = new Feed(page, this.heat, () => this.#query(), { rows: (names) => this.#name(names) });
    for (const name of ["kind", "stat"]) page.state.on(name, () => this.#change());
    page.state.on("f", () => this.feed.renew());
  }

  get kind() {
    return this.page.state.get("kind") || this.usual;
  }

  get stat() {
    return this.page.state.get("stat") || "norm";
  }

  #query() {
    const rows = this.page.state.get("f") ? { rows: `idx:0-${MAX_LIVE_ROWS - 1}` } : {};
    return { kind: this.kind, stat: this.stat, ...rows };
  }

  #change() {
    Object.assign(this.heat.options, { kind: this.kind, stat: this.stat });
    this.feed.renew();
    byId("model-larger").href = this.page.address("flow", { kind: this.kind, stat: this.stat });
  }

  /** @param {RowsMessage} message */
  #name({ rows, taps, why = "" }) {
    this.#rows = rows;
    this.#taps = taps;
    this.#why = why;
    this.#choose();
  }

  /** Shows the rows that match the filter, or why there are none. */
  #choose() {
    const rows = [...this.#rows.keys()].filter((row) => this.finder.fits(this.#rows[row].module));
    this.heat.setOrder(rows);
    const words =
      rows.length || !this.finder.ready
        ? ""
        : this.#rows.length
          ? `No layers match the filter; ${count(this.#rows.length)} are hidden.`
          : this.#why;
    tell(this.empty, words);
    this.plot.hidden = Boolean(words);
    this.cut.hidden = !this.finder.text || this.#taps <= this.#rows.length;
    const searched = `${count(this.#rows.length)} of ${count(this.#taps)}`;
    this.cut.textContent = `The filter searches the first ${searched} layers here.`;
  }
}
