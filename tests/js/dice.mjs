/** Random numbers that are the same in every run. */

/** @param {number} seed */
export function dice(seed) {
  let state = seed >>> 0;
  const next = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  return {
    chance: next,
    whole: (/** @type {number} */ below) => Math.floor(next() * below),
    pick: (/** @type {any[]} */ from) => from[Math.floor(next() * from.length)],
  };
}
