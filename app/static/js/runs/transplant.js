// @ts-check
/** Puts the rows of a newer page of runs in the place of those that are shown; what is not new stays, and so does the focus. */

/** @param {Element} shown a tbody @param {Element} newer one */
export function transplant(shown, newer) {
  const known = new Map(rowsOf(shown).map((row) => [row.dataset.run, row]));
  const kept = rowsOf(newer).map((row) => {
    const old = known.get(row.dataset.run);
    if (!old) return row;
    renew(old, row);
    return old;
  });
  for (const row of rowsOf(shown)) if (!kept.includes(row)) row.remove();
  kept.forEach((row, place) => {
    if (shown.children[place] !== row) shown.insertBefore(row, shown.children[place] ?? null);
  });
}

/** @param {HTMLElement} row @param {HTMLElement} newer */
function renew(row, newer) {
  if ("editing" in row.dataset) return;
  for (const name of ["name", "started"]) row.dataset[name] = newer.dataset[name];
  const cells = [...newer.children];
  [...row.children].forEach((cell, place) => {
    const next = cells[place];
    if (!next || cell.classList.contains("tick") || cell.isEqualNode(next)) return;
    const focused = cell.contains(document.activeElement) ? /** @type {HTMLElement} */ (document.activeElement) : null;
    const deed = focused?.dataset.do;
    if (focused && !deed) return;
    cell.replaceWith(next);
    if (deed) /** @type {HTMLElement | null} */ (next.querySelector(`[data-do="${deed}"]`))?.focus();
  });
}

/** @param {Element} body @returns {HTMLElement[]} */
function rowsOf(body) {
  return /** @type {HTMLElement[]} */ ([...body.children]);
}
