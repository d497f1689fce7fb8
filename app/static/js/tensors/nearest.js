// @ts-check
/** Snapshots are of few steps: the nearest one to the steps of the page, and the words that say so. Pure. */
import { count, stepWords } from "../format.js";

/** @typedef {{from?: number, to?: number}} Steps as `follow.values`: nothing for the newest */

/** How far a step is from the steps of the page. @param {number} step @param {Steps} steps */
function distance(step, { from, to }) {
  return from === undefined || to === undefined ? 0 : Math.max(from - step, step - to, 0);
}

/** The nearest one; of several, the first. @template {{step: number}} T @param {T[]} items @param {Steps} steps
 * @returns {T | null} */
export function nearestOf(items, steps) {
  return items.reduce(
    (/** @type {T | null} */ best, each) =>
      best === null || distance(each.step, steps) < distance(best.step, steps) ? each : best,
    null,
  );
}

/** What must be known of something of a step, if the page is about others; else "".
 * @param {string} what @param {number} step @param {Steps} steps @param {boolean} chosen whether the reader chose it */
export function aboutStep(what, step, steps, chosen) {
  if (!distance(step, steps)) return "";
  const { from = 0, to = 0 } = steps;
  const about = stepWords(from, to);
  const rest = chosen ? `; the page is held at ${about}` : `, the nearest to ${about}`;
  return `${what} of step ${count(step)}${rest}.`;
}
