// @ts-check
/** The tooltip at the pointer: one for the page. */
import { h } from "../dom.js";

/** @type {HTMLElement | null} */
let tip = null;

/** @param {string} text lines @param {number} x @param {number} y of the window */
export function showTip(text, x, y) {
  tip ??= document.body.appendChild(h("div", { class: "tip", "aria-hidden": "true" }));
  tip.hidden = false;
  tip.textContent = text;
  const { offsetWidth, offsetHeight } = tip;
  tip.style.left = `${Math.max(4, Math.min(innerWidth - offsetWidth - 4, x + 14))}px`;
  tip.style.top = `${y + 16 + offsetHeight > innerHeight ? Math.max(4, y - offsetHeight - 10) : y + 16}px`;
}

export function hideTip() {
  if (tip) tip.hidden = true;
}
