// @ts-check
/** How many places fit of those from 0 on, where none fits after one that doesn't: a binary search. Pure.
 * @param {number} many @param {(place: number) => boolean} fits */
export function countOf(many, fits) {
  let [low, high] = [0, many];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (fits(middle)) low = middle + 1;
    else high = middle;
  }
  return low;
}
