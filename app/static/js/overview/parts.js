// @ts-check
/** The parts of a page that the server renders, also when something is new: asked for while they are seen, not more often
 * than they can be made, and put in place without disturbing the reader. */
import { numberOf } from "../api.js";
import { reveal } from "../dom.js";
import { number } from "../format.js";
import { morph } from "./morph.js";

const MIN_MS = 1000;
const MAX_MS = 5000;
const SHARE = 10; // at most a tenth of the time is spent on requests, unless the page would lag

/** Dispatches "renewed" on the element of an updated part. */
export class Parts {
  #asking = false;
  /** @type {ReturnType<typeof setTimeout> | null} */
  #timer = null;
  #notBefore = 0;
  #held = 0;
  /** Outdated parts. @type {Set<HTMLElement>} */
  #old = new Set();

  /** @param {import("../page.js").Page} page @param {string} place of the address: "" is the overview @param {ParentNode} [root] */
  constructor(page, place, root = document) {
    this.page = page;
    this.place = place;
    /** @type {HTMLElement[]} */
    this.elements = [...root.querySelectorAll("[data-part]")].map((each) => /** @type {HTMLElement} */ (each));
    for (const element of this.elements) {
      page.schedule.watch(element);
      element.addEventListener("seen", () => this.#old.size && this.#later());
      dress(element);
    }
    reveal(root);
    document.addEventListener("visibilitychange", () => this.#old.size && this.#later());
  }

  /** Updates parts soon. @param {string[]} [names] these parts only */
  soon(names) {
    for (const element of this.elements)
      if (!names || names.includes(element.dataset.part ?? "")) this.#old.add(element);
    this.#later();
  }

  /** Updates parts now: a reader waits. @param {string[]} [names] */
  async now(names) {
    this.#notBefore = 0;
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
    this.soon(names);
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
      if (!paused || held) this.soon(names);
    });
  }

  /** Ignores answers that are still on their way. */
  #hold() {
    this.#old.clear();
    this.#held += 1;
  }

  #later() {
    if (this.#timer !== null || this.#asking || document.hidden) return;
    this.#timer = setTimeout(
      () => {
        this.#timer = null;
        this.#ask();
      },
      Math.max(0, this.#notBefore - performance.now()),
    );
  }

  async #ask() {
    const wanted = [...this.#old].filter((each) => this.page.schedule.isSeen(each));
    if (!wanted.length) return;
    this.#asking = true;
    const began = performance.now();
    const held = this.#held;
    for (const element of wanted) this.#old.delete(element);
    try {
      const query = new URLSearchParams(location.search);
      query.delete("part");
      for (const element of wanted) query.append("part", element.dataset.part ?? "");
      const answer = await fetch(`${this.page.address(this.place)}?${query}`, { headers: { Accept: "text/html" } });
      const html = await answer.text();
      if (answer.ok && held === this.#held) this.#take(wanted, html);
    } catch {
      // The server is away: the banner says so, and the stream resumes when it is back.
    }
    this.#asking = false;
    this.#notBefore = performance.now() + Math.min(MAX_MS, Math.max(MIN_MS, SHARE * (performance.now() - began)));
    if (this.#old.size) this.#later();
  }

  /** @param {HTMLElement[]} wanted @param {string} html */
  #take(wanted, html) {
    const newer = new DOMParser().parseFromString(html, "text/html");
    const active = /** @type {HTMLElement | null} */ (document.activeElement);
    for (const element of wanted) {
      const next = /** @type {HTMLElement | null} */ (newer.querySelector(`[data-part="${element.dataset.part}"]`));
      if (!next) continue;
      reveal(next);
      dress(next);
      morph(element, document.adoptNode(next));
      element.dispatchEvent(new CustomEvent("renewed", { bubbles: true }));
    }
    // An element loses its focus when it moves.
    if (active?.isConnected && document.activeElement !== active) active.focus({ preventScroll: true });
  }
}

/** Formats numbers as the reader prefers, and marks NaN and infinities. @param {ParentNode} root */
export function dress(root) {
  for (const each of /** @type {NodeListOf<HTMLDataElement>} */ (root.querySelectorAll("data[value]"))) {
    const value = readNumber(each.value);
    const words = number(value);
    if (each.textContent !== words) each.textContent = words;
    each.classList.toggle("nan", Number.isNaN(value));
    each.classList.toggle("inf", !Number.isFinite(value) && !Number.isNaN(value));
    if (!each.className) each.removeAttribute("class");
  }
}

/** Python writes nan and inf. @param {string} text */
export function readNumber(text) {
  const words = { nan: "NaN", inf: "Infinity", "-inf": "-Infinity" };
  return text in words ? numberOf(/** @type {any} */ (words)[text]) : Number(text);
}
