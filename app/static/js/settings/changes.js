// @ts-check
/** What a form asks of the trainer. Pure. */

/** @typedef {{every: string, budget: string, kinds: string[], include: string, exclude: string}} Wanted */

/** @param {string} text a pattern a line */
export function patterns(text) {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
}

/** Each setting as the interface takes it. @param {Wanted} wanted @returns {Record<string, any>} */
function asAsked({ every, budget, kinds, include, exclude }) {
  const included = patterns(include);
  return {
    every: Number(every),
    budget: budget.trim() === "" ? null : Number((Number(budget) / 100).toPrecision(12)),
    kinds,
    include: included.length ? included : null,
    exclude: patterns(exclude),
  };
}

/** The settings that are to be others than before. @param {Wanted} before @param {Wanted} wanted @returns {Record<string, any>} */
export function changesOf(before, wanted) {
  const [old, now] = [asAsked(before), asAsked(wanted)];
  return Object.fromEntries(
    Object.entries(now).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(old[name])),
  );
}
