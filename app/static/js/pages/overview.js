// @ts-check
/** The page Overview: the server renders its parts, also when something is new; the picture and the line are drawn here. */
import { byId } from "../dom.js";
import { listenToSeen } from "../overview/acknowledge.js";
import { ModelPicture } from "../overview/model.js";
import { dress, Parts } from "../overview/parts.js";
import { ScalarChart } from "../overview/scalarchart.js";
import { open } from "../page.js";
import { prefs } from "../prefs.js";

const PATIENCE_MS = 1500;

const usual = byId("model").dataset.kind ?? "";
const page = open({ kind: usual, stat: "norm", y: "linear", smooth: "0", scalar: "", scalars: "", row: "0" });
const parts = new Parts(page, "");

startParts();
// The picture first: the line's library is large, and must not keep the first numbers waiting.
const picture = new ModelPicture(page, byId("model"));
let chart = /** @type {ScalarChart | null} */ (null);
const begin = () => (chart ??= new ScalarChart(page, byId("scalars").dataset.usual, showNewest));
picture.drawn.then(begin);
setTimeout(begin, PATIENCE_MS);

function startParts() {
  parts.follow(undefined, { held: true });
  page.events.on("run", noticed());
  page.state.on("scalars", () => parts.now(["scalars"]));
  page.state.on("scalar", () => parts.now(["scalars"]));
  page.state.on("row", () => parts.now(["values"]));
  prefs.on("numbers", () => dress(document));
  listenToSeen(page, () => parts.now(["findings", "news"]));
  byId("scalars").addEventListener("renewed", () => chart?.know(byId("scalars").dataset.usual));
  document.addEventListener("click", (event) => {
    const link = /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest("[data-set]"));
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const [name, ...value] = (link.dataset.set ?? "").split("=");
    page.state.set({ [name]: value.join("=") }, { push: true });
  });
}

/** The cards of a scalar follow its chart. While the page is held they keep the value at that step, which the server rendered;
 * the chart moves on to a later one. @param {string} name @param {number} value */
function showNewest(name, value) {
  if (page.follow.paused) return;
  const title = document.querySelector("#figure-loss dt")?.textContent;
  const cards = [
    document.querySelector(`#scalars [id="scalar-${CSS.escape(name)}"]`),
    title === name ? byId("figure-loss") : null,
  ];
  for (const card of cards) {
    const data = card?.querySelector("data");
    if (!card || !data) continue;
    data.setAttribute("value", String(value));
    dress(card);
  }
}

/** What changes in a run without a step: its state, its events. @returns {(run: import("../answers.js").RunNews) => void} */
function noticed() {
  let known = "";
  return (run) => {
    const now = `${run.state} ${run.events} ${run.edits}`;
    if (known && now !== known) parts.soon(page.follow.paused ? [] : ["figures", "findings", "news"]);
    known = now;
  };
}
