/** The page Tensors: the snapshots, a viewer, requests for more, and attention over all layers. */
import { get, only } from "../api.js";
import { byId, h, onClick } from "../dom.js";
import { Finder } from "../finder.js";
import { kindWords, ofParameters } from "../format.js";
import { listenToLinks, Parts } from "../live/parts.js";
import { Refresh } from "../live/refresh.js";
import { open } from "../page.js";
import { toast } from "../popup.js";
import { Asking, addFollowing, offerLine } from "../tensors/capture.js";
import { aboutStep, nearestOf, Rolled } from "../tensors/rolled.js";
import { listed, snapshotsOf, Viewer } from "../tensors/viewer.js";

/** @import { Snapshot } from "../answers.js" */

const DEFAULTS = {
  module: "",
  kind: "output",
  index: "",
  phase: "train",
  call: "",
  snapshot: "",
  beside: "",
  view: "",
  at: "",
  scale: "shared",
  ends: "most",
  pool: "worst",
  zoom: "",
  after: "",
  row: "0",
};
const PLAIN = { view: "", at: "", zoom: "", after: "" }; // the usual look
const ROLLOUT = { image: "0", rollout: "", sample: "0", fuse: "mean", discard: "0", gradient: "0", position: "0" };

const page = open({ ...DEFAULTS, ...ROLLOUT });
const { state, follow } = page;
const run = /** @type {string} */ (page.run);
const viewer = new Viewer(page);
const rolled = new Rolled(page);
offerLine(page);
/** @type {Snapshot[]} */
let kept = [];
/** What is looked at as long as the reader chose nothing: the newest one there was first. @type {Snapshot | null} */
let first = null;
/** Of the requests for the snapshots: how many were sent, and which is the newest that was answered. */
let [asked, answered] = [0, 0];
/** The request for the places of a module's tensors. */
let placing = new AbortController();
const finder = new Finder(page, () => finder.problem || showList());
/** The list of the snapshots, with the chosen one, which the address may not have. */
const parts = new Parts(page, "tensors", {
  query: () => {
    const query = new URLSearchParams(location.search);
    query.set("snapshot", String(chosen()?.number ?? state.get("snapshot")));
    return query.toString();
  },
});

function showList() {
  void parts.now();
}

/** The snapshot that is looked at. */
function chosen() {
  if (state.get("snapshot")) return kept.find((snapshot) => String(snapshot.number) === state.get("snapshot"));
  if (follow.paused)
    return nearestOf(
      listed(kept).filter((snapshot) => finder.fits(snapshot.tap.module)),
      follow.values,
    );
  const same = kept.find((snapshot) => snapshot.number === first?.number);
  if (same) return same;
  first = listed(kept).find((snapshot) => finder.fits(snapshot.tap.module)) ?? null;
  return first;
}

/** The current snapshots; the shown ones follow. */
async function load() {
  asked += 1;
  const turn = asked;
  const now = await snapshotsOf(run);
  if (turn < answered) return kept;
  answered = turn;
  const before = kept.map((snapshot) => snapshot.number).join();
  kept = now;
  if (before !== kept.map((snapshot) => snapshot.number).join()) {
    if (!before && !state.get("snapshot")) await show();
    else showList();
    if (kept.length) await rolled.look();
  }
  return kept;
}

async function show() {
  const one = chosen();
  showList();
  byId("viewer-note").textContent = one
    ? aboutStep("A snapshot", one.step, follow.values, state.get("snapshot") !== "")
    : "";
  await viewer.show(one ? [one, ...kept.filter((snapshot) => String(snapshot.number) === state.get("beside"))] : []);
  if (one) return;
  const empty = byId("viewer-empty");
  if (state.get("snapshot"))
    empty.textContent =
      `Snapshot ${state.get("snapshot")} was discarded to make room for newer ones. ` +
      "Choose another one, or capture it again.";
}

/** Where the module has more than one tensor of this kind: its parameters by name, the places of a nested output. */
async function places() {
  placing.abort();
  placing = new AbortController();
  const select = byId("ask-form").elements.namedItem("index");
  const { module, kind } = state.values;
  const indices = module ? await indicesOf(module, kind, placing.signal) : [];
  byId("ask-index-row").hidden = indices.length < 2 && (indices[0] ?? "") === "";
  select.replaceChildren(
    ...(indices.length ? indices : [""]).map((index) =>
      h("option", { value: index }, index || `the ${kindWords(kind)}`),
    ),
  );
  if (indices.length && !indices.includes(state.get("index"))) state.set({ index: indices[0] });
  select.value = state.get("index");
}

/** @param {string} module @param {string} kind @param {AbortSignal} signal @returns {Promise<string[]>} */
async function indicesOf(module, kind, signal) {
  if (ofParameters(kind)) {
    // Also where parameters are not captured: their shapes are known.
    const { modules } = await get(`runs/${encodeURIComponent(run)}/modules`, only(module), signal);
    return Object.keys(modules[0]?.shapes ?? {}).filter((name) => !/^(in|out)put\b/.test(name));
  }
  const { taps } = await get("taps", { run, ...only(module), kind }, signal);
  return [...new Set(taps.map((tap) => tap.index))];
}

/** @param {() => Promise<any>} work */
const say = (work) => () =>
  work().catch((error) => {
    if (error.name !== "AbortError") toast(`Can\u2019t load the snapshots: ${error.message}`, { kind: "error" });
  });

listenToLinks(page);
state.on("row", showList);
onClick("#kept a[data-snapshot]", ({ dataset }, event) => {
  if (event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  state.set({ snapshot: dataset.snapshot, beside: "", ...("alike" in dataset ? {} : PLAIN) }, { push: true });
});
const asking = new Asking(page, load, (number) => state.set({ snapshot: String(number), beside: "", ...PLAIN }));
// The next snapshot of the same tensor is looked at in the same way.
addFollowing(page, asking, { chosen, show: (number) => state.set({ snapshot: String(number) }) });
for (const name of ["snapshot", "beside"]) state.on(name, say(show));
follow.on("change", say(show));
for (const name of ["module", "kind"]) state.on(name, say(places));
const fresh = new Refresh(load);
/** How many snapshots the run has had, as far as the page knows. */
let taken = -1;
page.events.on("run", ({ snapshots }) => {
  if (snapshots !== taken) fresh.soon();
  taken = snapshots;
});
say(async () => {
  await Promise.all([load(), places()]);
  await show();
})().then(() => kept.length || fresh.soon());
