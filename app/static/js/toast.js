// @ts-check
/** A short message at the edge of the page, with an Undo button if the action can be undone, or a link. */
import { h, makeButton } from "./dom.js";

const SHORT_MS = 4000;
const LONG_MS = 8000;

/** Does something, and tells the reader if it failed. @param {string} failed begins the sentence
 * @param {() => Promise<unknown>} work @returns {Promise<boolean>} whether it worked */
export async function attempt(failed, work) {
  try {
    await work();
    return true;
  } catch (error) {
    toast(`${failed}: ${/** @type {Error} */ (error).message}`, { kind: "error" });
    return false;
  }
}

/** @param {string} text
 * @param {{undo?: () => void, done?: () => void, kind?: "error", link?: {words: string, href: string}}} [how] `done` is
 * called if it was not undone: when the message or the page closes */
export function toast(text, { undo, done, kind, link } = {}) {
  const place = document.getElementById("toasts");
  if (!place) return;
  let timer = 0;
  /** What had the focus before the message. @type {HTMLElement | null} */
  let before = null;
  /** @param {(() => void) | undefined} then */
  const end = (then) => {
    if (!element.isConnected) return;
    clearTimeout(timer);
    removeEventListener("pagehide", leave);
    const hadFocus = element.contains(document.activeElement);
    element.remove();
    if (hadFocus) (before?.isConnected ? before : document.getElementById("main"))?.focus({ preventScroll: true });
    then?.();
  };
  const leave = () => end(done);
  const wait = () => {
    clearTimeout(timer);
    timer = setTimeout(leave, undo || kind === "error" ? LONG_MS : SHORT_MS);
  };
  const element = h(
    "div",
    { class: `toast${kind ? ` ${kind}` : ""}`, role: kind === "error" ? "alert" : null },
    h("span", {}, text),
  );
  if (link) element.append(h("a", { href: link.href }, link.words));
  if (undo) element.append(makeButton("Undo", () => end(undo)));
  element.append(makeButton("\u00d7", leave, { class: "button icon", "aria-label": "Close" }));
  // It stays while the pointer or the focus is on it.
  for (const begin of ["mouseenter", "focusin"]) element.addEventListener(begin, () => clearTimeout(timer));
  for (const over of ["mouseleave", "focusout"]) element.addEventListener(over, wait);
  element.addEventListener("focusin", ({ relatedTarget: from }) => {
    if (from instanceof HTMLElement && !element.contains(from)) before = from;
  });
  place.append(element);
  addEventListener("pagehide", leave);
  wait();
}
