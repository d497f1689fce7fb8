// @ts-check
/** Smoothing over steps. Pure. */

/** The exponential mean: what lies `halfLife` steps back counts half. Weights go by the distance in steps, so that it
 * does not matter how many points there are, and they are normed, so that the first points are not drawn towards zero.
 * What is not finite is NaN in the answer and counts for nothing in what follows.
 * @param {ArrayLike<number>} steps ascending @param {ArrayLike<number>} values
 * @param {number} halfLife in steps; 0 is off @returns {Float64Array} */
export function ema(steps, values, halfLife) {
  if (!(halfLife > 0)) return Float64Array.from(values);
  const smooth = new Float64Array(values.length).fill(NaN);
  let sum = 0;
  let weight = 0;
  for (let i = 0; i < values.length; i += 1) {
    const fade = i ? 2 ** ((steps[i - 1] - steps[i]) / halfLife) : 0;
    sum *= fade;
    weight *= fade;
    if (!Number.isFinite(values[i])) continue;
    sum += values[i];
    weight += 1;
    smooth[i] = sum / weight;
  }
  return smooth;
}

/** How many steps before the first one shown are needed, so that a smoothed line does not depend on where the window
 * begins (to a thousandth). @param {number} halfLife */
export function leadOf(halfLife) {
  return halfLife > 0 ? Math.ceil(10 * halfLife) : 0;
}
