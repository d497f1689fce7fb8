// @ts-check
/** Keys that lead to other layers and change how charts are drawn. */

const SCALES = ["", "log", "symlog", "linear"];
const HALF_LIVES = ["0", "5", "20", "100", "500"];

/** @param {import("../page.js").Page} page */
export function addKeys(page) {
  for (const [key, id, words] of [
    ["j", "next", "next layer"],
    ["k", "previous", "previous layer"],
    ["u", "parent", "parent of this layer"],
  ])
    page.keys.add(key, words, () => go(id));
  page.keys.add("l", "scale: automatic, log, symmetric log, linear", () => turn(page, "y", SCALES), {
    group: "Charts",
  });
  page.keys.add("s", "smoothing: off, 5, 20, 100, 500 steps", () => turn(page, "smooth", HALF_LIVES), {
    group: "Charts",
  });
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

/** @param {import("../page.js").Page} page @param {string} name @param {string[]} values */
function turn(page, name, values) {
  page.state.set({ [name]: values[(values.indexOf(page.state.get(name)) + 1) % values.length] });
  const picker = /** @type {HTMLSelectElement | null} */ (document.querySelector(`#layer-tools [name=${name}]`));
  page.announce(
    `${name === "y" ? "Scale" : "Smoothing"}: ${picker?.selectedOptions[0]?.textContent ?? page.state.get(name)}`,
  );
}
