// @ts-check
/** The layers over the steps: the request, the shown rows, and their order. */
import { byId, write } from "../dom.js";
import { count } from "../format.js";
import { Feed } from "../heat/feed.js";
import { Heat } from "../heat/index.js";
import { onsets } from "../heat/rows.js";
import { MAX_LIVE_ROWS } from "../limits.js";
import { pinsOf } from "./picked.js";

const SORTED_MS = 1000; // rows that move more often cannot be read

/** @typedef {import("../heat/rows.js").Row} Row */
/** @typedef {(layer: {module: string, type?: string}) => boolean} Fits */

export class OverTime {
  /** @type {any} */
  #timer = null;
  #why = "";
  /** The visible rows that contain, or once contained, non-finite values. */
  bad = new Set();

  /**
   * @param {import("../page.js").Page} page
   * @param {{fits: Fits, onPick: (row: Row, step: number) => void, onRows: () => void,
   *   ofHeatmap: Partial<import("../heat/index.js").HeatOptions>}} options
   */
  constructor(page, options) {
    this.page = page;
    this.options = options;
    this.empty = byId("flow-empty");
    const query = () => ({
      path: "heatmap",
      query: { kind: this.kind, stat: this.stat, columns: 1000, rows: 2000, ...page.follow.shown },
    });
    this.heat = new Heat(page, byId("flow"), {
      title: "Over steps",
      kind: this.kind,
      stat: this.stat,
      query,
      onPick: options.onPick,
      ...options.ofHeatmap,
    });
    this.feed = new Feed(page, this.heat, () => ({ kind: this.kind, stat: this.stat, rows: `fit:${MAX_LIVE_ROWS}` }), {
      rows: ({ why = "" }) => {
        this.#why = why;
        this.choose();
      },
      frame: () => this.#later(),
    });
    const { state } = page;
    for (const name of ["kind", "stat"]) state.on(name, () => this.#ask());
    for (const name of ["sort", "pin"]) state.on(name, () => this.choose());
    state.on("rows", () => this.heat.setFit(this.fit));
    state.on("y", () => this.heat.setScale(/** @type {any} */ (state.get("y"))));
    state.on("relative", () => this.heat.setRelative(state.get("relative") === "1"));
    this.heat.setFit(this.fit);
    this.heat.setScale(/** @type {any} */ (state.get("y")));
    this.heat.setRelative(state.get("relative") === "1");
  }

  get kind() {
    return this.page.state.get("kind");
  }

  get stat() {
    return this.page.state.get("stat");
  }

  /** @returns {"fit" | "read"} */
  get fit() {
    return this.page.state.get("rows") === "read" ? "read" : "fit";
  }

  #ask() {
    Object.assign(this.heat.options, { kind: this.kind, stat: this.stat });
    this.feed.renew();
  }

  /** The order is looked at again soon, but not while the reader points at a row. */
  #later() {
    this.#timer ??= setTimeout(() => {
      this.#timer = null;
      if (this.heat.screen.pointing.at === null) this.choose();
      else this.#later();
    }, SORTED_MS);
  }

  /** Shows the matching rows in the chosen order, or why there are none. */
  choose() {
    const { heat, page } = this;
    const { rows, columns } = heat;
    const at = columns ? onsets(columns) : [];
    this.bad = new Set(rows.filter((_, row) => Number.isFinite(at[row])).map((row) => row.module));
    const shown = [...rows.keys()].filter((row) => this.options.fits(rows[row]));
    const wanted = page.state.get("sort");
    const pins = new Set(pinsOf(page.state.get("pin")));
    const pinned = [...rows.keys()].filter((row) => pins.has(rows[row].module));
    const sort = wanted !== "auto" ? wanted : this.bad.size ? "bad" : "model";
    heat.setOrder(shown, { sort: /** @type {any} */ (sort), pinned });
    this.#say(shown.length);
    this.options.onRows();
  }

  /** @param {number} shown */
  #say(shown) {
    const { rows } = this.heat;
    const layers = rows.length === 1 ? "1 layer is" : `${count(rows.length)} layers are`;
    const hidden = `The filter matches nothing: ${layers} hidden.`;
    const none = rows.length ? `${hidden} Clear the find box, or select all types.` : this.#why;
    const why = rows.length && shown ? "" : none;
    write(this.empty, why);
    this.empty.hidden = !why;
    this.heat.plot.hidden = Boolean(why);
  }
}
