// @ts-check
/** The tooltip of the page. */
import { h } from "../dom.js";

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
