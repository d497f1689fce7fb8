/** The lines of a module's charts, which the server plans (app/pages/views/layer.py). Pure. */
import { kindWords, ofParameters } from "../format.js";
/** @import { YAxis } from "../plot/lines.js"
 * @import { Line } from "../plot/thin.js" */

/** @typedef {(tap: number | null, stat: string) => Line | null} Find */

/** @typedef {{number: number | null, kind: string, index: string, call: number, phase: string, label: string}} Tap */
/** @typedef {{tap: Tap, name: string, make: string}} Part one line, or several, of a chart: see `linesOf` */
/** @typedef {{id: string, title: string, y: YAxis, stats: string[], parts: Part[]}} Plan a chart */

/** A tap within its module, in short: `activation`, `bias gradient`. @param {Tap} tap */
export function shortOf(tap) {
  const words = kindWords(tap.kind);
  if (!tap.index) return words;
  if (tap.kind === "probe") return tap.index;
  if (tap.kind === "update" || tap.kind.startsWith("exp_avg")) return `${tap.index} ${words}`;
  if (tap.kind === "state") return tap.index;
  return ofParameters(tap.kind) ? words.replace("weight", tap.index) : `${words} ${tap.index}`;
}

/** @param {Plan} plan @param {Find} find @returns {Line[]} */
export function linesOf(plan, find) {
  return plan.parts
    .flatMap((part, place) => MAKERS[part.make](part, (stat) => find(part.tap.number, stat), place))
    .filter((line) => line.first.length);
}

/** @type {Record<string, (part: Part, of: (stat: string) => Line | null, place: number) => Line[]>} */
const MAKERS = {
  values: (_, of) => extremesOf(of),
  norm: ({ name }, of) => plain(of("norm"), name || "norm"),
  mean: ({ name }, of) => plain(of("mean"), name || "mean"),
  rms: (_, of) => plain(of("rms"), "rms"),
  ratio: ({ name, tap }, of) => plain(of("ratio"), name ? tap.index || name : "ratio"),
  fan: (_, of) => fanOf(of),
  shares: ({ name, tap }, of, place) => sharesOf(name ? shortOf(tap) : "", of, place),
};

/** The mean, with a band from the smallest value to the largest. @param {(stat: string) => Line | null} of
 * @returns {Line[]} */
export function extremesOf(of) {
  const [mean, min, max] = [of("mean"), of("min"), of("max")];
  if (!mean) return [];
  const alike = [min, max].every((other) => other?.first.length === mean.first.length);
  const band = alike ? { min: min?.min ?? min?.mean, max: max?.max ?? max?.mean } : { min: undefined, max: undefined };
  return [{ ...mean, name: "mean", ...band }];
}

/** @param {Line | null} line @param {string} name @returns {Line[]} */
function plain(line, name) {
  return line ? [{ ...line, name }] : [];
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
    ...pairs.filter((pair) => pair !== null),
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
