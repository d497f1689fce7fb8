// @ts-check
/** The settings that a form changes. Pure. */

/** @typedef {{every: string, budget: string, kinds: string[], include: string, exclude: string}} Wanted */

/** @param {string} text one pattern per line */
export function patterns(text) {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
}

/** Returns the settings as REST takes them. @param {Wanted} wanted @returns {Record<string, any>} */
function settingsOf({ every, budget, kinds, include, exclude }) {
  const included = patterns(include);
  return {
    every: Number(every),
    budget: budget.trim() === "" ? null : Number((Number(budget) / 100).toPrecision(12)),
    kinds,
    include: included.length ? included : null,
    exclude: patterns(exclude),
  };
}

/** Returns the changed settings. @param {Wanted} before @param {Wanted} wanted @returns {Record<string, any>} */
export function changesOf(before, wanted) {
  const [old, now] = [settingsOf(before), settingsOf(wanted)];
  return Object.fromEntries(
    Object.entries(now).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(old[name])),
  );
}
