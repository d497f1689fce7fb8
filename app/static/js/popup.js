/** What opens over a page: dialogs, boxes of choices, the tip at the pointer, and short messages at the edge. */
import { coded, h, makeButton } from "./dom.js";

/** Shows a dialog that is gone when it closes. @param {Record<string, any>} attributes
 * @param {...HTMLElement} children */
export function openDialog(attributes, ...children) {
  const dialog = /** @type {HTMLDialogElement} */ (h("dialog", attributes, ...children));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** Closes a box of choices at a click outside of it, and at Escape. @param {HTMLDetailsElement} box */
export function closeOutside(box) {
  document.addEventListener("click", (event) => {
    if (!event.composedPath().includes(box)) box.open = false;
  });
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !box.open) return;
    box.open = false;
    box.querySelector("summary")?.focus();
  });
}

const AWAY = 14;

/** @type {HTMLElement | null} */
let tip = null;

/** Shows lines of text near a point, inside the window. @param {string} text @param {number} x @param {number} y */
export function showTip(text, x, y) {
  tip ??= document.body.appendChild(h("div", { class: "tip", "aria-hidden": "true" }));
  tip.hidden = false;
  tip.textContent = text;
  const { offsetWidth, offsetHeight } = tip;
  tip.style.left = `${x + AWAY + offsetWidth > innerWidth ? Math.max(4, x - AWAY - offsetWidth) : x + AWAY}px`;
  tip.style.top = `${y + AWAY + offsetHeight > innerHeight ? Math.max(4, y - AWAY - offsetHeight) : y + AWAY}px`;
}

export function hideTip() {
  if (tip) tip.hidden = true;
}

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

/** Loads a part of the page that is needed now; null if that fails, which the reader is told. @template T
 * @param {() => Promise<T>} part @returns {Promise<T | null>} */
export function load(part) {
  return part().catch(() => {
    toast("A part of the page could not be loaded. Reload the page.", { kind: "error" });
    return null;
  });
}

/** Loads what the reader has opened. Keys that are pressed meanwhile are for that: they arrive once it is there.
 * @template T @param {() => Promise<T>} part @returns {Promise<T | null>} */
export async function loadOpened(part) {
  const held = /** @type {KeyboardEvent[]} */ ([]);
  const hold = (/** @type {KeyboardEvent} */ event) => {
    event.preventDefault();
    event.stopPropagation();
    held.push(event);
  };
  addEventListener("keydown", hold, { capture: true });
  const loaded = await load(part);
  setTimeout(() => {
    removeEventListener("keydown", hold, { capture: true });
    held.forEach(pressAgain);
  }); // after it was opened
  return loaded;
}

/** @param {KeyboardEvent} event */
function pressAgain({ key, ctrlKey, metaKey, altKey, shiftKey }) {
  const on = document.activeElement ?? document.body;
  if (
    (on instanceof HTMLInputElement || on instanceof HTMLTextAreaElement) &&
    key.length === 1 &&
    !ctrlKey &&
    !metaKey
  ) {
    on.setRangeText(key, on.selectionStart ?? 0, on.selectionEnd ?? 0, "end");
    on.dispatchEvent(new Event("input", { bubbles: true }));
  } else {
    const pressed = { key, ctrlKey, metaKey, altKey, shiftKey, bubbles: true, cancelable: true };
    on.dispatchEvent(new KeyboardEvent("keydown", pressed));
  }
}

/** @param {string} text @param {{undo?: () => void, done?: () => void, kind?: "error", link?: {words: string, href:
 * string}}} [how] `done` is called if it was not undone: when the message or the page closes */
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
    timer = setTimeout(leave, undo || link || kind === "error" ? LONG_MS : SHORT_MS);
  };
  const element = h(
    "div",
    { class: `toast${kind ? ` ${kind}` : ""}`, role: kind === "error" ? "alert" : null },
    h("span", {}, ...coded(text)),
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
