// @ts-check
/** The page Histograms: which layers, in which order, and how they are shown. */
import { Card } from "../card.js";
import { byId, h } from "../dom.js";
import { Finder } from "../finder.js";
import { count } from "../format.js";
import { pngOf } from "../hist/export.js";
import { addDrift, layersOf, modulesOf } from "../hist/layers.js";
import { histLegend } from "../hist/legend.js";
import { ordered } from "../hist/order.js";
import { Wall } from "../hist/wall.js";
import { open } from "../page.js";
import { toast } from "../toast.js";

const LIVE_MS = 2000;
const COLUMNS = ["layer", "type", "zero share", "std", "drift (octaves)", "non-finite"];

const page = open({ kind: "output", sort: "model", range: "own", size: "m", view: "map" });
const { state, follow } = page;
const wall = new Wall(page, byId("wall"));
/** @type {import("../hist/order.js").Layer[]} */
let layers = [];
/** @type {Map<string, import("../hist/layers.js").Placed>} */
let modules = new Map();
const finder = new Finder(page, () => say(arrange)());

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

/** Which layers fit the find box, in the order that is wanted. */
async function arrange() {
  const fits = layers.filter((layer) => finder.fits(layer.module));
  if (state.get("sort") === "drift")
    await addDrift(/** @type {string} */ (page.run), state.get("kind"), follow.span, fits);
  byId("total").textContent =
    fits.length === layers.length
      ? `${count(layers.length)} layers`
      : `${count(fits.length)} of ${count(layers.length)} layers`;
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
      `None of ${count(layers.length)} layers matches the filter. `,
      h("button", { class: "button", type: "button", onclick: () => state.set({ f: "" }) }, "Clear filter"),
    ];
  if (follow.newest === null) return ["No steps yet. Histograms appear with the first captured step."];
  const gradient = state.get("kind").endsWith("grad") || state.get("kind") === "update";
  return [
    `None captured in ${count(follow.newest + 1)} steps.${gradient ? " Gradients need a backward pass, updates an optimizer step." : ""} The Hooks page shows which kinds are captured and why a module is not captured. You can turn kinds on there during the training.`,
  ];
}

/** Asks for the layers of the kind. */
async function load() {
  const run = /** @type {string} */ (page.run);
  if (!modules.size) modules = await modulesOf(run);
  layers = await layersOf(run, state.get("kind"), modules);
  wall.forget();
  await arrange();
}

/** @param {() => Promise<void>} work */
const say = (work) => () =>
  work().catch((error) => toast(`Can\u2019t load the histograms: ${error.message}`, { kind: "error" }));

state.on("kind", say(load));
for (const name of ["sort", "size", "view"]) state.on(name, say(arrange));
state.on("range", () => {
  wall.forget();
  wall.soon(true);
});
follow.on("change", () => wall.soon(true));
page.keys.add(
  "v",
  "switch view: over steps, ridges, one step",
  () => {
    const views = ["map", "ridges", "bars"];
    state.set({ view: views[(views.indexOf(state.get("view")) + 1) % views.length] });
  },
  { group: "Charts" },
);

let shown = follow.newest;
let asking = false;
setInterval(async () => {
  if (document.hidden || follow.paused || asking || follow.newest === shown) return;
  asking = true;
  shown = follow.newest;
  const late = layers.length === 0;
  // Without a word: the page says already that the server does not answer.
  await (late ? load() : wall.ask(true)).catch(() => undefined);
  asking = false;
}, LIVE_MS);
say(load)();
