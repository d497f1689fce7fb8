// @ts-check
/** The values that an incident keeps, as lines. Pure. */
import { numberOf } from "../api.js";
import { tapWords } from "../kinds.js";

/** Known even if no value is finite. */
const COUNTS = new Set(["nan", "inf", "zero"]);

/** One line for each tensor, the culprit first. Pure.
 * @param {import("../answers.js").Evidence} evidence @param {string} stat @returns {import("../plot/thin.js").Line[]}
 */
export function linesOf(evidence, stat) {
  const { taps, steps, stats } = evidence;
  return taps
    .map((tap, place) => {
      const seen = Array.from(steps.keys()).filter((row) => !Number.isNaN(numberOf(stats.count[row][place])));
      const column = (/** @type {string} */ name) => seen.map((row) => numberOf(stats[name][row][place]));
      const [nan, inf, values] = [column("nan"), column("inf"), column(stat)];
      const at = seen.map((row) => steps[row]);
      const bad = nan.map((many, row) => (COUNTS.has(stat) ? 0 : many + inf[row]));
      const mean = values.map((value, row) => (bad[row] ? NaN : value));
      const infinite = nan.map((many) => !many);
      const name = tapWords(tap);
      return { name, first: at, last: at, mean, nonfinite: bad, infinite, dashed: place > 0 };
    })
    .filter(({ first }) => first.length);
}
