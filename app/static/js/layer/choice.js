/** The choices of the Layer page: which module, which of its tensors, and the keys for both. */
import { reach } from "../api.js";
import { byId, h } from "../dom.js";
import { Refresh } from "../live/refresh.js";
import { tensorOf } from "./plan.js";

/** @import { Tap } from "./plan.js"
 * @import { Page } from "../page.js" */

/** @type {Record<string, (tap: Tap) => string>} */
const VALUES = { index: (tap) => tap.index, call: (tap) => String(tap.call), phase: (tap) => tap.phase };
/** @type {Record<string, (value: string) => string>} */
export const WORDS = {
  index: (value) => value || "single tensor",
  call: (value) => value,
  phase: (value) => ({ train: "training", eval: "evaluation" })[value] ?? value,
};

/** @param {Page} page @param {() => Tap[]} taps @returns {() => void} shows what there is now */
export function startPickers(page, taps) {
  for (const name of Object.keys(VALUES))
    select(name).addEventListener("change", () => page.state.set({ [name]: select(name).value }));
  return () => {
    const { kind, index, call, phase } = page.state.values;
    const choice = { kind, index, call, phase };
    const some = kind ? taps().filter((tap) => tap.kind === kind) : taps().filter((tap) => tap.kind === "output");
    const now = kind ? tensorOf(taps(), choice) : null;
    for (const name of Object.keys(VALUES))
      fill(name, some, now ? VALUES[name](now) : page.state.get(name), !kind && name === "index");
  };
}

/** @param {string} name @returns {HTMLSelectElement} */
function select(name) {
  return byId("layer-tools").elements[name];
}

/** @param {string} name @param {Tap[]} taps @param {string} value @param {boolean} never */
function fill(name, taps, value, never) {
  const values = [...new Set(taps.map(VALUES[name]))];
  const picker = select(name);
  if ([...picker.options].map((option) => option.value).join("\n") !== values.join("\n"))
    picker.replaceChildren(...values.map((value) => h("option", { value: value }, WORDS[name](value))));
  picker.value = values.includes(value) ? value : (values[0] ?? "");
  byId(`${name}-label`).hidden = never || values.length < 2;
}

/** @param {Page} page */
export function addKeys(page) {
  for (const [key, id, words] of [
    ["j", "next", "next layer"],
    ["k", "previous", "previous layer"],
    ["u", "parent", "parent of this layer"],
  ])
    page.keys.add(key, words, () => go(id));
  page.keys.add("l", "next scale", () => turn(page, "y", "Scale"), { group: "Charts" });
  page.keys.add("s", "next smoothing", () => turn(page, "smooth", "Smoothing"), { group: "Charts" });
}

/** Opens another layer, in the current view of this one. @param {string} id of the link */
function go(id) {
  const link = /** @type {HTMLAnchorElement | null} */ (document.getElementById(id));
  if (link) location.assign(addressOf(link.href, location.href));
}

/** Returns the address of another layer's page with this page's view. @param {string} other @param {string} here */
export function addressOf(other, here) {
  const [to, from] = [new URL(other), new URL(here)];
  const module = to.searchParams.get("module") ?? "";
  to.search = from.search;
  to.searchParams.set("module", module);
  return to.href;
}

/** Chooses the next option of a list. @param {Page} page @param {string} name of the list @param {string} label */
function turn(page, name, label) {
  const list = /** @type {HTMLSelectElement} */ (document.querySelector(`#layer-tools select[name=${name}]`));
  const options = [...list.options];
  const next = options[(options.findIndex(({ value }) => value === page.state.get(name)) + 1) % options.length];
  page.state.set({ [name]: next.value });
  page.announce(`${label}: ${next.textContent}`);
}

const MIN_MS = 150;
const RENEWED = ["found", "problem", "choice"];

/** @param {Page} page */
export function startChoice(page) {
  if (!document.getElementById("choice")) return;
  const refresh = new Refresh(
    async (signal) => {
      const answer = await reach(page.address("layer", { f: page.state.get("f") }), { signal });
      if (answer.ok) renew(await answer.text());
    },
    { min: MIN_MS, max: MIN_MS },
  );
  page.state.on("f", () => refresh.soon());
}

/** @param {string} html a whole page */
function renew(html) {
  const newer = new DOMParser().parseFromString(html, "text/html");
  // An invalid pattern finds nothing: the list stays, and the problem is shown next to it.
  const unread = newer.getElementById("problem")?.textContent?.trim();
  for (const id of unread ? ["problem"] : RENEWED) {
    const fresh = newer.getElementById(id);
    if (fresh) byId(id).replaceChildren(...fresh.childNodes);
  }
}
