/** Runs as lines over their settings, and as points of one setting against a result. Loaded when in sight. */
import { numberOf } from "../api.js";
import { byId } from "../dom.js";
import { count, number, shorten, titled } from "../format.js";
import { FreeChart } from "../plot/free.js";
import { escaped } from "../plot/library.js";
import { ticks as evenly, Scale } from "../scale.js";
import { SANS } from "../theme.js";

/** @import { Run } from "../answers.js"
 * @import { Page } from "../page.js"
 * @import { Figure } from "../plot/free.js"
 * @import { Setting, Value } from "./charts.js" */

/** @typedef {{name: string, kind: "linear" | "log" | "words", ticks: {at: number, text: string}[],
 *   at: (value: Value) => number | null}} Axis `at` is from 0 to 1, null for a missing value */

const LOG_FROM = 20; // the largest value in units of the smallest, from which on an axis is logarithmic
const MAX_WORDS = 12; // on an axis
const APART = 0.06; // between the numbers on an axis, so that each can be read

/** A result of a run; NaN also if it is not finite, and null if the run has none. @param {Run} run
 * @param {string} name */
export function resultOf(run, name) {
  return name in run.results ? numberOf(run.results[name]) : null;
}

const RAIL = 1.16; // where a result stands that is not finite, or so large that it would flatten the others
const FAR = 1000; // times the median, from which on it is

/** The axis on which results stand, with a rail above it for those of runs that diverged.
 * @param {string} name @param {(number | null)[]} values @returns {Axis} */
export function resultAxis(name, values) {
  const finite = values.filter((value) => value !== null && Number.isFinite(value)).map(Number);
  const sorted = [...finite].sort((a, b) => a - b);
  const limit = sorted[0] > 0 ? sorted[(sorted.length - 1) >> 1] * FAR : Infinity;
  const kept = finite.filter((value) => value <= limit);
  const axis = numeric(name, kept.length ? kept : [0, 1], true);
  const isOut = (/** @type {Value} */ value) => typeof value === "number" && !(value <= limit && value > -Infinity);
  if (!values.some(isOut)) return axis;
  return {
    ...axis,
    ticks: [...axis.ticks, { at: RAIL, text: "diverged" }],
    at: (value) => (isOut(value) ? RAIL : axis.at(value)),
  };
}

/** The axis on which values stand. @param {string} name @param {Value[]} values @returns {Axis} */
export function axisOf(name, values) {
  const present = values.filter((value) => value !== null && value !== undefined);
  const numbers = present.filter((value) => typeof value === "number");
  return numbers.length && numbers.length === present.length
    ? numeric(name, numbers.filter(Number.isFinite))
    : words(name, present);
}

/** @param {string} name @param {number[]} numbers @param {boolean} [isRound] whether ticks are at round values, not at
 * those of the few runs @returns {Axis} */
function numeric(name, numbers, isRound = false) {
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  const log = low > 0 && high / low >= LOG_FROM;
  const bend = (/** @type {number} */ value) => (log ? Math.log10(value) : value);
  const [from, span] = [bend(low), bend(high) - bend(low)];
  const at = (/** @type {Value} */ value) => {
    if (typeof value !== "number" || !Number.isFinite(value)) return null;
    return span > 0 ? (bend(value) - from) / span : 0.5;
  };
  const distinct = [...new Set(numbers)].sort((a, b) => a - b);
  const shown = distinct.length <= 6 && !isRound ? distinct : evenly(new Scale(log ? "log" : "linear", low, high), 5);
  const wordOf = shown === distinct ? wordsOf : number;
  /** @type {Axis["ticks"]} */
  const ticks = [];
  for (const value of shown) {
    const place = at(value) ?? 0.5;
    if (!ticks.length || place - ticks[ticks.length - 1].at >= APART) ticks.push({ at: place, text: wordOf(value) });
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

/** @typedef {{runs: Run[], settings: Setting[], result: string, colorOf: (run: Run) => string}} Shown */

const MAX_AXES = 8;
const AIR = 0.08; // above and below an axis
const SIDE = 24; // pixels to the left and to the right of all axes
const [LETTER, GAP] = [7, 10]; // the width of a letter, and of the space between the words of two axes

/** @param {Run} run */
export function nameOf(run) {
  return run.name || run.id;
}

/** Lines over the settings that differ, and the result: parallel coordinates. @param {Shown} shown @returns {Figure} */
export function parallel({ runs, settings, result, colorOf }) {
  const chosen = settings.slice(0, MAX_AXES - 1);
  const axes = [
    ...chosen.map(({ name, values }) => ({
      axis: axisOf(name, Object.values(values)),
      of: (/** @type {Run} */ run) => values[run.id],
    })),
    ...(result
      ? [
          {
            axis: resultAxis(
              titled(result),
              runs.map((run) => resultOf(run, result)),
            ),
            of: (/** @type {Run} */ run) => resultOf(run, result),
          },
        ]
      : []),
  ];
  const make = (
    /** @type {Record<string, string>} */ colors,
    /** @type {number} */ width,
    /** @type {number} */ height,
  ) => ({
    traces: runs.map((run) => lineOf(run, axes, colorOf(run))),
    layout: { ...base(colors, width, height), ...layoutOf(axes, colors, width) },
  });
  const table = () => ({
    columns: ["run", ...axes.map(({ axis }) => axis.name)],
    rows: runs.map((run) => [nameOf(run), ...axes.map(({ of }) => of(run) ?? null)]),
  });
  const summary = () => `${runs.length} runs over ${axes.map(({ axis }) => axis.name).join(", ")}.`;
  return { make, table, summary };
}

/** @typedef {{axis: Axis, of: (run: Run) => Value}} Placed */

/** @param {Run} run @param {Placed[]} axes @param {string} color */
function lineOf(run, axes, color) {
  const lines = axes.map(({ axis, of }) => `${escaped(axis.name)}: ${escaped(wordsOf(of(run)))}`).join("<br>");
  return {
    type: "scatter",
    mode: "lines+markers",
    x: axes.map((_, place) => place),
    y: axes.map(({ axis, of }) => axis.at(of(run))),
    meta: run.id,
    name: escaped(nameOf(run)),
    line: { color, width: 1.75 },
    marker: { color, size: 6 },
    connectgaps: false,
    hovertext: `<b>${escaped(shorten(nameOf(run), 40))}</b><br>${lines}`, // no template: names may contain its signs
    hoverinfo: "text",
  };
}

/** @param {Placed[]} axes @param {Record<string, string>} colors @param {number} width */
function layoutOf(axes, colors, width) {
  const apart = (width - 2 * SIDE) / (axes.length + 0.1); // as the range below has it
  const room = Math.max(4, Math.floor((apart - GAP) / LETTER));
  const texts = axes.flatMap(({ axis }, place) =>
    axis.ticks.map(({ at, text }) => ({
      x: place,
      y: at,
      text: escaped(shorten(text, room)),
      showarrow: false,
      xanchor: place === axes.length - 1 ? "left" : "right",
      xshift: place === axes.length - 1 ? 8 : -8,
      font: { size: 11, color: colors.quiet },
      bgcolor: colors.card, // lines may cross it
      borderpad: 1,
    })),
  );
  return {
    xaxis: {
      range: [-0.5, axes.length - 0.4],
      fixedrange: true,
      showgrid: false,
      zeroline: false,
      tickvals: axes.map((_, place) => place),
      ticktext: axes.map(({ axis }) => escaped(shorten(axis.name, room))),
      tickfont: { color: colors.ink, size: 12 },
      tickangle: 0,
    },
    yaxis: { range: rangeOf(axes.map(({ axis }) => axis)), visible: false, fixedrange: true },
    shapes: axes.map((_, place) => ({
      type: "line",
      layer: "below",
      x0: place,
      x1: place,
      y0: 0,
      y1: 1,
      line: { color: colors.quiet, width: 1 },
    })),
    annotations: texts,
  };
}

/** One setting against a result. @param {Shown} shown @param {Setting} setting @returns {Figure} */
export function scatter({ runs, result, colorOf }, setting) {
  const across = axisOf(setting.name, Object.values(setting.values));
  const up = resultAxis(
    titled(result),
    runs.map((run) => resultOf(run, result)),
  );
  const there = runs.filter(
    (run) => up.at(resultOf(run, result)) !== null && across.at(setting.values[run.id]) !== null,
  );
  const make = (
    /** @type {Record<string, string>} */ colors,
    /** @type {number} */ width,
    /** @type {number} */ height,
  ) => {
    const ticks = (/** @type {Axis} */ axis) => ({
      range: rangeOf([axis]),
      fixedrange: true,
      zeroline: false,
      gridcolor: colors.line,
      tickvals: axis.ticks.map(({ at }) => at),
      ticktext: axis.ticks.map(({ text }) => escaped(text)),
      tickfont: { color: colors.quiet, size: 11 },
    });
    const title = (/** @type {string} */ text) => ({
      text: escaped(shorten(text, 40)),
      font: { size: 11, color: colors.quiet },
      standoff: 4,
    });
    const scale = (/** @type {Axis} */ axis) => (axis.kind === "log" ? `${axis.name} (log)` : axis.name);
    return {
      traces: [
        {
          type: "scatter",
          mode: "markers",
          x: there.map((run) => across.at(setting.values[run.id])),
          y: there.map((run) => up.at(resultOf(run, result))),
          customdata: there.map((run) => run.id),
          marker: {
            color: there.map(colorOf),
            symbol: there.map((run) => (up.at(resultOf(run, result)) === RAIL ? "triangle-up" : "circle")),
            size: 10,
            line: { color: colors.card, width: 1 },
          },
          hovertext: there.map((run) =>
            [
              `<b>${escaped(shorten(nameOf(run), 40))}</b>`,
              `${escaped(setting.name)}: ${escaped(wordsOf(setting.values[run.id]))}`,
              `${escaped(titled(result))}: ${wordsOf(resultOf(run, result))}`,
            ].join("<br>"),
          ),
          hoverinfo: "text",
        },
      ],
      layout: {
        ...base(colors, width, height),
        margin: { l: 64, r: 20, t: 12, b: 44 },
        xaxis: { ...ticks(across), title: title(scale(across)) },
        yaxis: { ...ticks(up), title: title(scale(up)) },
      },
    };
  };
  const table = () => ({
    columns: ["run", setting.name, result],
    rows: there.map((run) => [nameOf(run), setting.values[run.id] ?? null, resultOf(run, result)]),
  });
  const summary = () => `${there.length} of ${runs.length} runs have ${setting.name} and ${result}.`;
  return { make, table, summary };
}

/** Where the values and their air are. @param {Axis[]} axes */
function rangeOf(axes) {
  const hasRail = axes.some(({ ticks }) => ticks.some(({ at }) => at === RAIL));
  return [-AIR, (hasRail ? RAIL : 1) + AIR];
}

/** @param {Record<string, string>} colors @param {number} width @param {number} height */
function base(colors, width, height) {
  return {
    width,
    height,
    margin: { l: SIDE, r: SIDE, t: 12, b: 32 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: SANS, size: 12, color: colors.ink },
    showlegend: false,
    hovermode: "closest",
    hoverlabel: { bgcolor: colors.card, bordercolor: colors.line, font: { color: colors.ink } },
    dragmode: false,
  };
}

export class SettingCharts {
  /** @param {Page} page @param {(run: string) => void} onPick */
  constructor(page, onPick) {
    this.parallel = new FreeChart(page, byId("parallel"), { title: "Settings and results of runs", onPick });
    this.scatter = new FreeChart(page, byId("scatter"), { title: "A setting against a result", onPick });
  }

  /** @param {Shown} shown @param {Setting | undefined} setting @param {string} why there is nothing to show */
  show(shown, setting, why) {
    if (why) this.parallel.say(why);
    else this.parallel.show(parallel(shown));
    if (!why && shown.result && setting) this.scatter.show(scatter(shown, setting));
    else this.scatter.say(why || "The runs logged no result.");
  }
}
