// @ts-check
/** The steps of a page in the links to other pages of the run. Pure. */

/** @typedef {{steps: string, step: string, by: string, range: [number, number] | null}} Shared "" is the default */

const OWN = /\/incident$/; // opens at its own steps

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

/** A link with these steps as far as it has none. One that leads to a certain step keeps it, and the range if that step
 * is in it.
 * @param {string} href @param {Shared} shared */
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
    const known = this.#known.get(link);
    const href = known?.written === current ? known.href : current;
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
