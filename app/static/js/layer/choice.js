/** The keys of the Layer page. */

/** @import { Page } from "../page.js" */

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
