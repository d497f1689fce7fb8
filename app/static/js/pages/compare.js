/** Two runs side by side. The server finds where they differ; this draws the charts and handles picking. */
import { get } from "../api.js";
import { makeLoss, makeOverlay } from "../compare/charts.js";
import { byId } from "../dom.js";
import { newsInPage } from "../live/news.js";
import { Parts } from "../live/parts.js";
import { Refresh } from "../live/refresh.js";
import { open } from "../page.js";
import { load } from "../popup.js";
import { RunsClock } from "../timeline/runsclock.js";

/** @import { Message, RunNews } from "../answers.js"
 * @import { Side } from "../compare/charts.js" */

const LIVE_MS = 10_000; // between two updates: a comparison reads all values
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

// A choice is sent at once; typed text waits for Enter.
form?.addEventListener("change", (event) => {
  if (/** @type {HTMLElement} */ (event.target).tagName === "SELECT") form.requestSubmit();
});
// The form has no field for the axis of the lines, which is another one for the pictures only.
form?.addEventListener(
  "formdata",
  ({ formData }) => state.get("by") !== state.defaults.by && formData.set("by", state.get("by")),
);
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
  /** @type {Refresh | null} */
  let map = null;
  if (figure)
    page.schedule.whenSeen(figure).then(async () => {
      const part = await load(() => import("../compare/differences.js"));
      if (!part) return;
      const differences = new part.Differences(page, figure, asked, sides[0].id, pick);
      map = new Refresh((signal) => differences.load(signal));
      void map.now();
    });
  const clock = new RunsClock(page);
  const ofRuns = { ...page, clock };
  const showModule = makeOverlay(ofRuns, lines, sides, asked);
  const showLoss = makeLoss(ofRuns, document.getElementById("loss-lines"), sides);
  /** @param {AbortSignal} signal */
  const learn = async (signal) => {
    if (clock.asked === "step") return clock.stay("");
    const runs = sides.map(({ id }) => get(`runs/${encodeURIComponent(id)}`, {}, signal));
    await clock.learn(await Promise.all(runs), signal);
  };
  const layer = new Refresh(async (signal) => {
    await learn(signal);
    await showModule(state.get("module"), signal);
  });
  const showPicked = () => {
    for (const row of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("#layers tbody tr")))
      row.classList.toggle("picked", row.dataset.module === state.get("module"));
  };
  const showLayer = () => {
    showPicked();
    void layer.now();
  };
  const loss = new Refresh((signal) => learn(signal).then(() => showLoss(signal)));
  const parts = new Parts(page, "compare", { query: sameRuns, max: MAX_MS });
  byId("compared").addEventListener("renewed", () => {
    // What is compared only now has no figure yet.
    if (figuresToShow().some((id) => !document.getElementById(id))) location.reload();
    showPicked();
  });
  state.on("module", showLayer);
  const again = () => {
    void layer.now();
    void loss.now();
    void map?.now();
  };
  state.on("by", again);
  clock.on("learned", () => {
    const why = document.getElementById("axis-why");
    if (why) why.textContent = clock.why;
  });
  page.follow.on("change", again);
  byId("compared").addEventListener("click", (/** @type {MouseEvent} */ event) => {
    const row = /** @type {HTMLElement} */ (event.target).closest("a.pick")?.closest("tr");
    if (!row || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    pick(row.dataset.module ?? "");
  });
  showLayer();
  void loss.now();
  if (held.live === "yes") follow(sides, [loss, { soon: () => map?.soon() }, layer, parts]);
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

/** Shows newer data when the socket says so, until both runs have ended.
 * @param {Side[]} sides @param {{soon: () => void}[]} shown */
function follow(sides, shown) {
  /** What was heard of each run, at first what the page was made of. @type {Map<string, RunNews | undefined>} */
  const heard = new Map(newsInPage().map((news) => [news.run, news]));
  const update = new Refresh(async () => shown.forEach((picture) => void picture.soon()), { min: LIVE_MS });
  const ids = [...new Set(sides.map(({ id }) => id))];
  const open = ids.map((id) => page.stream.subscribe({ view: "runs", run: id, hz: 1 }, { json: hear(id) }));

  /** @param {string} id @returns {(said: Message) => void} */
  function hear(id) {
    return (message) => {
      if (message.type !== "runs") return;
      const news = message.runs.find(({ run }) => run === id);
      if (heard.has(id) && JSON.stringify(news) === JSON.stringify(heard.get(id))) return;
      heard.set(id, news);
      if (heard.size < open.length) return;
      const newest = [...heard.values()].flatMap((news) => news?.last_step ?? []);
      if (newest.length === open.length) page.follow.saw(Math.min(...newest));
      if (!page.follow.paused) update.soon(); // also once after the end
      if (![...heard.values()].some((news) => ["live", "waiting"].includes(news?.state ?? "")))
        for (const subscription of open) subscription.close();
    };
  }
}

if (held.a) startPictures();
