import assert from "node:assert/strict";
import { test } from "node:test";
import { csvOf, fileName, hasPython, jsonOf, pythonOf } from "../../app/static/js/actions.js";
import { Axis, axisOf, colorOf, faint, LineFigure, stretches, tracesOf } from "../../app/static/js/plot/lines.js";
import { drawn } from "../../app/static/js/plot/thin.js";
import { heldWords, nearest, stepsAt, summaryOf, tableOf, valueWords } from "../../app/static/js/plot/words.js";

const COLORS = {
  line1: "#112233",
  line2: "#abc",
  nan: "#c4009a",
  inf: "#d9480f",
  card: "#fff",
  ink: "#000",
  quiet: "#555",
  line: "#ddd",
};
const counted = (many) => Array.from({ length: many }, (_, place) => place);
const line = (mean, more = {}) => ({
  name: "x",
  first: counted(mean.length),
  last: counted(mean.length),
  mean,
  ...more,
});
const page = (values, span = null) => ({ state: { optional: (name) => values[name] ?? "" }, follow: { span } });

test("if there are too many points to draw, every extreme stays, and no step is left out", () => {
  const mean = counted(5000).map((step) => Math.sin(step));
  mean[3333] = 1000;
  mean[4001] = -2000;
  const points = drawn(line(mean), 0, 1000);
  assert.ok(points.x.length <= 1000);
  assert.equal(Math.max(...points.max), 1000);
  assert.equal(Math.min(...points.min), -2000);
  assert.equal(points.first[0], 0);
  assert.equal(points.last.at(-1), 4999);
  points.first.slice(1).forEach((first, place) => assert.equal(first, points.last[place] + 1));
});

test("one NaN among many points is marked, and so is an infinity by its sign", () => {
  const mean = new Array(5000).fill(1);
  mean[2500] = NaN;
  mean[100] = Infinity;
  mean[200] = -Infinity;
  const { marks } = drawn(line(mean), 0, 1000);
  assert.deepEqual(
    marks.map(({ sign }) => sign),
    ["inf", "-inf", "nan"],
  );
  assert.ok(marks[2].first <= 2500 && marks[2].last >= 2500);
});

test("a line with non-finite counts is marked only there", () => {
  const { marks } = drawn(line([1, 2, NaN, 4], { nonfinite: [0, 3, 0, 1], infinite: [0, 1, 0, 0] }), 0, 1000);
  assert.deepEqual(
    marks.map(({ first, sign }) => [first, sign]),
    [
      [1, "inf"],
      [3, "nan"],
    ],
  );
});

test("smoothing uses points before the window, and all points rather than only drawn ones", () => {
  const mean = counted(4000).map((step) => (step < 2000 ? 0 : 1));
  const whole = drawn(line(mean), 50, 10_000);
  const part = drawn(line(mean), 50, 500, [2000, 3999]);
  assert.equal(part.first[0], 2000);
  assert.equal(part.smooth[0], whole.smooth[part.last[0]]);
  assert.ok(part.smooth[0] < 0.2);
});

test("a log axis labels round powers of ten", () => {
  const axis = axisOf("log", [[1e-6, 3e-2, 0]]);
  assert.equal(axis.kind, "log");
  const texts = axis.ticks(5).map(({ text }) => text);
  assert.ok(texts.length >= 3);
  assert.ok(
    texts.every((text) => /^(1e-\d+|0\.0*1|10*)$/.test(text)),
    texts.join(" "),
  );
  assert.ok(Math.abs(axis.place(1e-4) - axis.place(1e-5) - 1) < 1e-9);
});

test("zero is drawn at the bottom of a log axis", () => {
  const axis = axisOf("log", [[0, 1e-3, 1]]);
  assert.equal(axis.place(0), axis.range[0]);
  assert.ok(axis.place(1e-3) > axis.range[0]);
});

test("a log axis with negative values is symmetric around zero", () => {
  const axis = axisOf("log", [[-1, 1e-3, 100]]);
  assert.equal(axis.kind, "symlog");
  assert.equal(axis.place(0), 0);
  assert.equal(axis.place(-1), -axis.place(1));
  assert.deepEqual(
    axis
      .ticks(5)
      .map(({ text }) => text)
      .filter((text) => text === "0"),
    ["0"],
  );
});

for (const [low, high] of [
  [2, 3],
  [1.1, 1.2],
  [0.999, 1.001],
]) {
  test(`a log axis from ${low} to ${high} has ticks all the same`, () => {
    const axis = new Axis("log", low, high);
    const ticks = axis.ticks(5);
    assert.ok(ticks.length >= 2, JSON.stringify(ticks));
    assert.ok(ticks.every(({ at }) => at >= axis.range[0] - 1e-9 && at <= axis.range[1] + 1e-9));
  });
}

test("an axis without values, with one value, or with only zeros can be drawn", () => {
  for (const kind of ["linear", "log", "symlog"]) {
    for (const values of [[], [NaN], [0], [5], [-3, -3]]) {
      const axis = axisOf(kind, [values]);
      assert.ok(axis.range[0] < axis.range[1] && axis.range.every(Number.isFinite), `${kind} of ${values}`);
      assert.ok(axis.ticks().every(({ at }) => Number.isFinite(at)));
    }
  }
});

test("a gap splits the line and its band; nothing is drawn across it", () => {
  const one = line([1, 2, NaN, 4, 5], { min: [0, 1, NaN, 3, 4], max: [2, 3, NaN, 5, 6] });
  const points = drawn(one, 0, 1000);
  const axis = axisOf("linear", [points.min, points.max]);
  const [band, stroke, marks] = tracesOf([one], [points], axis, COLORS);
  assert.deepEqual(stretches(points.raw), [
    [0, 2],
    [3, 5],
  ]);
  assert.equal(stroke.y[2], null);
  assert.equal(stroke.connectgaps, false);
  assert.equal(band.x.filter((x) => x === null).length, 1);
  assert.equal(band.fill, "toself");
  assert.deepEqual(marks.x, [2]);
  assert.equal(marks.marker.color, COLORS.nan);
});

test("a band with only NaN is not drawn: a shape without points is an error in SVG", () => {
  const one = line([NaN, NaN], { min: [NaN, NaN], max: [NaN, NaN] });
  const traces = tracesOf([one], [drawn(one, 0, 1000)], axisOf("linear", []), COLORS);
  assert.ok(traces.every(({ fill }) => !fill));
});

test("NaN and infinities have their own symbols at the bottom of the axis", () => {
  const one = line([1, NaN, Infinity, -Infinity]);
  const points = drawn(one, 0, 1000);
  const axis = axisOf("linear", [points.raw]);
  const marks = tracesOf([one], [points], axis, COLORS).filter(({ mode }) => mode === "markers");
  assert.deepEqual(
    marks.map(({ name, marker }) => [name, marker.symbol]),
    [
      ["NaN", "x-thin"],
      ["Infinity", "triangle-up"],
      ["-Infinity", "triangle-down"],
    ],
  );
  assert.ok(marks.every(({ y }) => y[0] < axis.place(1)));
});

test("behind a smoothed line, the original line is drawn at 35 %", () => {
  const one = line([1, 5, 2, 8]);
  const figure = new LineFigure(page({ smooth: "5" }), { title: "x" });
  figure.lines = [one];
  const { traces } = figure.make(COLORS, 600, 300);
  const [raw, smooth] = traces.filter(({ mode }) => mode === "lines");
  assert.equal(raw.opacity, 0.35);
  assert.deepEqual(raw.y, one.mean);
  assert.notDeepEqual(smooth.y, one.mean);
});

test("a single value between gaps is a dot", () => {
  const one = line([NaN, 3, NaN, 1, 2]);
  const points = drawn(one, 0, 1000);
  const stroke = tracesOf([one], [points], axisOf("linear", [points.raw]), COLORS).find(({ name }) => name === "x");
  assert.deepEqual(stroke.marker.size, [0, 4, 0, 0, 0]);
});

test("the URL selects the scale unless the chart has only one", () => {
  const scaleOf = (y, options) => new LineFigure(page({ y }), { title: "x", y: options }).scale;
  assert.equal(scaleOf("", { scale: "log" }), "log");
  assert.equal(scaleOf("linear", { scale: "log" }), "linear");
  assert.equal(scaleOf("log", { scale: "linear", fixed: true }), "linear");
  assert.equal(scaleOf("nonsense", { scale: "log" }), "log");
});

test("the axis shows the page's steps, whatever steps a line has", () => {
  const figure = new LineFigure(page({}, [10, 19]), { title: "x" });
  figure.lines = [line(counted(30))];
  const { layout } = figure.make(COLORS, 600, 300);
  assert.deepEqual(layout.xaxis.range, [9.5, 19.5]);
  assert.ok(layout.xaxis.tickvals.every(Number.isInteger));
  assert.deepEqual(figure.drawn[0].first, counted(30).slice(10, 20));
});

test("the description names first and last values and counts non-finite ones", () => {
  const one = line([1, NaN, 3]);
  const words = summaryOf([one], [drawn(one, 0, 1000)]);
  assert.equal(words, "Steps 0 to 2. x: 3 at the end, from 1 to 3, non-finite at 1 of 3 points.");
});

test("the table has a row for each step of any line", () => {
  const lines = [line([1, 2]), { ...line([5, 6]), name: "y", first: [1, 2], last: [1, 2] }];
  const { columns, rows } = tableOf(
    lines,
    lines.map((each) => drawn(each, 0, 1000)),
  );
  assert.deepEqual(columns, ["step", "x", "y"]);
  assert.deepEqual(rows, [
    [0, 1, null],
    [1, 2, 5],
    [2, null, 6],
  ]);
});

test("the nearest point is found for any step", () => {
  const points = drawn({ ...line(counted(5)), first: [0, 10, 20, 30, 40], last: [9, 19, 29, 39, 49] }, 0, 1000);
  for (const step of [-5, 0, 4, 14, 15, 33, 49, 500]) {
    const gaps = points.x.map((x) => Math.abs(x - step));
    assert.equal(gaps[nearest(points, step)], Math.min(...gaps), `step ${step}`);
  }
  assert.equal(nearest(points, null), 4);
});

test("non-finite values are named", () => {
  const one = line([NaN, Infinity, 2], { nonfinite: [1, 0, 1] });
  const points = drawn(one, 0, 1000);
  assert.deepEqual(
    [0, 1, 2].map((place) => valueWords(one, points, place)),
    ["NaN", "Infinity", "2, partly non-finite"],
  );
});

test("the range of a point is shown only if it has one, and a point names its steps", () => {
  const one = { ...line([2, 3], { min: [2, 1], max: [2, 5] }), first: [0, 10], last: [0, 19] };
  const points = drawn(one, 0, 1000);
  assert.deepEqual(
    [0, 1].map((place) => valueWords(one, points, place)),
    ["2", "3 (1 to 5)"],
  );
  assert.deepEqual(
    [-1, 0, 1].map((place) => stepsAt(points, place)),
    ["", "step 0", "steps 10 to 19"],
  );
});

test("colors may be abbreviated, and line colors repeat in a cycle", () => {
  assert.equal(faint("#abc", 0.5), "rgba(170,187,204,0.5)");
  assert.equal(faint("#112233", 1), "rgba(17,34,51,1)");
  assert.equal(colorOf({ color: "nan" }, 0, COLORS), COLORS.nan);
  assert.equal(colorOf({}, 4, COLORS), COLORS.line1);
});

test("CSV quotes only where needed, and writes non-finite values as NumPy does", () => {
  assert.equal(
    csvOf(["-x"], [["=1+1"], ["-1.5"], [-1.5], ["@a"], ["\tb"], ["a=b"]]),
    "'-x\r\n'=1+1\r\n-1.5\r\n-1.5\r\n'@a\r\n'\tb\r\na=b\r\n",
  );
  assert.equal(
    csvOf(
      ["a", "b,c"],
      [
        [1, NaN],
        ['say "x"', -Infinity],
        [null, "l\nm"],
      ],
    ),
    'a,"b,c"\r\n1,nan\r\n"say ""x""",-inf\r\n,"l\nm"\r\n',
  );
});

test("JSON of a table can be read by any parser", () => {
  assert.deepEqual(JSON.parse(jsonOf(["a"], [[NaN], [Infinity], [-Infinity], [1]])).rows, [
    ["NaN"],
    ["Infinity"],
    ["-Infinity"],
    [1],
  ]);
});

test("a file name has no characters that operating systems refuse", () => {
  assert.equal(fileName("my run: a/b", "Gradients: norm", ""), "hookcore_my-run-a-b_Gradients-norm");
});

test("the Python script requests one series as the page does", () => {
  const script = pythonOf(
    [{ path: "series", query: { tap: ["layers.0 output"], stat: "rms", from: 3, to: 9, points: 10000, run: "run-1" } }],
    "http://box:1",
  );
  assert.equal(
    script,
    'import hookcore\n\nclient = hookcore.Client("http://box:1")\n' +
      'series = client.series("layers.0 output", stat="rms", first=3, last=9, points=10000, run="run-1")\n',
  );
});

test("the Python script requests several series in a loop", () => {
  const script = pythonOf(
    [{ path: "series", query: { tap: ["a output", "b output"], stat: "min,max", from: null } }],
    "u",
  );
  assert.ok(
    script.includes(
      "(tap, stat): client.series(tap, stat=stat)\n" +
        '    for tap in ["a output", "b output"]\n    for stat in ["min", "max"]\n',
    ),
  );
});

test("the Python script requests the histograms of one tap, or of several", () => {
  const script = (taps) => pythonOf([{ path: "histograms", query: { tap: taps, bins: 60 } }], "u");
  assert.ok(script([3]).endsWith("histograms = client.histograms(3, bins=60)\n"));
  assert.ok(script([3, 4]).endsWith("histograms = client.many_histograms([3, 4], bins=60)\n"));
});

test("scripts are offered only for data that the client can request", () => {
  assert.ok(hasPython([{ path: "heatmap", query: {} }]));
  assert.ok(!hasPython([{ path: "nonsense", query: {} }]));
  assert.ok(!hasPython([]));
});

test("the name of the vertical axis is cut in its middle by its width, not by the number of its letters", () => {
  const widthOf = (text) => text.length * 10;
  const figure = new LineFigure(page({}), { title: `start ${"W".repeat(60)} end` }, widthOf);
  figure.take([line([0, 100])], "loss");
  const { text } = figure.make(COLORS, 400, 200).layout.yaxis.title;
  assert.ok(widthOf(text) <= 200 - 48, text);
  assert.match(text, /^start .*\u2026.* end$/);
});

test("a zoom of the values ends when the chart changes its subject", () => {
  const figure = new LineFigure(page({}), { title: "x" });
  const range = () => figure.make(COLORS, 400, 200).layout.yaxis.range.map(Math.round);
  figure.take([line([0, 100])], "loss");
  figure.zoomed = [0, 10];
  figure.take([line([0, 100, 100])], "loss");
  assert.deepEqual(figure.zoomed, [0, 10]);
  assert.ok(range()[1] <= 10);
  figure.take([line([0, 1000])], "accuracy");
  assert.equal(figure.zoomed, null);
  assert.ok(range()[1] >= 1000);
});

test("names are text for Plotly, not tags", () => {
  const one = line([1, 2]);
  const points = drawn({ ...one, name: "<b>x</b>" }, 0, 1000, null);
  const traces = tracesOf([{ ...one, name: "<b>x</b>" }], [points], axisOf("linear", [points.raw]), COLORS);
  assert.deepEqual([...new Set(traces.map(({ name }) => name))], ["&lt;b&gt;x&lt;/b&gt;"]);
});

test("a held step has its own value, and none if its point is merged with others", () => {
  const loss = line(counted(4000));
  const points = drawn(loss, 0, 1000);
  assert.deepEqual(heldWords(loss, points, 1001), ["-", "one point for steps 1,000 to 1,003"]);
  const alone = { name: "x", first: [1001], last: [1001], mean: [1001] };
  assert.deepEqual(heldWords(loss, points, 1001, [alone]), ["1,001", ""]);
  assert.deepEqual(heldWords(loss, points, 1001, []), ["-", ""], "the server has none of this step");
  const old = { name: "x", first: [1000], last: [1007], mean: [5], min: [4], max: [6] };
  assert.deepEqual(heldWords(loss, points, 1001, [old]), ["5 (4 to 6)", "at steps 1,000 to 1,007"]);
  const few = drawn(line([1, 2, 3]), 10, 1000);
  assert.deepEqual(heldWords(line([1, 2, 3]), few, 2), ["3", ""], "a smoothed value includes other steps");
  assert.deepEqual(heldWords(line([1, 2, 3]), few, 7), ["-", ""]);
});

/** A chart of runs, with values by run. @param {Record<string, number[]>} runs */
function ofRuns(runs) {
  return figureOf(Object.entries(runs).map(([name, mean]) => line(mean, { name })));
}

/** @param {any[]} lines of runs */
function figureOf(lines) {
  const figure = new LineFigure(/** @type {any} */ (page({})), { title: "loss", several: true });
  figure.take(lines, "");
  return { figure, ...figure.make(COLORS, 600, 300) };
}

test("a run that diverged leaves the axis at a rail that names it, and doesn't flatten the others", () => {
  const calm = { "lr 0.1": [2, 1, 0.5, 0.4], "lr 0.2": [2, 1.2, 0.7, 0.5], "lr 0.3": [2, 1.5, 1, 0.9] };
  const { figure, traces } = ofRuns({ ...calm, "lr 3": [2, 50, 1e9, NaN], "lr 1": [2, NaN, NaN, NaN] });
  const top = figure.axis?.values(figure.axis.range)[1] ?? Infinity;
  assert.ok(top < 4, `the axis reaches to ${top}`);
  const rail = traces.filter(({ name }) => name === "rail");
  assert.deepEqual(
    rail.map(({ x, text }) => [x[0], text[0].trim()]),
    [
      [1, "lr 3 leaves at step 1, up to 1e9"],
      [1, "lr 1: NaN at step 1"],
    ],
  );
  assert.equal(new Set(rail.map(({ y }) => y[0])).size, 2, "each has its own line of words");
  assert.ok(!traces.some(({ name }) => name === "NaN"), "no crosses without an owner");
  assert.deepEqual(ofRuns(calm).figure.exits, []);
});

test("a run that begins higher than the others stays on the axis, also among runs that hardly change", () => {
  const flat = { a: [2.3, 2.31, 2.3], b: [2.31, 2.3, 2.29], c: [2.3, 2.29, 2.3], d: [2.31, 2.32, 2.3] };
  const { figure } = ofRuns({ ...flat, e: [2.3, 1, 0.3], f: [2.3, 1.5, 0.5], high: [4.7, 2.4, 2.2] });
  assert.deepEqual(figure.exits, []);
});

test("the band of a run whose peak leaves the axis has both edges there, and the rail says that it leaves", () => {
  const steps = [0, 1, 2, 3, 4];
  const calm = { first: steps, last: steps, mean: [2, 1, 0.5, 0.4, 0.4] };
  const spike = { ...calm, mean: [2, 4, 0.5, 40, 0.4], min: [1, 0.5, 0.4, 30, 0.4], max: [3, 60, 0.6, 50, 0.5] };
  const lines = ["a", "b"].map((name) => ({ ...calm, name }));
  const { figure, traces } = figureOf([...lines, { ...spike, name: "spike", color: "ink" }]);
  const band = traces.find(({ fill }) => fill);
  const top = band.y[1];
  assert.ok(top < 4, `the band reaches to ${top}`);
  assert.deepEqual(band.x, [0, 1, 2, 2, 1, 0, null, 4, 4], "one shape on each side of the step above the axis");
  assert.deepEqual(band.y, [top, top, 0.6, 0.4, 0.5, 1, null, 0.5, 0.4]);
  assert.deepEqual(
    figure.exits.map(({ line, step }) => [line, step]),
    [[2, 1]],
    "a line that the axis cuts is named",
  );
});

test("an axis is logarithmic by itself if values span more than two decades, and a choice stays", () => {
  const scaleOf = (/** @type {number[]} */ mean, chosen = "") => {
    const page = { state: { optional: (name) => (name === "y" ? chosen : "") }, follow: { span: null } };
    const figure = new LineFigure(/** @type {any} */ (page), { title: "loss" });
    const steps = mean.map((_, step) => step);
    figure.take([{ name: "loss", first: steps, last: steps, mean }], "");
    figure.make(COLORS, 600, 300);
    return figure.axis?.kind;
  };
  assert.deepEqual([scaleOf([1, 0.5, 0.1]), scaleOf([1, 0.5, 0.001])], ["linear", "log"]);
  assert.deepEqual([scaleOf([1, 0, 0.001]), scaleOf([1, 0.5, 0.001], "linear")], ["linear", "linear"]);
});

test("the axis of a constant zero begins at zero", () => {
  assert.deepEqual(axisOf("linear", [[0, 0, 0]]).range, [0, 1]);
});
