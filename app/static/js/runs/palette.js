// @ts-check
/** The colors of runs, and of groups of runs. Pure. */

/** Ten hues that are distinguishable on light and dark backgrounds, also for most color-blind readers. */
export const HUES = "#2f7ed8 #e07b17 #1f9d55 #b0479c #d03b3b #16a2b8 #8d6e1f #7b61d9 #7a8794 #c2558a".split(" ");
const LOW = [96, 98, 214];
const MIDDLE = [28, 155, 135];
const HIGH = [226, 122, 22];

/** A color for each key, in the order of the keys. @param {string[]} keys @returns {Map<string, string>} */
export function huesOf(keys) {
  return new Map(keys.map((key, place) => [key, HUES[place % HUES.length]]));
}

/** Colors of groups: a scale for numbers, else hues. @param {string[]} groups @returns {Map<string, string>} */
export function colorsOfGroups(groups) {
  const named = groups.filter(Boolean);
  const numbers = named.map(Number);
  if (named.length < 3 || numbers.some((value) => !Number.isFinite(value))) return huesOf(groups);
  const order = [...named].sort((a, b) => Number(a) - Number(b));
  const last = order.length - 1;
  return new Map([
    ...order.map((group, place) => /** @type {[string, string]} */ ([group, onScale(place / last)])),
    ["", HUES[8]],
  ]);
}

/** @param {number} share from 0 to 1 */
function onScale(share) {
  const [from, to, part] = share < 0.5 ? [LOW, MIDDLE, share * 2] : [MIDDLE, HIGH, share * 2 - 1];
  const mixed = from.map((value, place) => Math.round(value + (to[place] - value) * part));
  return `#${mixed.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}
