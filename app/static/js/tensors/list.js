// @ts-check
/** The list of snapshots: to select one, and another one to compare. */
import { getAll } from "../api.js";
import { byId, h, makeButton } from "../dom.js";
import { count } from "../format.js";
import { tapWords } from "../kinds.js";
import { MAX_PAGE } from "../limits.js";
import { aboutOf } from "./side.js";

const MAX = 300;

/** @typedef {import("../answers.js").Snapshot} Snapshot */

/** All of a run, oldest first. @param {string} run @returns {Promise<Snapshot[]>} */
export async function snapshotsOf(run) {
  return (await getAll("snapshots", { run, limit: MAX_PAGE })).flatMap(({ snapshots }) => snapshots);
}

/** The newest step first; within a step in the order of the requests, attention before its gradients. Pure.
 * @param {Snapshot[]} snapshots */
export function listed(snapshots) {
  return [...snapshots].sort((one, two) => two.step - one.step || one.number - two.number);
}

/** @param {import("../page.js").Page} page @param {Snapshot[]} snapshots @param {import("../finder.js").Finder} finder
 * @param {Snapshot | null | undefined} chosen the one that is looked at */
export function showList(page, snapshots, finder, chosen) {
  const fits = listed(snapshots).filter((each) => finder.fits(each.tap.module));
  const lines = fits.slice(0, MAX).map((each) => lineOf(page, each, chosen));
  byId("kept").replaceChildren(...lines);
  const noun = snapshots.length === 1 ? "snapshot" : "snapshots";
  byId("kept-total").textContent =
    fits.length === snapshots.length
      ? `${count(fits.length)} ${noun}`
      : `${count(fits.length)} of ${count(snapshots.length)} ${noun}`;
  const empty = byId("kept-empty");
  empty.hidden = fits.length > 0;
  if (snapshots.length) empty.textContent = "No snapshot matches the filter."; // otherwise the server's sentence stands
}

/** @param {import("../page.js").Page} page @param {Snapshot} each @param {Snapshot | null | undefined} chosen */
function lineOf(page, each, chosen) {
  const { state } = page;
  const number = String(each.number);
  const current = each === chosen;
  const besides = number === state.get("beside");
  const link = h(
    "a",
    { href: page.address("tensors", { snapshot: number }) },
    h("strong", {}, tapWords(each.tap)),
    h("span", { class: "quiet small" }, aboutOf(each)),
  );
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    state.set(
      { snapshot: number, beside: "", ...(same(chosen, each) ? {} : { view: "", at: "", part: "", after: "" }) },
      { push: true },
    );
  });
  const alike = chosen && !current && same(chosen, each);
  const beside =
    alike &&
    makeButton("Compare", () => state.set({ beside: besides ? "" : number }), {
      class: "button toggle",
      "aria-pressed": String(besides),
      "aria-label": `Compare: ${tapWords(each.tap)}, step ${each.step}`,
    });
  return h("li", { "aria-current": current ? "true" : null }, link, beside || null);
}

/** Whether the same view fits both. @param {Snapshot | null | undefined} one @param {Snapshot} two */
function same(one, two) {
  return (
    one &&
    one.kept_shape.length === two.kept_shape.length &&
    one.kept_shape.slice(-2).join() === two.kept_shape.slice(-2).join()
  );
}
