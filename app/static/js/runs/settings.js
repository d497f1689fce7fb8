// @ts-check
/** The settings and results of runs: which settings differ, and their axes. Pure. */
import { numberOf } from "../api.js";
import { count, number, shorten } from "../format.js";
import { ticks as evenly, Scale } from "../scale.js";

/** @typedef {import("../answers.js").Run} Run */
/** @typedef {boolean | number | string | null | undefined} Value */
/** @typedef {{name: string, source: "config" | "facts", values: Map<string, Value>}} Setting values by run */
/** @typedef {{name: string, kind: "linear" | "log" | "words", ticks: {at: number, text: string}[],
 *   at: (value: Value) => number | null}} Axis `at` is from 0 to 1, null for a missing value */

/** Facts that differ between any two runs, or only say the same again. */
const NOISE = /^(arguments|git\.|version\.|steps\.|job|launcher|batch\d*\.(shape|dtype)|optimizer\d*\.initial_lr)/;
const LOG_FROM = 20; // the largest value in units of the smallest, from which on an axis is logarithmic
const MAX_WORDS = 12; // on an axis
const APART = 0.06; // between the numbers on an axis, so that each can be read

/** The settings that differ between runs: from the configuration, or else from recognized facts.
 * @param {Run[]} runs @returns {Setting[]} */
export function differing(runs) {
  const found = [...settingsOf(runs, "config"), ...settingsOf(runs, "facts").filter(({ name }) => !NOISE.test(name))];
  const seen = new Set();
  return found.filter(({ values }) => {
    const key = JSON.stringify([...values.values()].map((value) => value ?? null));
    // A fact that repeats a setting, such as the optimizer's learning rate, is no other difference.
    return !seen.has(key) && seen.add(key);
  });
}

/** @param {Run[]} runs @param {"config" | "facts"} source @returns {Setting[]} */
function settingsOf(runs, source) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run[source])))];
  return names
    .map((name) => ({ name, source, values: new Map(runs.map((run) => [run.id, run[source][name]])) }))
    .filter(({ values }) => new Set([...values.values()].map((value) => JSON.stringify(value ?? null))).size > 1);
}

/** The settings that tell runs apart in a picture: at least two of the runs have different ones, besides those that
 * have none. @param {Setting[]} settings @returns {Setting[]} */
export function telling(settings) {
  return settings.filter(
    ({ values }) =>
      new Set([...values.values()].filter((value) => value !== null && value !== undefined).map(String)).size > 1,
  );
}

/** The names of results, those that most runs have first. @param {Run[]} runs @returns {string[]} */
export function resultsOf(runs) {
  /** @type {Map<string, number>} */
  const many = new Map();
  for (const run of runs) for (const name of Object.keys(run.results)) many.set(name, (many.get(name) ?? 0) + 1);
  return [...many.keys()].sort((a, b) => (many.get(b) ?? 0) - (many.get(a) ?? 0) || rank(a) - rank(b));
}

/** @param {string} name */
function rank(name) {
  return name === "recent_loss" ? 0 : /acc|score|metric/i.test(name) ? 1 : /loss/i.test(name) ? 2 : 3;
}

/** A result of a run; NaN if it has none. @param {Run} run @param {string} name */
export function resultOf(run, name) {
  return name in run.results ? numberOf(run.results[name]) : Number.NaN;
}

/** The axis on which values stand. @param {string} name @param {Value[]} values @returns {Axis} */
export function axisOf(name, values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  const numbers = known.filter((value) => typeof value === "number");
  return numbers.length && numbers.length === known.length
    ? numeric(name, numbers.filter(Number.isFinite))
    : words(name, known);
}

/** @param {string} name @param {number[]} numbers @returns {Axis} */
function numeric(name, numbers) {
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  const log = low > 0 && high / low >= LOG_FROM;
  const bend = (/** @type {number} */ value) => (log ? Math.log10(value) : value);
  const [from, span] = [bend(low), bend(high) - bend(low)];
  const at = (/** @type {Value} */ value) => {
    if (typeof value !== "number" || !Number.isFinite(value)) return null;
    return span > 0 ? (bend(value) - from) / span : 0.5;
  };
  const distinct = [...new Set(numbers)].sort((a, b) => a - b);
  const shown = distinct.length <= 6 ? distinct : evenly(new Scale(log ? "log" : "linear", low, high), 5);
  const said = shown === distinct ? wordsOf : number;
  /** @type {Axis["ticks"]} */
  const ticks = [];
  for (const value of shown) {
    const place = at(value) ?? 0.5;
    if (!ticks.length || place - ticks[ticks.length - 1].at >= APART) ticks.push({ at: place, text: said(value) });
  }
  return { name, kind: log ? "log" : "linear", ticks, at };
}

/** @param {string} name @param {Value[]} values @returns {Axis} */
function words(name, values) {
  const distinct = [...new Set(values.map(String))].sort();
  const place = (/** @type {string} */ text) =>
    distinct.length > 1 ? distinct.indexOf(text) / (distinct.length - 1) : 0.5;
  const every = Math.ceil(distinct.length / MAX_WORDS);
  const ticks = distinct
    .filter((_, order) => order % every === 0)
    .map((text) => ({ at: place(text), text: shorten(text) }));
  return {
    name,
    kind: "words",
    ticks,
    at: (value) => (value === null || value === undefined ? null : place(String(value))),
  };
}

/** A value as tables, axes, and tips say it: whole numbers, such as seeds, in full. @param {Value} value */
export function wordsOf(value) {
  if (value === undefined || value === "") return "";
  if (value === null) return "none";
  if (typeof value !== "number") return String(value);
  return Number.isSafeInteger(value) ? count(value) : number(value);
}
