import { send } from "../api.js";
import { byId } from "../dom.js";
import { Finder } from "../finder.js";
import { Capture } from "../hooks/capture.js";
import { ModuleTable } from "../hooks/table.js";
import { listenToLinks, Parts } from "../live/parts.js";
import { open } from "../page.js";

const MIN_MS = 5000;
const ASK_MS = 1000;
const PATIENCE = 8; // requests, after a change
const CHOICES = ["sort", "fold", "folds"]; // what the table is chosen by, besides the text of the find box

const page = open({ sort: "", fold: "0", folds: "", row: "0" });
const run = /** @type {string} */ (page.run);
const form = /** @type {HTMLFormElement | null} */ (document.getElementById("capture"));
const figures = byId("hook-figures");
/** The text of the find box that could be read last: the table stays as it is until another one can be. */
let filter = page.state.get("f");
const parts = new Parts(page, "capture", { min: MIN_MS, max: MIN_MS, query });
/** Changes when other modules are captured. */
let coverage = figures.dataset.coverage;

const capture = form && new Capture(page, form, { drafted: () => table.showWatched(), obeyed: () => void settle() });
const table = new ModuleTable(page, byId("modules"), capture);
const finder = new Finder(page, () => {
  if (finder.problem) return;
  filter = finder.text;
  fromTop();
});

function query() {
  const query = new URLSearchParams(location.search);
  query.set("f", filter);
  return query.toString();
}

/** Shows the first rows of other modules, or the same ones in another order. */
function fromTop() {
  page.state.set({ row: "0" });
  void parts.now(["modules"]);
}

/** After a change, asks the trainer for its hooks, and waits until it has reported what it captures now. */
async function settle() {
  await send("POST", "hooks", undefined, { run }).catch(() => null);
  const before = coverage;
  for (let requests = 0; requests < PATIENCE && coverage === before; requests += 1) {
    if (requests) await new Promise((go) => setTimeout(go, ASK_MS));
    await parts.now(["figures", "reasons"]);
  }
}

parts.follow(["figures", "reasons"]);
page.events.on("news", () => page.follow.paused || parts.soon(["figures", "reasons"]));
figures.addEventListener("renewed", () => {
  if (figures.dataset.coverage === coverage) return;
  coverage = figures.dataset.coverage;
  void parts.now(["modules"]);
});
page.follow.on("change", () => {
  byId("hooks-now").hidden = !page.follow.paused;
  void parts.now(["modules"]);
});
for (const name of CHOICES) page.state.on(name, fromTop);
page.state.on("row", () => void parts.now(["modules"]));
listenToLinks(page);
capture?.look();
