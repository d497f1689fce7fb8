/** The Histograms page: which layers, in which order, and in which view. */
import { ApiError } from "../api.js";
import { imageOf, pixelRatio } from "../canvas/chart.js";
import { makeBar, paintBar, swatch } from "../canvas/colors.js";
import { Card } from "../card.js";
import { byId, h, makeButton } from "../dom.js";
import { LayerNames } from "../drawer/names.js";
import { Finder } from "../finder.js";
import { count, counted, percent, stepWords } from "../format.js";
import { SHARES } from "../histograms/paint.js";
import { addDrift, layersOf, modulesOf, ordered, Wall } from "../histograms/wall.js";
import { Refresh } from "../live/refresh.js";
import { open } from "../page.js";
import { toast } from "../popup.js";
import { prefs } from "../prefs.js";
import { colors } from "../theme.js";

/** @import { Layer, Placed } from "../histograms/wall.js" */

const LIVE_MS = 2000;
const COLUMNS = ["layer", "type", "zero share", "std", "drift (octaves)", "non-finite"];

const page = open({ kind: "output", sort: "model", range: "own", size: "m", view: "map" });
const { state, follow } = page;
const run = /** @type {string} */ (page.run);
new LayerNames(page);
const wall = new Wall(page, byId("wall"));
/** @type {Layer[]} */
let layers = [];
/** @type {Map<string, Placed>} */
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
  const where = from === undefined || to === undefined ? counted(follow.newest + 1, "step") : stepWords(from, to);
  return [
    `None captured in ${where}.${needs} The Capture page shows which kinds are captured ` +
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
  return new Refresh(work, {
    failed: (error) =>
      error instanceof ApiError && toast(`Can\u2019t load the histograms: ${error.message}`, { kind: "error" }),
  });
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

/** Returns a bar of shares, and the signs of values outside of all bins. */
function histLegend() {
  const bar = makeBar("dark: few of a step's values; bright: many");
  const draw = () => paintBar(bar);
  draw();
  prefs.on("colors", draw);
  const ends = [`\u2264${100 * SHARES[0]}%`, `\u2265 ${percent(SHARES[1]).replace(".0", "")}`];
  return h(
    "span",
    { class: "hist-legend" },
    h("span", { class: "scale" }, "share of a step's values: ", ends[0], bar, ends[1]),
    swatch("nan", "NaN"),
    swatch("inf", "infinite"),
  );
}

const [GAP, NAME, HEAD] = [14, 20, 30];

/** @param {Wall} wall @param {string} title @param {string} of @returns {Promise<Blob>} */
async function pngOf(wall, title, of) {
  const tiles = wall.seen.filter((tile) => tile.map?.shape?.columns);
  if (!tiles.length) throw new Error("no tile is visible");
  const boxes = tiles.map((tile) => tile.element.getBoundingClientRect());
  const [left, top] = [Math.min(...boxes.map((box) => box.left)), Math.min(...boxes.map((box) => box.top))];
  const [right, bottom] = [Math.max(...boxes.map((box) => box.right)), Math.max(...boxes.map((box) => box.bottom))];
  const ratio = pixelRatio();
  const canvas = document.createElement("canvas");
  canvas.width = (right - left + 2 * GAP) * ratio;
  canvas.height = (bottom - top + 2 * GAP + HEAD) * ratio;
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const page = colors();
  pen.scale(ratio, ratio);
  pen.fillStyle = page.card;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.fillStyle = page.ink;
  pen.font = "600 15px system-ui, sans-serif";
  pen.fillText(`${title} \u00b7 ${of}`, GAP, 24);
  pen.font = "600 12px system-ui, sans-serif";
  for (const [place, tile] of tiles.entries()) {
    const [x, y] = [boxes[place].left - left + GAP, boxes[place].top - top + GAP + HEAD];
    pen.fillText(`${tile.layer.module} ${tile.layer.type}`, x, y + NAME - 6, boxes[place].width);
    const picture = /** @type {HTMLCanvasElement} */ (tile.map?.canvas);
    pen.drawImage(
      picture,
      x,
      y + (picture.getBoundingClientRect().top - boxes[place].top),
      picture.clientWidth,
      picture.clientHeight,
    );
  }
  return imageOf(canvas);
}
