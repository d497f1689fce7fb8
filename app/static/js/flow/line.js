// @ts-check
/** The layer that was picked, as a line over the steps; its numbers are those of the heatmap above. */
import { byId } from "../dom.js";
import { cellValue, mergedAs } from "../heat/export.js";
import { labelOf } from "../heat/rows.js";
import { LineChart } from "../plot/index.js";
import { ROOT } from "../vocabulary.js";
import { NONE, pinsOf, withPin } from "./picked.js";

const SHOWN_MS = 500;

export class PickedLine {
  /** @type {LineChart | null} */
  #chart = null;
  #shownAt = -Infinity;
  /** The module that the chart is called after, also in its files. */
  #title = NONE;

  /** @param {import("../page.js").Page} page @param {import("../heat/index.js").Heat} heat */
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
    const name = module || ROOT;
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

/** What a value of several steps is. @param {import("../heat/index.js").Heat} heat */
function mergedWords(heat) {
  return `${mergedAs(heat)} of merged steps`;
}

/** What was sampled of a row.
 * @param {import("../canvas/columns.js").Columns} columns @param {number} row @param {string} name */
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
