import assert from "node:assert/strict";
import { test } from "node:test";
import { shorten } from "../../app/static/js/format.js";
import { colorsOfGroups, HUES, huesOf, resultsOf, telling } from "../../app/static/js/runs/charts.js";
import { axisOf, parallel, resultAxis, scatter, wordsOf } from "../../app/static/js/runs/coordinates.js";

const COLORS = { quiet: "#777", ink: "#000", line: "#ccc", card: "#fff" };

function run(id, config, facts = {}, results = {}) {
  return { id, name: `<b>${id}</b>`, config, facts, results };
}

const RUNS = [
  run(
    "a",
    { lr: 0.001, act: "relu", seed: 1 },
    { optimizer: "SGD", "optimizer.lr": 0.001, "git.commit": "1" },
    { loss: 2, recent_loss: 1.5 },
  ),
  run(
    "b",
    { lr: 0.1, act: "gelu", seed: 1 },
    { optimizer: "SGD", "optimizer.lr": 0.1, "git.commit": "2" },
    { loss: 1, recent_loss: 0.5 },
  ),
  run("c", { lr: 1, act: "relu", seed: 1, extra: true }, { optimizer: "Adam", "optimizer.lr": 1 }, { loss: "NaN" }),
];

/** What the server says of what differs. */
const DIFFERENCES = [
  ...["lr", "act", "extra"].map((name) => ({ name, values: valuesOf("config", name) })),
  { name: "optimizer", values: valuesOf("facts", "optimizer") },
];

function valuesOf(source, name) {
  return Object.fromEntries(RUNS.filter((each) => name in each[source]).map((each) => [each.id, each[source][name]]));
}

test("a setting that only one run has tells no runs apart", () => {
  assert.deepEqual(
    telling(DIFFERENCES).map(({ name }) => name),
    ["lr", "act", "optimizer"],
  );
});

test("whole numbers are written in full, others with four digits", () => {
  assert.deepEqual([14628, 1234567, 0.0123456].map(wordsOf), ["14,628", "1,234,567", "0.01235"]);
  const texts = (values) => axisOf("seed", values).ticks.map(({ text }) => text);
  assert.deepEqual(texts([14628, 1234567]), ["14,628", "1,234,567"]);
});

test("results are the values that most runs have, with the recent loss first", () => {
  assert.deepEqual(resultsOf(RUNS), ["loss", "recent_loss"]);
  assert.deepEqual(resultsOf(RUNS.slice(0, 2)), ["recent_loss", "loss"]);
});

test("an axis is logarithmic for values of several magnitudes, and lists texts in order", () => {
  const log = axisOf("lr", [0.001, 0.1, 10]);
  assert.equal(log.kind, "log");
  assert.deepEqual([0.001, 0.1, 10].map(log.at), [0, 0.5, 1]);
  const linear = axisOf("width", [8, 16]);
  assert.deepEqual([linear.kind, linear.at(12), linear.at(null), linear.at(Number.NaN)], ["linear", 0.5, null, null]);
  const words = axisOf("act", ["relu", "gelu", null, "relu"]);
  assert.deepEqual([words.kind, words.at("gelu"), words.at("relu"), words.at(null)], ["words", 0, 1, null]);
  assert.equal(axisOf("same", [3, 3]).at(3), 0.5);
  assert.deepEqual(
    axisOf("loss", [0.9101, 0.9157, 1.365]).ticks.map(({ at }) => at),
    [0, 1], // the second label would cover the first one
  );
  const many = axisOf(
    "seed",
    Array.from({ length: 30 }, (_, place) => place),
  );
  assert.ok(many.ticks.length <= 7);
  assert.ok(many.ticks.every(({ at }) => at >= 0 && at <= 1));
});

test("parallel coordinates have a line for each run, and escape the user's text", () => {
  const shown = { runs: RUNS, settings: telling(DIFFERENCES), result: "loss", colorOf: () => "#123456" };
  const figure = parallel(shown);
  const { traces, layout } = figure.make(COLORS, 600, 300);
  assert.deepEqual(
    traces.map(({ y }) => y.map((place) => place !== null)),
    [
      [true, true, true, true],
      [true, true, true, true],
      [true, true, true, true], // its loss is NaN, which has a place on the rail
    ],
  );
  assert.deepEqual(layout.xaxis.ticktext, ["lr", "act", "optimizer", "loss"]);
  assert.ok(!JSON.stringify(traces.map(({ hovertext }) => hovertext)).includes("<b><b>"));
  assert.deepEqual(figure.table().rows[0], ["<b>a</b>", 0.001, "relu", "SGD", 2]);
});

test("the labels of eight narrow axes don't overlap", () => {
  const names = Array.from({ length: 7 }, (_, place) => `optimizer.a_long_name_${place}`);
  const values = new Map(RUNS.map(({ id }) => [id, `complex64, float32 of ${id}`]));
  const settings = names.map((name) => ({ name, values }));
  const { layout } = parallel({ runs: RUNS, settings, result: "recent_loss", colorOf: () => "#123456" }).make(
    COLORS,
    615,
    300,
  );
  const apart = (615 - layout.margin.l - layout.margin.r) / (layout.xaxis.range[1] - layout.xaxis.range[0]);
  const words = [...layout.xaxis.ticktext, ...layout.annotations.map(({ text }) => text)];
  assert.equal(layout.xaxis.ticktext.length, 8);
  assert.ok(words.every((text) => text.length * 7 < apart));
});

test("a scatter plot leaves out runs without the setting, and keeps those that diverged on a rail", () => {
  const [setting] = DIFFERENCES;
  const { traces } = scatter({ runs: RUNS, settings: [], result: "loss", colorOf: () => "#123456" }, setting).make(
    COLORS,
    600,
    300,
  );
  assert.deepEqual(traces[0].customdata, ["a", "b", "c"]);
  const [one, other, rail] = traces[0].y;
  assert.deepEqual([one, other, rail > 1.1], [1, 0, true]);
  assert.deepEqual(traces[0].marker.symbol, ["circle", "circle", "triangle-up"]);
});

test("a result that exploded doesn't flatten the others, and ticks of results are round", () => {
  const axis = resultAxis("loss", [0.29, 0.44, 1.87, 2.27, 6e9, Number.NaN, null]);
  assert.deepEqual([axis.at(0.29), axis.at(2.27), axis.at(null)], [0, 1, null]);
  assert.ok(Number(axis.at(6e9)) > 1 && axis.at(6e9) === axis.at(Number.NaN));
  assert.deepEqual(
    axis.ticks.map(({ text }) => text),
    ["0.5", "1", "1.5", "2", "diverged"],
  );
});

test("groups of numbers share a color scale, and other groups have separate hues", () => {
  const scale = colorsOfGroups(["1", "0.1", "10", ""]);
  assert.equal(new Set(scale.values()).size, 4);
  assert.equal(scale.get("0.1"), "#6062d6");
  assert.deepEqual([...colorsOfGroups(["b", "a"]).values()], HUES.slice(0, 2));
  assert.equal(huesOf(Array.from({ length: 11 }, (_, place) => `run ${place}`)).get("run 10"), HUES[0]);
});

test("groups of numbers keep their colors when a run with another number joins", () => {
  const before = colorsOfGroups(["1", "0.1", "10"]);
  const after = colorsOfGroups(["1", "0.01", "0.1", "3", "5", "10", "100"], before);
  for (const group of ["0.1", "1", "10"]) assert.equal(after.get(group), before.get(group), group);
  assert.equal(new Set(after.values()).size, 8);
  assert.equal(after.get("3"), "#7f8b4f"); // in the middle of 1 and 10
});

test("a run keeps its color while others come and go, and a new one gets a color that no other has", () => {
  const all = huesOf(Array.from({ length: 12 }, (_, place) => `run ${place}`));
  assert.equal(all.get("run 0"), all.get("run 10"), "there are ten colors");
  const one = huesOf(["run 10"], all);
  assert.deepEqual([...one], [["run 10", HUES[0]]]);
  const two = huesOf(["run 10", "run 0"], new Map([...all, ...one]));
  assert.equal(two.get("run 10"), HUES[0], "the one that was selected first keeps it");
  assert.notEqual(two.get("run 0"), HUES[0]);
  const three = huesOf(["new", "run 3", "run 10", "run 0"], new Map([...all, ...two]));
  assert.deepEqual([three.get("run 10"), three.get("run 0")], [two.get("run 10"), two.get("run 0")]);
  assert.equal(new Set(three.values()).size, 4);
});

test("a long name is shortened in its middle", () => {
  assert.equal(shorten("short"), "short");
  assert.equal(shorten("a-very-long-name-that-ends-in-42", 12).length, 12);
  assert.ok(shorten("a-very-long-name-that-ends-in-42", 12).endsWith("in-42"));
});
