/** The Histograms page: the server lists the layers; their histograms are drawn here. */
import { pixelRatio } from "../canvas/chart.js";
import { paintBar } from "../canvas/colors.js";
import { titledPng } from "../canvas/pen.js";
import { Card } from "../card.js";
import { byId } from "../dom.js";
import { LayerNames } from "../drawer/names.js";
import { Finder } from "../finder.js";
import { Wall } from "../histograms/wall.js";
import { listenToLinks, Parts } from "../live/parts.js";
import { Refresh } from "../live/refresh.js";
import { open } from "../page.js";
import { prefs } from "../prefs.js";
import { colors } from "../theme.js";

const LIVE_MS = 2000;

const page = open({ kind: "output", sort: "model", range: "own", size: "m", view: "map", row: "0" });
const { state, follow } = page;
new LayerNames(page);
const parts = new Parts(page, "histograms");
const wall = new Wall(page, byId("wall"));
const live = new Refresh(async () => (wall.tiles.size ? wall.soon() : parts.soon()), {
  min: LIVE_MS,
  max: LIVE_MS,
  ready: () => !follow.paused,
});

const title = () => byId("wall-title").textContent ?? "";
const card = new Card(page, byId("wall-card"), {
  get title() {
    return title();
  },
  table: () => ({
    columns: ["layer", "values"],
    rows: [...wall.tiles.keys()]
      .map((tile) => [tile.ariaLabel, tile.querySelector("p")?.textContent?.trim()])
      .reverse(),
  }),
  query: () => ({ path: "histograms", query: wall.query(wall.seen.map((tile) => tile.tap).slice(0, 50)) }),
  png: pngOf,
});

const filter = () => (state.get("row") === "0" ? parts.now() : state.set({ row: "0" }));
const finder = new Finder(page, () => finder.problem || filter());
for (const name of ["kind", "sort"]) state.on(name, filter);
for (const name of ["row", "size"]) state.on(name, () => parts.now());
for (const name of ["size", "range"]) state.on(name, () => wall.redraw());
state.on("view", (view) => {
  byId("hist-legend").dataset.view = view;
  wall.redraw();
});
byId("wall").addEventListener("renewed", () => card.refresh());
follow.on("change", () => {
  wall.now();
  parts.promptly();
});
follow.on("newest", () => live.soon());
listenToLinks(page);
const turn = () => state.set({ view: state.get("view") === "bars" ? "map" : "bars" });
page.keys.add("v", "switch view: over steps, or one step", turn, { group: "Charts" });
const paint = () => paintBar(byId("hist-bar"));
prefs.on("colors", paint);
paint();

const [GAP, NAME_PX] = [14, 6]; // around the tiles; between a name and its tile

/** The tiles in view as a picture. */
async function pngOf() {
  const tiles = wall.seen.filter((tile) => tile.map?.shape?.columns);
  if (!tiles.length) throw new Error("no tile is visible");
  const boxes = tiles.map((tile) => tile.element.getBoundingClientRect());
  const [left, top] = [Math.min(...boxes.map((box) => box.left)), Math.min(...boxes.map((box) => box.top))];
  const [right, bottom] = [Math.max(...boxes.map((box) => box.right)), Math.max(...boxes.map((box) => box.bottom))];
  const [width, height] = [right - left + 2 * GAP, bottom - top + 2 * GAP];
  return titledPng(`${title()} \u00b7 ${page.runName}`, width, height, pixelRatio(), (pen) => {
    pen.fillStyle = colors().ink;
    pen.font = "600 12px system-ui, sans-serif";
    pen.textBaseline = "alphabetic";
    for (const [place, tile] of tiles.entries()) {
      const picture = /** @type {HTMLCanvasElement} */ (tile.map?.canvas);
      const [x, y] = [boxes[place].left - left + GAP, picture.getBoundingClientRect().top - top + GAP];
      pen.fillText(tile.element.ariaLabel ?? "", x, y - NAME_PX, boxes[place].width);
      pen.drawImage(picture, x, y, picture.clientWidth, picture.clientHeight);
    }
  });
}
