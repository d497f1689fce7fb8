/** The parts of a page that the server renders, also when something has changed: requested while they are in view, and
 * put in place with as few changes as possible, so that focus, scroll position, open details, and typed text stay. */
import { ApiError, notePartial, numberOf, reach } from "../api.js";
import { byId, onClick, write } from "../dom.js";
import { number } from "../format.js";
import { prefs } from "../prefs.js";
import { Refresh } from "./refresh.js";

/** @import { Page } from "../page.js" */

/** Attributes that the reader changes and the server doesn't know. */
const READERS = new Set(["open", "data-busy"]);

/** @param {any} shown @param {any} newer */
function morph(shown, newer) {
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
  const shownById = new Map([...shown.childNodes].filter((node) => node.id).map((node) => [node.id, node]));
  const wanted = new Set([...newer.childNodes].map((node) => node.id).filter(Boolean));
  let here = shown.firstChild;
  for (const next of [...newer.childNodes]) {
    // Remove deleted nodes first, so that the nodes after them don't move.
    while (here?.id && !wanted.has(here.id)) here = dropped(shown, here);
    const old = next.id ? shownById.get(next.id) : !here?.id && isAlike(here, next) ? here : null;
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

/** Dispatches "renewed" on the element of an updated part. */
export class Parts {
  /** Outdated parts, each with the change that made it so. @type {Map<HTMLElement, object>} */
  #old = new Map();

  /** @param {Page} page @param {string} place of the address: "" is the overview
   * @param {{root?: ParentNode, query?: () => string} & ConstructorParameters<typeof Refresh>[1]} [how] what the
   *   parts are in, the query of their address, and how often they are requested */
  constructor(page, place, { root = byId("main"), query = () => location.search, ...how } = {}) {
    this.page = page;
    this.place = place;
    this.query = query;
    this.refresh = new Refresh((signal) => this.#ask(signal), { ready: () => this.#wanted.length > 0, ...how });
    this.elements = /** @type {HTMLElement[]} */ ([...root.querySelectorAll("[data-part]")]);
    for (const element of this.elements) {
      page.schedule.watch(element, () => this.#old.has(element) && this.refresh.soon());
      dress(element);
    }
    prefs.on("numbers", () => dress(root));
  }

  /** Updates parts soon. @param {string[]} [names] these parts only */
  soon(names) {
    this.#mark(names);
    this.refresh.soon();
  }

  /** Updates parts now: a reader waits. @param {string[]} [names] these parts only */
  now(names) {
    this.#mark(names);
    return this.refresh.now();
  }

  /** Updates parts without the usual pause, because the reader chose other steps.
   * @param {string[]} [names] these only */
  promptly(names) {
    this.#mark(names);
    this.refresh.promptly();
  }

  /** Follows the newest steps while the page does, and stops with it. @param {string[]} [names] these parts only
   * @param {{held?: boolean}} [how] `held`: the parts show the step that the page is held at */
  follow(names, { held = false } = {}) {
    const { follow } = this.page;
    let paused = follow.paused;
    follow.on("newest", () => follow.paused || this.soon(names));
    follow.on("change", () => {
      if (follow.paused && !paused) this.#hold();
      paused = follow.paused;
      if (!paused || held) this.promptly(names);
    });
  }

  /** @param {string[]} [names] */
  #mark(names) {
    for (const element of this.elements)
      if (!names || names.includes(element.dataset.part ?? "")) this.#old.set(element, {});
  }

  /** Ignores answers that are still on their way. */
  #hold() {
    this.#old.clear();
    this.refresh.stop();
  }

  /** The outdated parts that are in view. A part with `data-unseen` counts as in view, because scripts read it. */
  get #wanted() {
    return [...this.#old].filter(([element]) => "unseen" in element.dataset || this.page.schedule.isSeen(element));
  }

  /** @param {AbortSignal} signal */
  async #ask(signal) {
    const wanted = this.#wanted;
    if (!wanted.length) return;
    const query = new URLSearchParams(this.query());
    for (const [element] of wanted) query.append("part", element.dataset.part ?? "");
    const address = `${this.page.address(this.place)}?${query}`;
    const answer = await reach(address, { headers: { Accept: "text/html" }, signal });
    const html = await answer.text();
    notePartial(answer, { isWhole: answer.ok });
    if (answer.status < 500)
      for (const [element, change] of wanted) if (this.#old.get(element) === change) this.#old.delete(element);
    if (!answer.ok) throw new ApiError(answer.status, "");
    this.#take(
      wanted.map(([element]) => element),
      html,
    );
  }

  /** @param {HTMLElement[]} wanted @param {string} html */
  #take(wanted, html) {
    const newer = new DOMParser().parseFromString(html, "text/html");
    const active = /** @type {HTMLElement | null} */ (document.activeElement);
    for (const element of wanted) {
      const next = /** @type {HTMLElement | null} */ (newer.querySelector(`[data-part="${element.dataset.part}"]`));
      if (!next) continue;
      dress(next);
      morph(element, document.adoptNode(next));
      element.dispatchEvent(new CustomEvent("renewed", { bubbles: true }));
    }
    // An element loses its focus when it moves.
    if (active?.isConnected && document.activeElement !== active) active.focus({ preventScroll: true });
  }
}

/** Handles clicks on links with `data-set` (`name=value`): they change the page's state, not the address of the page.
 * @param {Page} page @param {(name: string) => unknown} [then] */
export function listenToLinks(page, then = () => {}) {
  onClick("[data-set]", (link, event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const [name, ...value] = link.dataset.set.split("=");
    page.state.set({ [name]: value.join("=") }, { push: true });
    then(name);
  });
}

/** Formats numbers as the reader prefers, and marks NaN and infinities. @param {ParentNode} root */
export function dress(root) {
  for (const element of /** @type {NodeListOf<HTMLDataElement>} */ (root.querySelectorAll("data[value]"))) {
    const value = readNumber(element.value);
    const words = number(value);
    write(element, words);
    element.classList.toggle("nan", Number.isNaN(value));
    element.classList.toggle("inf", !Number.isFinite(value) && !Number.isNaN(value));
    if (!element.className) element.removeAttribute("class");
  }
}

/** Python writes nan and inf. @param {string} text */
function readNumber(text) {
  const words = { nan: "NaN", inf: "Infinity", "-inf": "-Infinity" };
  return text in words ? numberOf(/** @type {any} */ (words)[text]) : Number(text);
}
