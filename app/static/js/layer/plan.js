/** The charts of a module by its captured tensors, and the server's answers as their lines. Pure. */
import { kindWords, ofParameters } from "../format.js";
/** @import { YAxis } from "../plot/lines.js"
 * @import { Line } from "../plot/thin.js" */

/** @typedef {(tap: number | null, stat: string) => Line | null} Find */

/** @typedef {{number: number | null, kind: string, index: string, call: number, phase: string, label: string}} Tap */
/** @typedef {{kind: string, index: string, call: string, phase: string}} Choice what the address says; "" is whatever
 * there is */
/** @typedef {{tap: Tap, name: string, make: string}} Part one line, or several, of a chart: see `linesOf` */
/** @typedef {{id: string, title: string, y: YAxis, stats: string[], parts: Part[]}} Plan a chart */

export const QUANTILES = ["p1", "p5", "p25", "p50", "p75", "p95", "p99"];
const SHARES = ["zero_fraction", "nan", "inf", "count"];
const MAX_LINES = 4;

/** The taps that the choice leaves: of each kind those of one call and phase.
 * @param {Tap[]} taps @param {Choice} choice */
function chosen(taps, choice) {
  const kind = taps.some((tap) => tap.kind === choice.kind) ? choice.kind : "";
  return taps.filter(
    (tap) =>
      (!kind || tap.kind === kind) && tap.phase === (choice.phase || "train") && tap.call === Number(choice.call || 0),
  );
}

/** The one tensor that is looked at, null at a glance.
 * @param {Tap[]} taps @param {Choice} choice @returns {Tap | null} */
export function tensorOf(taps, choice) {
  const some = taps.filter((tap) => tap.kind === choice.kind);
  const fits = (/** @type {Tap} */ tap) => [
    choice.index === "" || tap.index === choice.index,
    choice.phase === "" || tap.phase === choice.phase,
    choice.call === "" || tap.call === Number(choice.call),
  ];
  const scored = some.map((tap) => ({ tap, score: fits(tap).filter(Boolean).length }));
  return scored.sort((a, b) => b.score - a.score)[0]?.tap ?? null;
}

/** The charts. @param {Tap[]} taps @param {Choice} choice @returns {Plan[]} at most four */
export function plansOf(taps, choice) {
  const tensor = tensorOf(taps, choice);
  return tensor ? ofTensor(tensor) : atAGlance(chosen(taps, { ...choice, kind: "" }));
}

/** @param {Tap} tap @returns {Plan[]} */
function ofTensor(tap) {
  const one = (/** @type {string} */ make) => [{ tap, name: "", make }];
  const size =
    tap.kind === "update"
      ? ratioOf(one("ratio"))
      : plan("size", "Size: rms and norm", log("rms, norm"), ["rms", "norm"], [...one("rms"), ...one("norm")]);
  return [valuesOf(one("values"), "Mean, min, and max"), size, percentilesOf(one("fan")), sharesPlan(one("shares"))];
}

/** @param {Tap[]} taps @returns {Plan[]} */
function atAGlance(taps) {
  const of = (/** @type {string[]} */ ...kinds) => kinds.flatMap((kind) => taps.filter((tap) => tap.kind === kind));
  const parts = (/** @type {Tap[]} */ some, /** @type {string} */ make) =>
    some.slice(0, MAX_LINES).map((tap) => ({ tap, name: shortOf(tap), make }));
  const title = (/** @type {string} */ words, /** @type {Tap[]} */ some) =>
    some.length > MAX_LINES ? `${words}, ${MAX_LINES} of ${some.length}` : words;
  const main = of("output").slice(0, 1);
  const shown = main.length ? main : of("input", "param", "param_grad", "update").slice(0, 1);
  const gradients = of("output_grad", "param_grad", "raw_grad", "input_grad");
  const updates = of("update");
  const probes = of("probe");
  const plans = [];
  if (shown.length) plans.push(valuesOf(parts(shown, "values"), `${wordOf(shown[0])}: mean, min, and max`));
  if (gradients.length)
    plans.push(plan("gradients", title("Gradients: norm", gradients), log("norm"), ["norm"], parts(gradients, "norm")));
  if (updates.length) plans.push(ratioOf(parts(updates, "ratio"), title("Update-to-weight ratio", updates)));
  else if (shown.length) plans.push(percentilesOf(parts(shown, "fan"), `${wordOf(shown[0])}: percentiles`));
  if (probes.length)
    plans.push({ ...valuesOf(parts(probes, "mean"), title("Probes: mean", probes)), id: "probes", stats: ["mean"] });
  else if (shown.length) plans.push(sharesPlan(parts([...shown, ...of("output_grad").slice(0, 1)], "shares")));
  return plans;
}

/** @param {string} id @param {string} title @param {Plan["y"]} y @param {string[]} stats @param {Part[]} parts
 * @returns {Plan} */
function plan(id, title, y, stats, parts) {
  return { id, title, y, stats, parts };
}

/** @param {string} title @returns {Plan["y"]} */
function log(title) {
  return { title, scale: "log" };
}

/** @param {Part[]} parts @param {string} title */
function valuesOf(parts, title) {
  return plan("values", title, { title: "value", scale: "linear" }, ["mean", "min", "max"], parts);
}

/** @param {Part[]} parts @param {string} [title] */
function percentilesOf(parts, title = "Percentiles") {
  return plan("percentiles", title, { title: "value", scale: "linear" }, QUANTILES, parts);
}

/** @param {Part[]} parts */
function sharesPlan(parts) {
  const y = { title: "share of the values", scale: /** @type {const} */ ("linear"), fixed: true, low: 0, high: 1 };
  return plan("shares", "Share of zeros, NaN, and infinities", y, SHARES, parts);
}

/** @param {Part[]} parts @param {string} [title] */
function ratioOf(parts, title = "Update-to-weight ratio") {
  return plan("ratio", title, log("norm of the update / norm of the weight"), ["ratio"], parts);
}

/** The tensors whose distribution is shown: the one that is looked at, or the first of each kind.
 * @param {Tap[]} taps @param {Choice} choice @returns {Tap[]} */
export function distributionsOf(taps, choice) {
  const tensor = tensorOf(taps, choice);
  if (tensor) return [tensor];
  const some = chosen(taps, { ...choice, kind: "" });
  return ["output", "output_grad", "param", "param_grad", "update"].flatMap((kind) =>
    some.filter((tap) => tap.kind === kind).slice(0, 1),
  );
}

/** A tap within its module, in short: `activation`, `bias gradient`. @param {Tap} tap */
export function shortOf(tap) {
  const words = kindWords(tap.kind);
  if (!tap.index) return words;
  if (tap.kind === "probe") return tap.index;
  if (tap.kind === "update" || tap.kind.startsWith("exp_avg")) return `${tap.index} ${words}`;
  if (tap.kind === "state") return tap.index;
  return ofParameters(tap.kind) ? words.replace("weight", tap.index) : `${words} ${tap.index}`;
}

/** @param {Tap} tap */
function wordOf(tap) {
  const word = shortOf(tap);
  return word[0].toUpperCase() + word.slice(1);
}

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
