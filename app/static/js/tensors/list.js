// @ts-check
/** The snapshots that are kept: to choose one, and another one to stand beside it. */
import { get } from "../api.js";
import { byId, h } from "../dom.js";
import { count } from "../format.js";
import { aboutOf } from "./side.js";

const MOST = 300;

/** All of a run, oldest first. @param {string} run @returns {Promise<any[]>} */
export async function snapshotsOf(run) {
  const found = [];
  for (let after = /** @type {number | null} */ (0); after !== null; ) {
    const page = await get("snapshots", { run, after, limit: 1000 });
    found.push(...page.snapshots);
    after = page.next;
  }
  return found;
}

/** @param {import("../page.js").Page} page @param {any[]} snapshots @param {import("../finder.js").Finder} finder */
export function showList(page, snapshots, finder) {
  const { state } = page;
  const fits = snapshots.filter((each) => finder.fits(each.tap.module)).reverse();
  const chosen = snapshots.find((each) => String(each.number) === state.get("snapshot"));
  const lines = fits.slice(0, MOST).map((each) => lineOf(page, each, chosen));
  byId("kept").replaceChildren(...lines);
  byId("kept-total").textContent = fits.length === snapshots.length ? `${count(fits.length)} kept` : `${count(fits.length)} of ${count(snapshots.length)} kept`;
  const empty = byId("kept-empty");
  empty.hidden = fits.length > 0;
  empty.textContent = snapshots.length ? "None of the modules that fit the search." : "None yet. Choose a module above, and look at its tensor as soon as it comes.";
}

/** @param {import("../page.js").Page} page @param {any} each @param {any} chosen */
function lineOf(page, each, chosen) {
  const { state } = page;
  const number = String(each.number);
  const current = number === state.get("snapshot");
  const besides = number === state.get("beside");
  const link = h("a", { href: page.address("tensors", { snapshot: number }) }, h("strong", {}, each.tap.label), h("span", { class: "quiet small" }, aboutOf(each)));
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    state.set({ snapshot: number, beside: "", ...(same(chosen, each) ? {} : { view: "", at: "", part: "", after: "" }) }, { push: true });
  });
  const alike = chosen && !current && same(chosen, each);
  const beside = alike && h("button", { class: "button toggle", type: "button", "aria-pressed": String(besides), "aria-label": `Beside: ${each.tap.label}, step ${each.step}`, onclick: () => state.set({ beside: besides ? "" : number }) }, "Beside");
  return h("li", { "aria-current": current ? "true" : null }, link, beside || null);
}

/** Whether one look fits both. @param {any} one @param {any} two */
function same(one, two) {
  return one && one.kept_shape.length === two.kept_shape.length && one.kept_shape.slice(-2).join() === two.kept_shape.slice(-2).join();
}
