// @ts-check
/** Two runs side by side. The server says where they part; here are the pictures, and what is picked. */
import { Differences } from "../compare/differences.js";
import { makeLoss, Overlay } from "../compare/overlay.js";
import { byId, reveal } from "../dom.js";
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
  const showLayer = () => {
    for (const row of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("#layers tbody tr")))
      row.classList.toggle("picked", row.dataset.module === state.get("module"));
    void overlay?.show(state.get("module"));
  };
  const all = () => {
    void differences?.load();
    void showLoss();
    showLayer();
  };
  state.on("module", showLayer);
  byId("compared").addEventListener("click", (/** @type {MouseEvent} */ event) => {
    const row = /** @type {HTMLElement} */ (event.target).closest("a.pick")?.closest("tr");
    if (!row || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    pick(row.dataset.module ?? "");
  });
  all();
  if (held.live === "yes") setInterval(() => document.hidden || page.follow.paused || all(), LIVE_MS);
}

reveal(document);
if (held.a) startPictures();
