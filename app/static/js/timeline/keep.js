// @ts-check
/** The steps of this page go along to the run's other pages: in links, in forms, and where a script opens a page. */
import { h } from "../dom.js";
import { added, isOfRun, kept, Links } from "./links.js";

/** What other pages are to show; "" is what is usual. A page's own default (System shows all steps) is its own, unless
 * it is about a step (an incident).
 * @param {import("../page.js").Page} page @returns {import("./links.js").Shared} */
export function sharedOf({ follow, state }) {
  const steps = state.get("steps");
  const { steps: own, step: ownStep } = state.defaults;
  const isOwn = steps === own && !ownStep && !new URLSearchParams(location.search).has("steps");
  const isUsual = isOwn || steps === document.body.dataset.usualSteps;
  const by = state.get("by");
  return {
    steps: isUsual ? "" : steps,
    step: state.get("step"),
    by: by === state.defaults.by ? "" : by,
    range: follow.range,
  };
}

/** Opens a page of the run on the same steps.
 * @param {import("../page.js").Page} page @param {string} place @param {Record<string, string | number>} [query] */
export function visit(page, place, query) {
  location.assign(new URL(added(page.address(place, query), sharedOf(page)), document.baseURI));
}

/** Links to the run's other pages show what this page shows: those of the frame at once, all others when they are
 * pointed at or reached by key.
 * @param {import("../page.js").Page} page */
export function keepSteps(page) {
  if (page.run === null) return;
  const links = /** @type {NodeListOf<HTMLAnchorElement>} */ (document.querySelectorAll("a[data-keeps-steps]"));
  const show = () => {
    for (const link of links) link.setAttribute("href", kept(link.getAttribute("href") ?? "", sharedOf(page)));
  };
  page.state.on("change", show);
  show();
  const others = new Links();
  const keep = (/** @type {Event} */ event) => {
    const link = /** @type {Element} */ (event.target).closest?.(":is(main, .drawer) a[href]");
    const href = link?.getAttribute("href") ?? "";
    if (link && isOfRun(href, page.runPath)) link.setAttribute("href", others.added(link, href, sharedOf(page)));
  };
  for (const name of ["pointerover", "focusin", "click"]) document.addEventListener(name, keep, { capture: true });
  document.addEventListener("submit", ({ target }) => keepInForm(/** @type {HTMLFormElement} */ (target)), true);

  /** @param {HTMLFormElement} form */
  function keepInForm(form) {
    if (form.method !== "get" || !isOfRun(form.getAttribute("action") ?? "", page.runPath)) return;
    const { steps, step, by } = sharedOf(page);
    for (const [name, value] of Object.entries({ steps, step, by })) {
      form.querySelector(`input[type=hidden][name=${name}]`)?.remove();
      if (value && !form.elements.namedItem(name)) form.append(h("input", { type: "hidden", name, value }));
    }
  }
}
