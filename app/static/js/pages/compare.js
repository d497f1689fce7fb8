// @ts-check
/** Two runs side by side. The server says where they part; here are the pictures, and what is picked. */
import { get } from "../api.js";
import { Differences } from "../compare/differences.js";
import { makeLoss, Overlay } from "../compare/overlay.js";
import { byId, reveal } from "../dom.js";
import { Parts } from "../live/parts.js";
import { Refresh } from "../live/refresh.js";
import { open } from "../page.js";

const LIVE_MS = 10_000;
const MAX_MS = 60_000; // between two comparisons of large models
const held = document.getElementById("compared")?.dataset ?? {};
const page = open({
  a: "",
  b: "",
  kind: "output",
  stat: "rms",
  tolerance: "",
  rename: "",
  f: "",
  sort: "",
  module: held.module ?? "",
  y: "",
  smooth: "0",
  steps: "live:999999999",
});
page.follow.first = Number(held.first ?? 0);
const { state } = page;
const form = /** @type {HTMLFormElement | null} */ (document.getElementById("choice"));

// The server answers a choice; what is typed waits for Enter.
form?.addEventListener("change", (event) => {
  if (/** @type {HTMLElement} */ (event.target).tagName === "SELECT") form.requestSubmit();
});
const find = /** @type {HTMLInputElement | null} */ (form?.elements.namedItem("f") ?? null);
find?.addEventListener("input", () => state.set({ f: find.value }));

function asked() {
  const { kind, stat, rename } = state.values;
  return { runs: `${held.a},${held.b}`, kind, stat, rename };
}

function startPictures() {
  const sides = [
    { id: held.a ?? "", name: held.aName ?? "A" },
    { id: held.b ?? "", name: held.bName ?? "B" },
  ];
  page.follow.saw(Number(held.last ?? 0));
  const pick = (/** @type {string} */ module) => state.set({ module });
  const [figure, lines] = ["differences", "layer-lines"].map((id) => document.getElementById(id));
  const differences = figure && new Differences(page, figure, asked, sides[0].id, pick);
  const overlay = lines && new Overlay(page, lines, sides, asked);
  const showLoss = makeLoss(page, document.getElementById("loss-lines"), sides);
  const layer = new Refresh(async (signal) => overlay?.show(state.get("module"), signal));
  const showPicked = () => {
    for (const row of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("#layers tbody tr")))
      row.classList.toggle("picked", row.dataset.module === state.get("module"));
  };
  const showLayer = () => {
    showPicked();
    void layer.now();
  };
  const pictures = new Refresh((signal) => Promise.all([differences?.load(signal), showLoss(signal)]));
  const parts = new Parts(page, "compare", { query: sameRuns, max: MAX_MS });
  byId("compared").addEventListener("renewed", () => {
    // What is compared only now has no figure yet.
    if (figuresToShow().some((id) => !document.getElementById(id))) location.reload();
    showPicked();
  });
  state.on("module", showLayer);
  page.follow.on("change", () => {
    void layer.now();
    void pictures.now();
  });
  byId("compared").addEventListener("click", (/** @type {MouseEvent} */ event) => {
    const row = /** @type {HTMLElement} */ (event.target).closest("a.pick")?.closest("tr");
    if (!row || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    pick(row.dataset.module ?? "");
  });
  showLayer();
  void pictures.now();
  if (held.live === "yes") follow(sides, [pictures, layer, parts]);
}

/** The query of the page, with the runs that it shows: those that it would choose now may be others. */
function sameRuns() {
  const query = new URLSearchParams(location.search);
  for (const name of /** @type {const} */ (["a", "b"])) query.set(name, held[name] ?? "");
  return query.toString();
}

/** The ids of the figures that there is something to show in. */
function figuresToShow() {
  const verdict = /** @type {HTMLElement | null} */ (document.querySelector("[data-part=verdict]"));
  return (verdict?.dataset.figures ?? "").split(/\s+/).filter(Boolean);
}

/** Shows what is newer, as long as one of the runs is live. @param {import("../compare/overlay.js").Side[]} sides
 * @param {{soon: () => void}[]} shown */
function follow(sides, shown) {
  const ask = new Refresh(async (signal) => {
    const runs = await Promise.all(sides.map(({ id }) => get(`runs/${encodeURIComponent(id)}`, {}, signal)));
    if (runs.every((run) => run.state !== "live")) clearInterval(timer);
    const newest = runs.flatMap(({ newest_step: step }) => step ?? []);
    if (newest.length === runs.length) page.follow.saw(Math.min(...newest));
    for (const each of shown) each.soon(); // also once after the end
  });
  const timer = setInterval(() => page.follow.paused || ask.soon(), LIVE_MS);
}

reveal(document);
if (held.a) startPictures();
