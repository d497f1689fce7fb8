/** Lines as they are drawn: smoothed first, then of no more points than can be seen. No extreme is lost. Pure. */

/** The exponential mean: what lies `halfLife` steps back counts half. Weights go by the distance in steps, so that it
 * does not matter how many points there are, and they are normed, so that the first points are not drawn towards zero.
 * What is not finite is NaN in the answer and counts for nothing in what follows. @param {ArrayLike<number>} steps
 * ascending @param {ArrayLike<number>} values @param {number} halfLife in steps; 0 is off @returns {Float64Array} */
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

/**
 * @typedef {object} Line
 * @property {string} name
 * @property {ArrayLike<number>} first each point speaks of the steps first[i] to last[i]
 * @property {ArrayLike<number>} last
 * @property {{first: ArrayLike<number>, last: ArrayLike<number>}} [steps] the steps themselves, if `first` and `last`
 * are those of another run, whose axis it is (timeline/runsclock.js)
 * @property {ArrayLike<number>} [mean] without it there is only a band
 * @property {ArrayLike<number>} [min]
 * @property {ArrayLike<number>} [max]
 * @property {ArrayLike<number>} [nonfinite] in how many of the steps there was a NaN or an infinity; where it is not
 * given
 *   each value that is not finite says so itself
 * @property {ArrayLike<boolean | number>} [infinite] whether non-finite values were only infinities
 * @property {string} [color] a name in colors(), or a color
 * @property {boolean} [dashed]
 * @property {number} [opacity] of the band
 */

/**
 * @typedef {object} Drawn
 * @property {number[]} x the middle of the steps
 * @property {number[]} first
 * @property {number[]} last
 * @property {{first: number[], last: number[]}} steps in words; those of `first` and `last` on any other axis
 * @property {number[]} raw
 * @property {number[]} smooth empty without smoothing
 * @property {number[]} min empty without a band
 * @property {number[]} max
 * @property {{x: number, first: number, last: number, sign: "nan" | "inf" | "-inf"}[]} marks non-finite values
 */

/** @param {Line} line @param {number} halfLife @param {number} most points
 * @param {[number, number] | null} [span] the steps shown @returns {Drawn} */
export function drawn(line, halfLife, most, span = null) {
  const smooth = halfLife > 0 && line.mean ? ema((line.steps ?? line).last, line.mean, halfLife) : null;
  const [from, to] = within(line, span);
  const size = Math.max(1, Math.ceil((to - from) / most));
  const hasBand = Boolean(line.min && line.max) || size > 1;
  /** @type {Drawn} */
  const out = {
    x: [],
    first: [],
    last: [],
    steps: { first: [], last: [] },
    raw: [],
    smooth: [],
    min: [],
    max: [],
    marks: [],
  };
  const steps = line.steps ?? line;
  for (let start = from; start < to; start += size) {
    const end = Math.min(to, start + size);
    const x = (line.first[start] + line.last[end - 1]) / 2;
    out.x.push(x);
    out.first.push(line.first[start]);
    out.last.push(line.last[end - 1]);
    out.steps.first.push(steps.first[start]);
    out.steps.last.push(steps.last[end - 1]);
    out.raw.push(line.mean ? meanOf(line.mean, start, end) : NaN);
    if (smooth) out.smooth.push(lastOf(smooth, start, end));
    if (hasBand) pushExtremes(out, line, start, end);
    const sign = signOf(line, start, end);
    if (sign) out.marks.push({ x, first: line.first[start], last: line.last[end - 1], sign });
  }
  return out;
}

/** The points that touch the span. @param {Line} line @param {[number, number] | null} span */
function within(line, span) {
  let from = 0;
  let to = line.first.length;
  if (span) {
    while (from < to && line.last[from] < span[0]) from += 1;
    while (to > from && line.first[to - 1] > span[1]) to -= 1;
  }
  return [from, to];
}

/** @param {ArrayLike<number>} values @param {number} start @param {number} end */
function meanOf(values, start, end) {
  if (end - start === 1) return values[start];
  let sum = 0;
  let many = 0;
  for (let i = start; i < end; i += 1) {
    if (!Number.isFinite(values[i])) continue;
    sum += values[i];
    many += 1;
  }
  return many ? sum / many : NaN;
}

/** @param {ArrayLike<number>} values @param {number} start @param {number} end */
function lastOf(values, start, end) {
  for (let i = end - 1; i >= start; i -= 1) if (Number.isFinite(values[i])) return values[i];
  return NaN;
}

/** @param {Drawn} out @param {Line} line @param {number} start @param {number} end */
function pushExtremes(out, line, start, end) {
  const lows = line.min ?? line.mean ?? [];
  const highs = line.max ?? line.mean ?? [];
  let low = Infinity;
  let high = -Infinity;
  for (let i = start; i < end; i += 1) {
    if (Number.isFinite(lows[i]) && lows[i] < low) low = lows[i];
    if (Number.isFinite(highs[i]) && highs[i] > high) high = highs[i];
  }
  out.min.push(low <= high ? low : NaN);
  out.max.push(low <= high ? high : NaN);
}

/** What was not finite in these points, NaN before infinities.
 * @param {Line} line @param {number} start @param {number} end */
function signOf(line, start, end) {
  /** @type {"nan" | "inf" | "-inf" | null} */
  let sign = null;
  for (let i = start; i < end; i += 1) {
    const value = line.mean ? line.mean[i] : 0;
    const infinite = value === Infinity || value === -Infinity;
    const counted = line.nonfinite ? line.nonfinite[i] > 0 : Number.isNaN(value);
    if (!counted && !infinite) continue;
    if (!infinite && !line.infinite?.[i]) return "nan";
    sign ??= value === -Infinity ? "-inf" : "inf";
  }
  return sign;
}
