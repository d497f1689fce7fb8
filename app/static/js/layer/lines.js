// @ts-check
/** The server's answers as lines of a chart. Pure. */
import { shortOf } from "./plan.js";

/**
 * @typedef {import("../plot/thin.js").Line} Line
 * @typedef {import("./plan.js").Plan} Plan
 * @typedef {import("./plan.js").Part} Part
 */
/** @typedef {(tap: number | null, stat: string) => Line | null} Find */

/** @param {Plan} plan @param {Find} find @returns {Line[]} */
export function linesOf(plan, find) {
  return plan.parts
    .flatMap((part, place) => MAKERS[part.make](part, (stat) => find(part.tap.number, stat), place))
    .filter((line) => line.first.length);
}

/** @type {Record<string, (part: Part, of: (stat: string) => Line | null, place: number) => Line[]>} */
const MAKERS = {
  values: (_, of) => {
    const [mean, min, max] = [of("mean"), of("min"), of("max")];
    if (!mean) return [];
    const alike = min && max && min.first.length === mean.first.length && max.first.length === mean.first.length;
    return [
      { ...mean, name: "mean", ...(alike ? { min: min.min, max: max.max } : { min: undefined, max: undefined }) },
    ];
  },
  norm: ({ name }, of) => plain(of("norm"), name || "norm"),
  mean: ({ name }, of) => plain(of("mean"), name || "mean"),
  rms: (_, of) => plain(of("rms"), "rms"),
  ratio: ({ name, tap }, of) => plain(of("ratio"), name ? tap.index || name : "ratio"),
  fan: (_, of) => fanOf(of),
  shares: ({ name, tap }, of, place) => sharesOf(name ? shortOf(tap) : "", of, place),
};

/** One line; where several steps share a point, with the band of their extremes.
 * @param {Line | null} line @param {string} name @returns {Line[]} */
function plain(line, name) {
  if (!line) return [];
  const merged = Array.from(line.first).some((first, place) => first !== line.last[place]);
  return [{ ...line, name, ...(merged ? {} : { min: undefined, max: undefined }) }];
}

/** Percentiles as bands about the median: the darker, the more values are in it.
 * @param {(stat: string) => Line | null} of @returns {Line[]} */
export function fanOf(of) {
  const median = of("p50");
  if (!median) return [];
  const pairs = [
    ["p1", "p99"],
    ["p5", "p95"],
    ["p25", "p75"],
  ].map((names, place) => {
    const [low, high] = names.map(of);
    if (!low || !high || low.first.length !== median.first.length || high.first.length !== median.first.length)
      return null;
    return {
      name: names.join(" to "),
      first: median.first,
      last: median.last,
      min: low.mean,
      max: high.mean,
      nonfinite: zeros(median.first.length),
      color: "line1",
      opacity: 0.14 + 0.08 * place,
    };
  });
  return [
    ...pairs.filter((each) => each !== null),
    { ...median, name: "median", min: undefined, max: undefined, color: "line1" },
  ];
}

/** @param {string} name @param {(stat: string) => Line | null} of @param {number} place @returns {Line[]} */
function sharesOf(name, of, place) {
  const [zero, nan, inf, count] = [of("zero_fraction"), of("nan"), of("inf"), of("count")];
  const prefix = name ? `${name}: ` : "";
  // Non-finite values have their own lines here.
  const lines = plain(zero, `${prefix}zero`).map((line) => ({
    ...line,
    nonfinite: zeros(line.first.length),
    color: place ? "line2" : "line1",
  }));
  for (const [part, words, color] of /** @type {[Line | null, string, string][]} */ ([
    [nan, "NaN", "nan"],
    [inf, "infinite", "inf"],
  ])) {
    if (!part?.mean || !count?.mean || !some(part.mean)) continue;
    const whole = count.mean;
    const mean = Array.from(part.mean, (value, i) => value / whole[i]);
    lines.push({
      name: `${prefix}${words}`,
      first: part.first,
      last: part.last,
      mean,
      nonfinite: zeros(mean.length),
      color,
      dashed: place > 0,
    });
  }
  return lines;
}

/** @param {ArrayLike<number>} values */
function some(values) {
  return Array.from(values).some((value) => value > 0);
}

/** @param {number} length */
function zeros(length) {
  return new Array(length).fill(0);
}
