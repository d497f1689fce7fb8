// @ts-check
/** Where clicks and arrow keys stop in a picture with steps to the right: at captured steps. Pure. */

/**
 * The columns of a picture, by their number.
 * @typedef {{find: (step: number) => number, last: (column: number) => number}} Stops `find` is the newest column that
 *   doesn't begin after a step, or -1; `last` is the last step of a column
 */

/** The captured step that a step stands for, or the one so many columns further: the last one of its column. Between
 * two columns, that is the one before. It stays in the steps that are shown, if any of them was captured.
 * @param {Stops} stops @param {number} step @param {[number, number]} shown @param {number} [by] columns */
export function stopAt(stops, step, shown, by = 0) {
  const [begin, last] = shown.map((end) => stops.find(end));
  const first = begin < 0 || stops.last(begin) < shown[0] ? begin + 1 : begin;
  if (first > last) return step;
  const place = stops.find(step);
  const isBetween = place < 0 || stops.last(place) < step;
  const wanted = place + by + (isBetween && by < 0 ? 1 : 0);
  return Math.min(shown[1], stops.last(Math.min(last, Math.max(first, wanted))));
}
