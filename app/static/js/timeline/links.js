/** The steps of this page go along to the run's other pages: in links, in forms, and where a script opens a page. */
import { h } from "../dom.js";

/** @import { Page } from "../page.js" */

/** @typedef {{steps: string, step: string, by: string, range: [number, number] | null}} Shared "" is the default */

const OWN = /\/problems\/incident$/; // opens at its own steps

/** Whether a link leads to a page of the run that shows steps. @param {string} href @param {string} runPath */
export function isOfRun(href, runPath) {
  const path = href.split(/[?#]/)[0];
  return (path === runPath || path.startsWith(`${runPath}/`)) && !OWN.test(path);
}

/** A link with these steps in place of its own. @param {string} href @param {Shared} shared */
export function kept(href, { steps, step, by }) {
  return changed(href, (query) => {
    for (const [name, value] of Object.entries({ steps, step, by })) {
      if (value) query.set(name, value);
      else query.delete(name);
    }
  });
}

/** A tab's link with what else it keeps of this page: what is found, and the kind of values.
 * @param {string} href @param {string} names @param {Pick<Page["state"], "get" | "defaults">} state */
export function carried(href, names, state) {
  return changed(href, (query) => {
    for (const name of names.split(" ").filter((each) => each in state.defaults)) {
      const value = state.get(name);
      if (value && value !== state.defaults[name]) query.set(name, value);
      else query.delete(name);
    }
  });
}

/** A link with these steps as far as it has none. One that leads to a certain step keeps it, and the range if that step
 * is in it. @param {string} href @param {Shared} shared */
export function added(href, { steps, step, by, range }) {
  return changed(href, (query) => {
    const own = query.get("step");
    const isInside = own === null || range === null || (Number(own) >= range[0] && Number(own) <= range[1]);
    if (steps && isInside && !query.has("steps")) query.set("steps", steps);
    if (step && own === null) query.set("step", step);
    if (by && !query.has("by")) query.set("by", by);
  });
}

/** Links with the page's steps added. Each is added to again from where it led at first, so that steps of an earlier
 * moment aren't taken for its own. */
export class Links {
  /** @type {WeakMap<object, {href: string, written: string}>} */
  #known = new WeakMap();

  /** Where a link leads now. @param {object} link @param {string} current its address @param {Shared} shared */
  added(link, current, shared) {
    const before = this.#known.get(link);
    const href = before?.written === current ? before.href : current;
    const written = added(href, shared);
    this.#known.set(link, { href, written });
    return written;
  }
}

/** @param {string} href @param {(query: URLSearchParams) => void} change */
function changed(href, change) {
  const [, path, text, hash] = /** @type {RegExpExecArray} */ (/^([^?#]*)(?:\?([^#]*))?(#.*)?$/.exec(href));
  const query = new URLSearchParams(text ?? "");
  const before = query.toString();
  change(query);
  const after = query.toString();
  if (after === before) return href;
  return `${path}${after ? `?${after}` : ""}${hash ?? ""}`;
}

/** What other pages are to show; "" is what is usual. A page's own default (System shows all steps) is its own, unless
 * it is about a step (an incident). @param {Page} page @returns {Shared} */
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
 * @param {Page} page @param {string} place @param {Record<string, string | number>} [query] */
export function visit(page, place, query) {
  location.assign(new URL(added(page.address(place, query), sharedOf(page)), document.baseURI));
}

/** Links to the run's other pages show what this page shows: those of the frame at once, all others when they are
 * pointed at or reached by key. @param {Page} page */
export function keepSteps(page) {
  if (page.run === null) return;
  const links = /** @type {NodeListOf<HTMLAnchorElement>} */ (document.querySelectorAll("a[data-keeps-steps]"));
  const show = () => {
    for (const link of links) {
      const href = kept(link.getAttribute("href") ?? "", sharedOf(page));
      link.setAttribute("href", carried(href, link.dataset.keeps ?? "", page.state));
    }
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
