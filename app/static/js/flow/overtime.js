/** What the page Flow shows over steps: all layers, the line of the one that was picked, and the updates of parameters.
 * Loaded when it comes into view. */
import { byId, tell } from "../dom.js";
import { count, moduleName } from "../format.js";
import { Heat } from "../heat/heat.js";
import { cellValue, mergedAs } from "../heat/picture.js";
import { labelOf, onsets } from "../heat/rows.js";
import { MAX_LIVE_ROWS } from "../limits.js";
import { Feed } from "../live/subscription.js";
import { LineChart } from "../plot/plot.js";
import { ROOT } from "../vocabulary.js";
import { NONE } from "./profile.js";

/** @import { Columns } from "../canvas/columns.js"
 * @import { HeatOptions } from "../heat/heat.js"
 * @import { Row } from "../heat/rows.js"
 * @import { Page } from "../page.js" */

/** The pinned modules. @param {string} text @returns {string[]} */
export function pinsOf(text) {
  return text
    .split(",")
    .filter(Boolean)
    .map((path) => (path === ROOT ? "" : path));
}

/** The pinned modules with another one, or without it. @param {string} text @param {string} module */
export function withPin(text, module) {
  const pins = pinsOf(text);
  const turned = pins.includes(module) ? pins.filter((pin) => pin !== module) : [...pins, module];
  return turned.map((pin) => pin || ROOT).join(",");
}

const SORTED_MS = 1000; // rows that move more often cannot be read

/** @typedef {(layer: {module: string, type?: string}) => boolean} Fits */

class OverTime {
  /** @type {any} */
  #timer = null;
  #why = "";
  /** The visible rows that contain, or once contained, non-finite values. */
  bad = new Set();

  /** @param {Page} page @param {{fits: Fits, onPick: (row: Row, step: number) => void, onRows: () => void, ofHeatmap:
   * Partial<HeatOptions>}} options */
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
      if (this.heat.screen.at === null) this.choose();
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
    tell(this.empty, why);
    this.heat.plot.hidden = Boolean(why);
  }
}

const SHOWN_MS = 500;

class PickedLine {
  /** @type {LineChart | null} */
  #chart = null;
  #shownAt = -Infinity;
  /** The module that the chart is called after, also in its files. */
  #title = NONE;

  /** @param {Page} page @param {Heat} heat */
  constructor(page, heat) {
    this.page = page;
    this.heat = heat;
    this.figure = byId("line");
    this.pin = byId("line-pin");
    page.state.on("module", () => this.show(true));
    page.state.on("pin", () => this.show(true));
    this.pin.addEventListener("click", () => this.#turnPin());
    byId("line-close").addEventListener("click", () => page.state.set({ module: NONE }));
  }

  /** The modules that stand at the top. @returns {string[]} */
  get pins() {
    return pinsOf(this.page.state.get("pin"));
  }

  #turnPin() {
    const { state } = this.page;
    state.set({ pin: withPin(state.get("pin"), state.get("module")) });
  }

  /** @param {boolean} [now] */
  show(now = false) {
    const { page, heat, figure } = this;
    const module = page.state.get("module");
    figure.hidden = module === NONE;
    if (module === NONE || (!now && performance.now() - this.#shownAt < SHOWN_MS)) return;
    this.#shownAt = performance.now();
    const name = module || moduleName("");
    const address = page.address("layer", {
      module,
      ...(page.state.get("step") ? { step: page.state.get("step") } : {}),
    });
    byId("line-name").textContent = name;
    for (const id of ["line-name", "line-open"]) byId(id).href = address;
    this.pin.setAttribute("aria-pressed", String(this.pins.includes(module)));
    const { columns, rows } = heat;
    if (!columns?.length) return;
    if (this.#title !== module) {
      this.#chart?.remove();
      this.#chart = null;
      this.#title = module;
    }
    this.#chart ??= new LineChart(page, figure, {
      title: name,
      captured: true,
      y: {
        get title() {
          return [heat.options.stat, heat.columns?.areMerged ? mergedWords(heat) : ""].filter(Boolean).join(", ");
        },
        scale: /** @type {any} */ (page.state.get("y")),
      },
    });
    const mine = [...rows.keys()].filter((row) => rows[row].module === module);
    const { kind, stat } = heat.options;
    this.#chart.show(
      mine.map((row) => lineOf(columns, row, labelOf(rows[row]) + (columns.areMerged ? `, ${mergedWords(heat)}` : ""))),
      `${name} ${kind} ${stat}`,
    );
  }
}

class Ratio {
  #why = "";

  /** @param {Page} page @param {Partial<HeatOptions> & {fits: Fits}} options */
  constructor(page, { fits, ...options }) {
    this.fits = fits;
    this.empty = byId("ratio-empty");
    const shown = { title: "Update-to-weight ratio", kind: "update", stat: "ratio" };
    this.heat = new Heat(page, byId("ratio"), { ...shown, ...options });
    new Feed(page, this.heat, () => ({ kind: "update", stat: "ratio", rows: "fit:10000" }), {
      rows: ({ why = "" }) => {
        this.#why = why;
        this.choose();
      },
    });
  }

  /** Shows the matching rows, or why there are none. */
  choose() {
    const { rows, plot } = this.heat;
    const shown = [...rows.keys()].filter((row) => this.fits(rows[row]));
    this.heat.setOrder(shown);
    this.empty.hidden = shown.length > 0;
    plot.hidden = !shown.length;
    if (shown.length) return;
    const words = rows.length ? "No parameter matches the filter." : this.#why;
    // the server's own words end with a link
    if (!this.empty.textContent?.startsWith(words)) this.empty.textContent = words;
  }
}

export class Maps {
  /** @param {Page} page
   * @param {{fits: Fits, pick: (module: string) => void, ofHeatmap: Partial<HeatOptions>}} options */
  constructor(page, { fits, pick, ofHeatmap }) {
    const onPick = (/** @type {Row} */ row) => pick(row.module);
    this.overTime = new OverTime(page, { fits, onPick, onRows: () => this.line.show(), ofHeatmap });
    this.line = new PickedLine(page, this.overTime.heat);
    this.ratio = new Ratio(page, { fits, onPick, ...ofHeatmap });
    page.state.on("module", () => {
      this.overTime.heat.draw();
      this.ratio.heat.draw();
    });
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

/** What a value of several steps is. @param {Heat} heat */
function mergedWords(heat) {
  return `${mergedAs(heat)} of merged steps`;
}

/** What was sampled of a row. @param {Columns} columns @param {number} row @param {string} name */
function lineOf(columns, row, name) {
  const places = Array.from({ length: columns.length }, (_, place) => place).filter(
    (place) => cellValue(columns, place, row) !== null,
  );
  const mean = places.map((place) => columns.value(place, row));
  return {
    name,
    first: places.map((place) => columns.first(place)),
    last: places.map((place) => columns.last(place)),
    mean,
    nonfinite: mean.map((value) => (Number.isFinite(value) ? 0 : 1)),
  };
}
