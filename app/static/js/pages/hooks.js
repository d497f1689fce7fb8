import { ApiError, send } from "../api.js";
import { byId } from "../dom.js";
import { Capture } from "../hooks/capture.js";
import { listenToRules, load, makeTree, startFiles, startInventory } from "../hooks/lists.js";
import { Parts } from "../live/parts.js";
import { Refresh } from "../live/refresh.js";
import { open } from "../page.js";
import { toast } from "../popup.js";

const MIN_MS = 5000;
const ASK_MS = 1000;
const PATIENCE = 8; // requests, after a change

const page = open({ sort: "", fold: "0" });
const run = /** @type {string} */ (page.run);
const form = /** @type {HTMLFormElement | null} */ (document.getElementById("capture"));
const figures = byId("hook-figures");
const parts = new Parts(page, "hooks", { min: MIN_MS, max: MIN_MS });
/** Changes when other modules are captured. */
let coverage = figures.dataset.coverage;

const capture = form && new Capture(page, form, { drafted: () => tree.draw(), obeyed: () => void settle() });
const tree = makeTree(page, byId("modules"), capture);

const list = async (/** @type {AbortSignal} */ signal) => {
  tree.show(await load(run, page.follow.values, signal));
  capture?.look();
  byId("modules-said").textContent = "";
};
// If the server doesn't answer, the banner says so, and it is asked again.
const failed = (/** @type {unknown} */ error) => error instanceof ApiError && toast(error.message, { kind: "error" });
const listing = new Refresh(list, { failed });

/** After a change, asks the trainer for its hooks, and waits until it has reported what it captures now. */
async function settle() {
  await send("POST", "hooks", undefined, { run }).catch(() => null);
  const before = coverage;
  for (let asked = 0; asked < PATIENCE && coverage === before; asked += 1) {
    if (asked) await new Promise((go) => setTimeout(go, ASK_MS));
    await parts.now();
  }
}

parts.follow();
page.events.on("news", () => page.follow.paused || parts.soon());
figures.addEventListener("renewed", () => {
  if (figures.dataset.coverage === coverage) return;
  coverage = figures.dataset.coverage;
  void listing.now();
});
page.follow.on("change", () => {
  byId("hooks-now").hidden = !page.follow.paused;
  void listing.now();
});
startInventory(page, () => parts.now());
startFiles(page);
listenToRules(run, byId("rules"), () => parts.now(["rules"]));
void listing.now();
