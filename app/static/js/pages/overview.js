/** The Summary of a run: the server renders its parts, also when something has changed; the heatmap and the line are
 * drawn here. */
import { listenToSeen } from "../alerts/controls.js";
import { byId } from "../dom.js";
import { LayerNames } from "../drawer/names.js";
import { dress, listenToLinks, Parts } from "../live/parts.js";
import { ScalarChart } from "../overview/charts.js";
import { create, start } from "../page.js";
import { fetchPlotly } from "../plot/library.js";
import { load } from "../popup.js";

const PATIENCE_MS = 1500;

const model = document.getElementById("model"); // an imported run has no layers
const usual = model?.dataset.kind ?? "";
const page = create({ kind: usual, stat: "norm", y: "linear", smooth: "0", scalar: "", scalars: "" });
// Plotly is large, and would delay the heatmap's first numbers. The chart itself is in the first paint.
const drawn = new Promise((keep) => document.addEventListener("hookcore:drawn", keep, { once: true }));
const after = Promise.race([drawn, new Promise((go) => setTimeout(go, PATIENCE_MS))]);
const chart = new ScalarChart(page, usualNames(), showNewest, after);
start(page); // after the chart: the frame takes longer, and its changes would make the browser lay out the page again
fetchPlotly(); // while the heatmap's first numbers come
const parts = new Parts(page, "overview");
startParts();
if (model) void showModel(model, new LayerNames(page));

/** @param {HTMLElement} element @param {LayerNames} names */
async function showModel(element, names) {
  const typed = new Promise((found) => page.state.on("f", found));
  await Promise.race([page.schedule.whenSeen(element), typed]);
  const part = await load(() => import("../overview/picture.js"));
  part?.showModel(page, names);
}

function startParts() {
  parts.follow(undefined, { held: true });
  page.events.on("news", () => page.follow.paused || parts.soon());
  // The header shows the new state at once, so the words about it mustn't wait, even if the page is held.
  page.events.on("state", () => parts.promptly());
  page.state.on("scalars", () => parts.now(["scalars"]));
  page.state.on("scalar", () => parts.now(["scalars"]));
  listenToSeen(page, () => parts.now(["findings"]));
  byId("scalars").addEventListener("renewed", () => chart.know(usualNames()));
  listenToLinks(page);
}

/** @returns {string[]} the scalars of the large chart, unless one is chosen */
function usualNames() {
  return JSON.parse(byId("scalars").dataset.usual ?? "[]");
}

/** Shows the chart's newest value in the scalar's card. While the page is held, it keeps the value that the server
 * rendered for that step, because the chart shows later ones too. @param {string} name @param {number} value */
function showNewest(name, value) {
  if (page.follow.paused) return;
  const card = document.querySelector(`#scalars [id="scalar-${CSS.escape(name)}"]`);
  const data = card?.querySelector("data");
  if (!card || !data) return;
  data.setAttribute("value", String(value));
  dress(card);
}
