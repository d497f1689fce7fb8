// @ts-check
/** The lines of a pinned chart. Pure. */
import { tapWords } from "../kinds.js";
import { fanOf } from "../layer/lines.js";
import { shortOf } from "../layer/plan.js";
import { lineOf as curveOf } from "../live/curve.js";
import { lineOf as machineLineOf, plansOf } from "../system/plan.js";

/** @typedef {import("../answers.js").Series} Series */
/** @typedef {import("../plot/thin.js").Line} Line */

const EXTREMES = ["mean", "min", "max"];
const POSITIVE = ["norm", "rms", "ratio"]; // over magnitudes

/** The scale of a chart as on the page that it is from. @param {string} stats @returns {"log" | "linear"} */
export function scaleOf(stats) {
  return stats.split(",").every((stat) => POSITIVE.includes(stat)) ? "log" : "linear";
}

/** @param {readonly Series[]} found @returns {Line[]} */
export function linesOf(found) {
  const lines = found.map((each) => ({ each, line: lineOf(each) })).filter(({ line }) => line.first.length);
  const [plan] = plansOf(lines.map(({ each }) => each.name));
  if (plan)
    return plan.parts.flatMap(({ name, words, color }) =>
      lines.filter(({ each }) => each.name === name).map(({ line }) => machineLineOf(line, words, plan.unit, color)),
    );
  const modules = new Set(lines.map(({ each }) => each.tap?.module));
  const taps = new Set(lines.map(({ each }) => each.tap?.label ?? ""));
  const stats = new Set(lines.map(({ each }) => each.name));
  const of = (/** @type {string} */ stat) => lines.find(({ each }) => each.name === stat)?.line ?? null;
  if (taps.size === 1 && stats.size === lines.length) {
    const fan = stats.has("p50") ? fanOf(of) : [];
    if (fan.length > 1) return fan;
    const [mean, min, max] = EXTREMES.map(of);
    if (
      mean &&
      min &&
      max &&
      stats.size === 3 &&
      min.first.length === mean.first.length &&
      max.first.length === mean.first.length
    )
      return [{ ...mean, name: "mean", min: min.min ?? min.mean, max: max.max ?? max.mean }];
  }
  return lines.map(({ each, line }) => ({ ...line, name: nameOf(each, taps.size, stats.size, modules.size === 1) }));
}

/** @param {Series} series @param {number} taps @param {number} stats @param {boolean} inside one module */
function nameOf({ name, tap }, taps, stats, inside) {
  if (!tap || taps === 1) return name;
  const words = inside ? shortOf(tap) : tapWords(tap);
  return stats === 1 ? words : `${words} ${name}`;
}

/** @param {Series} series @returns {Line} */
function lineOf(series) {
  const line = curveOf(series);
  const merged = Array.from(line.first).some((first, place) => first !== line.last[place]);
  return merged ? line : { ...line, min: undefined, max: undefined };
}
