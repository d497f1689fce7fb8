/** A chart of lines in words and as a table: what a person reads who does not see it. Pure. */
import { count, number } from "../format.js";
import { countOf } from "../scale.js";
import { drawn } from "./thin.js";

/** @import { Drawn, Line } from "./thin.js" */

/** @param {number} first @param {number} last */
function endWords(first, last) {
  return first === last ? count(first) : `${count(first)} to ${count(last)}`;
}

/** One sentence on the whole, and one on each line. @param {Line[]} lines @param {Drawn[]} drawn */
export function summaryOf(lines, drawn) {
  const there = drawn.map(({ steps }) => steps).filter(({ first }) => first.length);
  if (!there.length) return "No values.";
  const [firsts, lasts] = [there.map(({ first }) => first[0]), there.map(({ last }) => last[last.length - 1])];
  const span = `Steps ${endWords(Math.min(...firsts), Math.max(...lasts))}.`;
  return [span, ...lines.map((line, place) => lineWords(line, drawn[place]))].join(" ");
}

/** @param {Line} line @param {Drawn} points */
function lineWords(line, points) {
  const lows = (points.min.length ? points.min : points.raw).filter(Number.isFinite);
  const highs = (points.max.length ? points.max : points.raw).filter(Number.isFinite);
  const bad = points.marks.length
    ? `, non-finite at ${count(points.marks.length)} of ${count(points.x.length)} points`
    : "";
  if (!lows.length) return `${line.name}: no finite values${bad}.`;
  const now = line.mean ? `${number(points.raw.at(-1))} at the end, ` : "";
  return `${line.name}: ${now}from ${number(least(lows))} to ${number(-least(highs.map((value) => -value)))}${bad}.`;
}

/** @param {number[]} values */
function least(values) {
  return values.reduce((low, value) => Math.min(low, Number.isNaN(value) ? low : value), Infinity);
}

/** The table of the chart: a row for each drawn point. @param {Line[]} lines @param {Drawn[]} drawn */
export function tableOf(lines, drawn) {
  const columns = ["step", ...lines.flatMap((line, place) => columnsOf(line, drawn[place]).map(([name]) => name))];
  /** @type {Map<string, {at: number, row: any[]}>} */
  const rows = new Map();
  const width = columns.length;
  let offset = 1;
  lines.forEach((line, place) => {
    const points = drawn[place];
    const own = columnsOf(line, points);
    points.steps.first.forEach((first, i) => {
      const last = points.steps.last[i];
      const key = endWords(first, last);
      const line = rows.get(key) ?? {
        at: first,
        row: [first === last ? first : key, ...new Array(width - 1).fill(null)],
      };
      own.forEach(([, values], column) => {
        line.row[offset + column] = values[i];
      });
      rows.set(key, line);
    });
    offset += own.length;
  });
  return { columns, rows: [...rows.values()].sort((a, b) => a.at - b.at).map(({ row }) => row) };
}

/** @param {Line} line @param {Drawn} points @returns {[string, any[]][]} */
function columnsOf(line, points) {
  /** @type {[string, any[]][]} */
  const columns = [];
  if (line.mean) columns.push([line.name, points.raw]);
  if (points.smooth.length) columns.push([`${line.name}, smoothed`, points.smooth]);
  if (points.min.length) columns.push([`${line.name}, min`, points.min], [`${line.name}, max`, points.max]);
  return columns;
}

/** The index of the point nearest to a step; -1 if there is none.
 * @param {Drawn} points @param {number | null} step the last one if it is null */
export function nearest(points, step) {
  const { x } = points;
  if (!x.length || step === null) return x.length - 1;
  const place = countOf(x.length - 1, (point) => points.last[point] < step);
  return place > 0 && Math.abs(x[place - 1] - step) < Math.abs(x[place] - step) ? place - 1 : place;
}

/** The index of the point that covers a step; -1 if there is none. @param {Drawn} points @param {number} step */
function covering(points, step) {
  const place = nearest(points, step);
  return place >= 0 && points.first[place] <= step && points.last[place] >= step ? place : -1;
}

/** The steps of a point in words; nothing if there is no point. @param {Drawn} points @param {number} place */
export function stepsAt(points, place) {
  if (place < 0) return "";
  const [first, last] = [points.steps.first[place], points.steps.last[place]];
  return `${first === last ? "step" : "steps"} ${endWords(first, last)}`;
}

/** What a line says at a point. @param {Line} line @param {Drawn} points @param {number} place */
export function valueWords(line, points, place) {
  if (place < 0) return "-";
  const value = line.mean ? (points.smooth.length ? points.smooth[place] : points.raw[place]) : NaN;
  const mark = points.marks.find(({ x }) => x === points.x[place]);
  const band =
    line.mean && points.max[place] > points.min[place]
      ? ` (${number(points.min[place])} to ${number(points.max[place])})`
      : "";
  if (Number.isFinite(value)) return number(value) + band + (mark ? ", partly non-finite" : "");
  if (mark) return { nan: "NaN", inf: "Infinity", "-inf": "-Infinity" }[mark.sign];
  if (line.mean || !Number.isFinite(points.min[place])) return "-";
  return `${number(points.min[place])} to ${number(points.max[place])}`;
}

/** Whether a point of several steps covers this one. @param {Drawn} points @param {number} held */
export function isMerged(points, held) {
  const place = covering(points, held);
  return place >= 0 && points.first[place] !== points.last[place];
}

/** The value, and a word on steps if it isn't that of the held one alone. What is smoothed has other steps in it.
 * @param {Line} line @param {Drawn} points @param {number} held
 * @param {Line[]} [exact] the lines of this step, if they are known @returns {[string, string]} */
export function heldWords(line, points, held, exact) {
  const own = { ...points, smooth: [] };
  if (!isMerged(points, held)) return [valueWords(line, own, covering(points, held)), ""];
  if (!exact) return ["-", `one point for ${stepsAt(points, covering(points, held))}`];
  const its = exact.find(({ name }) => name === line.name);
  if (!its) return ["-", ""];
  const at = drawn(its, 0, its.first.length);
  return [valueWords(its, at, covering(at, held)), isMerged(at, held) ? `at ${stepsAt(at, covering(at, held))}` : ""];
}
