// @ts-check
/** Turns the shown nodes into newer ones with as few changes as possible, so that focus, scroll position, open details,
 * and typed text stay. Elements with an id are matched by it, even if they moved. An element with `data-editing` isn't
 * changed. */

/** Attributes that the reader changes and the server doesn't know. */
const READERS = new Set(["open", "data-busy"]);

/** @param {any} shown @param {any} newer */
export function morph(shown, newer) {
  // The content of <noscript> is text on a page with scripts, and elements in a parsed document.
  if (shown.isEqualNode(newer) || shown.nodeName === "NOSCRIPT" || shown.dataset?.editing !== undefined) return;
  if (shown.nodeType !== 1) {
    if (shown.nodeValue !== newer.nodeValue) shown.nodeValue = newer.nodeValue;
    return;
  }
  attributes(shown, newer);
  children(shown, newer);
}

/** @param {any} shown @param {any} newer */
function attributes(shown, newer) {
  for (const { name, value } of [...newer.attributes])
    if (!READERS.has(name) && shown.getAttribute(name) !== value) shown.setAttribute(name, value);
  for (const { name } of [...shown.attributes])
    if (!READERS.has(name) && !newer.hasAttribute(name)) shown.removeAttribute(name);
}

/** @param {any} shown @param {any} newer */
function children(shown, newer) {
  const known = new Map([...shown.childNodes].filter((each) => each.id).map((each) => [each.id, each]));
  const wanted = new Set([...newer.childNodes].map((each) => each.id).filter(Boolean));
  let here = shown.firstChild;
  for (const next of [...newer.childNodes]) {
    // Remove deleted nodes first, so that the nodes after them don't move.
    while (here?.id && !wanted.has(here.id)) here = dropped(shown, here);
    const old = next.id ? known.get(next.id) : !here?.id && isAlike(here, next) ? here : null;
    if (!old) {
      shown.insertBefore(next, here);
      continue;
    }
    if (old === here) here = here.nextSibling;
    else shown.insertBefore(old, here);
    morph(old, next);
  }
  while (here) here = dropped(shown, here);
}

/** @param {any} parent @param {any} child @returns {any} the next node */
function dropped(parent, child) {
  const next = child.nextSibling;
  parent.removeChild(child);
  return next;
}

/** @param {any} one @param {any} other */
function isAlike(one, other) {
  return one?.nodeType === other.nodeType && one.nodeName === other.nodeName;
}
