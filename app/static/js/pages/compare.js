// @ts-check
/** Two runs side by side. The server says where they part; here are the pictures, and what is picked. */
import { get } from "../api.js";
import { Differences } from "../compare/differences.js";
import { makeLoss, Overlay } from "../compare/overlay.js";
import { byId, reveal } from "../dom.js";
import { Refresh } from "../live/refresh.js";
import { open } from "../page.js";

const LIVE_MS = 10_000;
const held = document.getElementById("compared")?.dataset ?? {};
const [first, last] = [Number(held.first ?? 0), Number(held.last ?? 0)];
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
  steps: `live:${Math.max(2, last - first + 1)}`,
});
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
  page.follow.saw(last);
  const pick = (/** @type {string} */ module) => state.set({ module });
  const [figure, lines] = ["differences", "layer-lines"].map((id) => document.getElementById(id));
  const differences = figure && new Differences(page, figure, asked, sides[0].id, pick);
  const overlay = lines && new Overlay(page, lines, sides, asked);
  const showLoss = makeLoss(page, document.getElementById("loss-lines"), sides);
  const layer = new Refresh(async (signal) => overlay?.show(state.get("module"), signal));
  const showLayer = () => {
    for (const row of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("#layers tbody tr")))
      row.classList.toggle("picked", row.dataset.module === state.get("module"));
    void layer.now();
  };
  const pictures = new Refresh((signal) => Promise.all([differences?.load(signal), showLoss(signal)]));
  state.on("module", showLayer);
  byId("compared").addEventListener("click", (/** @type {MouseEvent} */ event) => {
    const row = /** @type {HTMLElement} */ (event.target).closest("a.pick")?.closest("tr");
    if (!row || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    pick(row.dataset.module ?? "");
  });
  showLayer();
  void pictures.now();
  if (held.live === "yes") follow(sides, [pictures, layer]);
}

/** Shows what is newer, as long as one of the runs is live. @param {import("../compare/overlay.js").Side[]} sides
 * @param {Refresh[]} shown */
function follow(sides, shown) {
  const ask = new Refresh(async (signal) => {
    const runs = await Promise.all(sides.map(({ id }) => get(`runs/${encodeURIComponent(id)}`, {}, signal)));
    if (runs.every((run) => run.state !== "live")) clearInterval(timer);
    for (const each of shown) each.soon(); // also once after the end
  });
  const timer = setInterval(() => page.follow.paused || ask.soon(), LIVE_MS);
}

reveal(document);
if (held.a) startPictures();
