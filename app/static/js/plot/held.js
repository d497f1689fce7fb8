// @ts-check
/** What a line says at the step that the page is held at: nothing of another step, however few points are drawn.
 * Pure. */
import { drawn } from "./thin.js";
import { covering, stepsAt, valueWords } from "./words.js";

/** Whether a point of several steps covers this one. @param {import("./thin.js").Drawn} points @param {number} held */
export function isMerged(points, held) {
  const place = covering(points, held);
  return place >= 0 && points.first[place] !== points.last[place];
}

/** The value, and a word on steps if it isn't that of the held one alone. What is smoothed has other steps in it.
 * @param {import("./thin.js").Line} line @param {import("./thin.js").Drawn} points @param {number} held
 * @param {import("./thin.js").Line[]} [exact] the lines of this step, if they are known @returns {[string, string]} */
export function heldWords(line, points, held, exact) {
  const own = { ...points, smooth: [] };
  if (!isMerged(points, held)) return [valueWords(line, own, covering(points, held)), ""];
  if (!exact) return ["-", `one point for ${stepsAt(points, covering(points, held))}`];
  const its = exact.find(({ name }) => name === line.name);
  if (!its) return ["-", ""];
  const at = drawn(its, 0, its.first.length);
  return [valueWords(its, at, covering(at, held)), isMerged(at, held) ? `at ${stepsAt(at, covering(at, held))}` : ""];
}
