// @ts-check
/** What of a list a text means. Pure. */

/** An entry: its name, its description or keys, and its action.
 * @typedef {{name: string, hint?: string, keys?: string, go: () => void}} Entry */

const BEGINS = 0;
const BEGINS_A_WORD = 1;
const CONTAINS = 2;
const NOT_AT_ALL = Infinity;

/** How well a name fits a word. @param {string} name @param {string} word both in lower case @returns {number} */
function fitOf(name, word) {
  const at = name.indexOf(word);
  if (at < 0) return NOT_AT_ALL;
  if (at === 0) return BEGINS;
  const begins = [...name.matchAll(/(?<![\p{L}\p{N}])[\p{L}\p{N}]/gu)].some(({ index }) =>
    name.startsWith(word, index),
  );
  return begins ? BEGINS_A_WORD : CONTAINS;
}

/** The entries whose names have all words of a text, best first, and in their order if they are as good.
 * @template {{name: string}} E @param {string} text @param {readonly E[]} entries @param {number} most
 * @returns {E[]} */
export function rank(text, entries, most) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const scored = entries.flatMap((entry) => {
    const name = entry.name.toLowerCase();
    const score = words.reduce((sum, word) => sum + fitOf(name, word), 0);
    return score === NOT_AT_ALL ? [] : [{ entry, score }];
  });
  return scored
    .sort((a, b) => a.score - b.score)
    .slice(0, most)
    .map(({ entry }) => entry);
}

/** The entries without those whose name was there before. @template {{name: string}} E @param {readonly E[]} entries */
export function unique(entries) {
  const known = new Map(/** @type {[string, E][]} */ ([]));
  for (const entry of entries) {
    const name = entry.name.toLowerCase();
    if (!known.has(name)) known.set(name, entry);
  }
  return [...known.values()];
}
