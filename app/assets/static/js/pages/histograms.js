// @ts-check
/** The Histograms page: which layers, in which order, and in which view. */
import { ApiError } from "../api.js";
import { Card } from "../card.js";
import { byId, h, makeButton } from "../dom.js";
import { LayerNames } from "../drawer/names.js";
import { Finder } from "../finder.js";
import { count, counted } from "../format.js";
import { pngOf } from "../histograms/export.js";
import { addDrift, layersOf, modulesOf } from "../histograms/layers.js";
import { histLegend } from "../histograms/legend.js";
import { ordered } from "../histograms/order.js";
import { Wall } from "../histograms/wall.js";
import { Refresh } from "../live/refresh.js";
import { open } from "../page.js";
import { toast } from "../toast.js";

const LIVE_MS = 2000;
const COLUMNS = ["layer", "type", "zero share", "std", "drift (octaves)", "non-finite"];

const page = open({ kind: "output", sort: "model", range: "own", size: "m", view: "map" });
const { state, follow } = page;
const run = /** @type {string} */ (page.run);
new LayerNames(page);
const wall = new Wall(page, byId("wall"));
/** @type {import("../histograms/order.js").Layer[]} */
let layers = [];
/** @type {Map<string, import("../histograms/layers.js").Placed>} */
let modules = new Map();
/** The kind that the layers are of. */
let loaded = "";
const loading = told((signal) => (layers.length && loaded === state.get("kind") ? measure(signal) : load(signal)));
const arranging = told(show);
const live = new Refresh(async () => (layers.length ? wall.soon() : loading.now()), {
  min: LIVE_MS,
  max: LIVE_MS,
  ready: () => !follow.paused,
});
const finder = new Finder(page, () => arranging.now());

const title = () => `${byId("wall-form").elements.namedItem("kind").selectedOptions[0].textContent} of each layer`;
const card = new Card(page, byId("wall-card"), {
  get title() {
    return title();
  },
  table: () => ({
    columns: COLUMNS,
    rows: wall.layers
      .map((layer) => [`${layer.module} ${layer.label}`, layer.type, layer.zero, layer.spread, layer.drift, layer.bad])
      .reverse(),
  }),
  query: () => ({ path: "histograms", query: wall.query(wall.seen.map((tile) => tile.layer.tap).slice(0, 50)) }),
  png: () => pngOf(wall, title(), page.runName),
});
const legend = histLegend();
const WORDS = /** @type {Record<string, string>} */ ({
  ridges: "brighter is newer; height: share of a step's values, logarithmic",
  bars: "height: share of the step's values, logarithmic",
});

/** Shows the layers that match the find box, in the selected order. @param {AbortSignal} signal */
async function show(signal) {
  const fits = layers.filter((layer) => finder.fits(layer.module));
  if (state.get("sort") === "drift") await addDrift(run, state.get("kind"), follow.span, fits, signal);
  signal.throwIfAborted();
  byId("total").textContent =
    fits.length === layers.length
      ? counted(layers.length, "layer")
      : `${count(fits.length)} of ${counted(layers.length, "layer")}`;
  byId("wall-empty").hidden = fits.length > 0 || !finder.ready;
  byId("empty-words").replaceChildren(...whyEmpty());
  byId("wall-title").textContent = title().replace(/^./, (letter) => letter.toUpperCase());
  byId("legend").replaceChildren(
    state.get("view") === "map" ? legend : h("span", { class: "quiet small" }, WORDS[state.get("view")] ?? ""),
  );
  wall.element.className = `wall ${state.get("size")}`;
  wall.show(ordered(fits, state.get("sort")));
  card.refresh();
}

/** @returns {(Node | string)[]} */
function whyEmpty() {
  if (layers.length)
    return [
      layers.length === 1
        ? "The one layer doesn\u2019t match the filter. "
        : `None of ${count(layers.length)} layers matches the filter. `,
      makeButton("Clear filter", () => state.set({ f: "" })),
    ];
  const live = page.runState === "live";
  if (follow.newest === null)
    return [live ? "No steps yet. Histograms appear with the first captured step." : "No step was captured."];
  const gradient = state.get("kind").endsWith("grad") || state.get("kind") === "update";
  const needs = gradient ? " Gradients need a backward pass, updates an optimizer step." : "";
  const { from, to } = follow.values;
  const where =
    from === undefined
      ? counted(follow.newest + 1, "step")
      : from === to
        ? `step ${count(to)}`
        : `steps ${count(from)} to ${count(to)}`;
  return [
    `None captured in ${where}.${needs} The Hooks page shows which kinds are captured ` +
      `and why a module is not captured.${live ? " You can turn kinds on there during the training." : ""}`,
  ];
}

/** Loads the layers of the selected kind. @param {AbortSignal} signal */
async function load(signal) {
  if (!modules.size) modules = await modulesOf(run, signal);
  const kind = state.get("kind");
  const found = await layersOf(run, kind, modules, follow.values, signal);
  signal.throwIfAborted();
  layers = found;
  loaded = kind;
  wall.forget();
  await arranging.now();
}

/** The values of the layers are those of other steps. @param {AbortSignal} signal */
async function measure(signal) {
  const found = await layersOf(run, loaded, modules, follow.values, signal);
  signal.throwIfAborted();
  const known = new Map(found.map((layer) => [layer.tap, layer]));
  for (const layer of layers) {
    const { zero = NaN, spread = NaN, bad = NaN } = known.get(layer.tap) ?? {};
    Object.assign(layer, { zero, spread, bad });
  }
  if (state.get("sort") === "model") card.refresh();
  else await arranging.now();
}

/** Shows the server's error message. If the server doesn't answer, the banner says so.
 * @param {(signal: AbortSignal) => Promise<void>} work */
function told(work) {
  return new Refresh((signal) =>
    work(signal).catch((error) => {
      if (error instanceof ApiError) toast(`Can\u2019t load the histograms: ${error.message}`, { kind: "error" });
      throw error;
    }),
  );
}

state.on("kind", () => loading.now());
for (const name of ["sort", "size", "view"]) state.on(name, () => arranging.now());
state.on("view", () => follow.held !== null && wall.forget()); // bars are of the held step alone
state.on("range", () => wall.now());
follow.on("change", () => {
  wall.now();
  void loading.now();
});
follow.on("newest", () => live.soon());
page.keys.add(
  "v",
  "switch view: over steps, ridges, one step",
  () => {
    const views = ["map", "ridges", "bars"];
    state.set({ view: views[(views.indexOf(state.get("view")) + 1) % views.length] });
  },
  { group: "Charts" },
);
void loading.now();
