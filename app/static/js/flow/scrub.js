// @ts-check
/** The slider below the bars: it shows the current step, and moving it holds the page at a step. */
import { byId } from "../dom.js";
import { count } from "../format.js";

/** @param {import("../page.js").Page} page */
export function startScrub(page) {
  const { follow } = page;
  const range = /** @type {HTMLInputElement} */ (byId("scrub"));
  const words = byId("scrub-words");
  const show = () => {
    range.max = String(Math.max(follow.newest ?? 0, follow.step ?? 0));
    range.value = String(follow.step ?? 0);
    const text = follow.step === null ? "no step yet" : `step ${count(follow.step)}`;
    words.textContent = text;
    range.setAttribute("aria-valuetext", text);
    range.disabled = follow.newest === null;
  };
  range.addEventListener("input", () => follow.hold(Number(range.value)));
  follow.on("change", show);
  follow.on("newest", show);
  show();
}
