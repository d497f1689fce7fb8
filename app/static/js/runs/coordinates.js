// @ts-check
/** Runs as lines over their settings, and as points of one setting against a result: figures for Plotly. Pure. */
import { number, shorten } from "../format.js";
import { escaped } from "../plot/library.js";
import { SANS } from "../theme.js";
import { axisOf, resultOf, wordsOf } from "./settings.js";

/** @typedef {import("../answers.js").Run} Run */
/** @typedef {import("./settings.js").Setting} Setting */
/** @typedef {{runs: Run[], settings: Setting[], result: string, colorOf: (run: Run) => string}} Shown */

const MAX_AXES = 8;
const AIR = 0.08; // above and below an axis
const SIDE = 24; // pixels to the left and to the right of all axes
const [LETTER, GAP] = [7, 10]; // the width of a letter, and of the space between the words of two axes

/** @param {Run} run */
export function nameOf(run) {
  return run.name || run.id;
}

/** Lines over the settings that differ, and the result: parallel coordinates. @param {Shown} shown
 * @returns {import("../plot/free.js").Figure} */
export function parallel({ runs, settings, result, colorOf }) {
  const chosen = settings.slice(0, MAX_AXES - 1);
  const axes = [
    ...chosen.map(({ name, values }) => ({
      axis: axisOf(name, [...values.values()]),
      of: (/** @type {Run} */ run) => values.get(run.id),
    })),
    ...(result
      ? [
          {
            axis: axisOf(
              result,
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

/** @typedef {{axis: import("./settings.js").Axis, of: (run: Run) => import("./settings.js").Value}} Placed */

/** @param {Run} run @param {Placed[]} axes @param {string} color */
function lineOf(run, axes, color) {
  const said = axes.map(({ axis, of }) => `${escaped(axis.name)}: ${escaped(wordsOf(of(run)))}`).join("<br>");
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
    hovertext: `<b>${escaped(shorten(nameOf(run), 40))}</b><br>${said}`, // no template: names may contain its signs
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
    yaxis: { range: [-AIR, 1 + AIR], visible: false, fixedrange: true },
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

/** One setting against a result. @param {Shown} shown @param {Setting} setting
 * @returns {import("../plot/free.js").Figure} */
export function scatter({ runs, result, colorOf }, setting) {
  const across = axisOf(setting.name, [...setting.values.values()]);
  const up = axisOf(
    result,
    runs.map((run) => resultOf(run, result)),
  );
  const there = runs.filter(
    (run) => up.at(resultOf(run, result)) !== null && across.at(setting.values.get(run.id)) !== null,
  );
  const make = (
    /** @type {Record<string, string>} */ colors,
    /** @type {number} */ width,
    /** @type {number} */ height,
  ) => {
    const ticks = (/** @type {import("./settings.js").Axis} */ axis) => ({
      range: [-AIR, 1 + AIR],
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
    const scale = (/** @type {import("./settings.js").Axis} */ axis) =>
      axis.kind === "log" ? `${axis.name} (log)` : axis.name;
    return {
      traces: [
        {
          type: "scatter",
          mode: "markers",
          x: there.map((run) => across.at(setting.values.get(run.id))),
          y: there.map((run) => up.at(resultOf(run, result))),
          customdata: there.map((run) => run.id),
          marker: { color: there.map(colorOf), size: 10, line: { color: colors.card, width: 1 } },
          hovertext: there.map((run) =>
            [
              `<b>${escaped(shorten(nameOf(run), 40))}</b>`,
              `${escaped(setting.name)}: ${escaped(wordsOf(setting.values.get(run.id)))}`,
              `${escaped(result)}: ${number(resultOf(run, result))}`,
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
    rows: there.map((run) => [nameOf(run), setting.values.get(run.id) ?? null, resultOf(run, result)]),
  });
  const summary = () => `${there.length} of ${runs.length} runs have ${setting.name} and ${result}.`;
  return { make, table, summary };
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
