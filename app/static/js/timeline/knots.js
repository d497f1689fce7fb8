// @ts-check
/** From a step to a time or a number of samples, and back: straight lines between known steps. And ticks. Pure. */
import { count } from "../format.js";
import { evenTicks } from "../scale.js";
import { countOf } from "../search.js";

/** Steps with their values, both ascending. @typedef {{steps: number[], values: number[]}} Knots */
/** @typedef {{first_step: ArrayLike<number>, last_step: ArrayLike<number>, min: ArrayLike<number>, max:
 * ArrayLike<number>, mean: ArrayLike<number>}} Points as `scalars` sends them, with numbers */

/** The value at a step; beyond the ends, it goes on at the pace of all. @param {Knots} knots @param {number} step */
export function valueAt({ steps, values }, step) {
  return along(steps, values, step);
}

/** The step of a value. @param {Knots} knots @param {number} value */
export function stepOf({ steps, values }, value) {
  return along(values, steps, value);
}

/** @param {number[]} from ascending @param {number[]} to @param {number} at */
function along(from, to, at) {
  const last = from.length - 1;
  if (!last) return to[0];
  if (at <= from[0] || at >= from[last]) {
    const pace = (to[last] - to[0]) / (from[last] - from[0] || 1);
    return at <= from[0] ? to[0] + (at - from[0]) * pace : to[last] + (at - from[last]) * pace;
  }
  const next = countOf(last, (place) => from[place] <= at);
  const share = (at - from[next - 1]) / (from[next] - from[next - 1] || 1);
  return to[next - 1] + share * (to[next] - to[next - 1]);
}

/** When each step ended, as it was recorded. Of merged steps, the first and the last one are known.
 * @param {Points} points @returns {Knots | null} null if there are fewer than two */
export function timeKnots({ first_step, last_step, min, max }) {
  /** @type {Knots} */
  const knots = { steps: [], values: [] };
  for (let place = 0; place < first_step.length; place += 1) {
    push(knots, first_step[place], min[place]);
    if (last_step[place] > first_step[place]) push(knots, last_step[place], max[place]);
  }
  return knots.steps.length > 1 ? knots : null;
}

/** A clock that was set back must not turn the axis around. @param {Knots} knots @param {number} step @param {number}
 * value */
function push({ steps, values }, step, value) {
  const last = values.length - 1;
  if (!Number.isFinite(value) || (last >= 0 && step <= steps[last])) return;
  steps.push(step);
  values.push(last >= 0 ? Math.max(value, values[last] + 1e-9) : value);
}

/** The samples up to each step: steps times the rows of the batch, which are known where the machine was sampled.
 * @param {Points} rates of samples @param {Points} paces of steps, both per second @param {number} first
 * @param {number} newest step of the run @returns {Knots | null} null if no batch is known */
export function sampleKnots(rates, paces, first, newest) {
  const pace = new Map(Array.from(paces.last_step, (step, place) => [step, paces.mean[place]]));
  const rows = Array.from(rates.last_step, (step, place) => ({
    step,
    rows: Math.round(rates.mean[place] / (pace.get(step) ?? NaN)),
  })).filter((each) => Number.isFinite(each.rows) && each.rows > 0);
  if (!rows.length) return null;
  /** @type {Knots} */
  const knots = { steps: [first - 1], values: [0] };
  let [step, sum] = [first - 1, 0];
  for (const [place, each] of rows.entries()) {
    const until = place === rows.length - 1 ? Math.max(newest, each.step) : each.step;
    if (until <= step) continue;
    sum += (until - step) * each.rows;
    step = until;
    knots.steps.push(step);
    knots.values.push(sum);
  }
  return knots.steps.length > 1 ? knots : null;
}

const [SECOND, MINUTE, HOUR, DAY] = [1, 60, 3600, 86_400];
const SIZES = [
  ...[1, 2, 5, 10, 15, 30].map((many) => many * SECOND),
  ...[1, 2, 5, 10, 15, 30].map((many) => many * MINUTE),
  ...[1, 2, 3, 6, 12].map((many) => many * HOUR),
  ...[1, 2, 7, 14, 30, 90, 365].map((many) => many * DAY),
];

/** Ticks at whole minutes, hours, or days of the reader's clock.
 * @param {number} from seconds since 1970 @param {number} to @param {number} many at most
 * @param {number} [offset] seconds that the reader's clock is ahead of UTC */
export function timeTicks(from, to, many, offset = -60 * new Date(from * 1000).getTimezoneOffset()) {
  const rough = (to - from) / Math.max(1, many);
  if (rough < 1) return evenTicks(from, to, many).map((at) => ({ at, text: timeText(at, to - from, offset) }));
  const size = SIZES.find((each) => each >= rough) ?? Math.ceil(rough / (365 * DAY)) * 365 * DAY;
  const found = [];
  for (let at = Math.ceil((from + offset) / size) * size - offset; at <= to; at += size)
    found.push({ at, text: timeText(at, size, offset) });
  return found;
}

/** A time in as much detail as a distance asks for. @param {number} at @param {number} size seconds
 * @param {number} [offset] */
export function timeText(at, size, offset = -60 * new Date(at * 1000).getTimezoneOffset()) {
  const text = new Date((at + offset) * 1000).toISOString();
  if (size >= DAY) return text.slice(5, 10);
  if (size >= MINUTE) return text.slice(11, 16);
  return size < 1 ? text.slice(11, 23).replace(/0+$/, "").replace(/\.$/, "") : text.slice(11, 19);
}

/** Ticks of a time since a start. @param {number} from seconds @param {number} to @param {number} many at most */
export function elapsedTicks(from, to, many) {
  const ticks = timeTicks(from, to, many, 0);
  const size = ticks.length > 1 ? ticks[1].at - ticks[0].at : to - from;
  return ticks.map(({ at }) => ({ at, text: elapsedText(at, size) }));
}

/** A time since a start in as much detail as a distance asks for: "0.5 s", "1:05", "2:00:00", "3 d 4 h".
 * @param {number} at @param {number} size seconds */
export function elapsedText(at, size) {
  if (size < 1) return `${Number(at.toPrecision(4))} s`;
  const [days, seconds] = [Math.floor(at / DAY), Math.round(at % DAY)];
  if (size >= HOUR && days) return `${days} d ${Math.floor(seconds / HOUR)} h`;
  const [hours, minutes] = [Math.floor(seconds / HOUR) + 24 * days, Math.floor((seconds % HOUR) / MINUTE)];
  const rest = [minutes, seconds % MINUTE].map((each) => String(each).padStart(2, "0"));
  return hours ? [hours, ...rest].join(":") : `${minutes}:${rest[1]}`;
}

/** @param {number} from @param {number} to @param {number} many */
export function countTicks(from, to, many) {
  return evenTicks(from, to, many)
    .filter(Number.isInteger)
    .map((at) => ({ at, text: count(at) }));
}
