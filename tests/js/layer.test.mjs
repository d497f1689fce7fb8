import assert from "node:assert/strict";
import { test } from "node:test";
import { addressOf } from "../../app/static/js/layer/choice.js";
import { fanOf, linesOf, shortOf } from "../../app/static/js/layer/plan.js";

let number = 0;
const tap = (kind, index = "", more = {}) => ({
  number: (number += 1),
  kind,
  index,
  call: 0,
  phase: "train",
  label: `m ${kind} ${index}`,
  ...more,
});
const LINEAR = [
  tap("param_grad", "weight"),
  tap("param_grad", "bias"),
  tap("output"),
  tap("output_grad"),
  tap("update", "weight"),
  tap("param", "weight"),
];

test("a tensor has a short name", () => {
  assert.deepEqual(LINEAR.map(shortOf), [
    "weight gradient",
    "bias gradient",
    "activation",
    "activation gradient",
    "weight update",
    "weight",
  ]);
});

const series = (mean, more = {}) => ({
  name: "",
  first: mean.map((_, step) => step),
  last: mean.map((_, step) => step),
  mean,
  min: mean,
  max: mean,
  nonfinite: mean.map(() => 0),
  ...more,
});

test("the band goes from the tensor's smallest to its largest value, not over the range of its mean", () => {
  const plan = /** @type {any} */ ({ parts: [{ tap: LINEAR[2], name: "", make: "values" }] });
  const [line] = linesOf(plan, (_, stat) => series({ mean: [1, 2], min: [-5, -6], max: [7, 8] }[stat]));
  assert.deepEqual(
    [line.mean, line.min, line.max],
    [
      [1, 2],
      [-5, -6],
      [7, 8],
    ],
  );
});

test("the fan chart has three bands around the median", () => {
  const quantiles = ["p1", "p5", "p25", "p50", "p75", "p95", "p99"];
  const values = Object.fromEntries(quantiles.map((name, place) => [name, series([place, place + 1])]));
  const lines = fanOf((name) => values[name]);
  assert.deepEqual(
    lines.map(({ name }) => name),
    ["p1 to p99", "p5 to p95", "p25 to p75", "median"],
  );
  assert.deepEqual(lines[0].min, [0, 1]);
  assert.deepEqual(lines[0].max, [6, 7]);
  assert.deepEqual(lines[3].mean, [3, 4]);
});

test("shares of NaN are relative to all values, and are shown only if there is one", () => {
  const plan = /** @type {any} */ ({ parts: [{ tap: LINEAR[2], name: "", make: "shares" }] });
  const of = (nan) =>
    linesOf(plan, (_, stat) => series({ zero_fraction: [0.5, 0.5], nan, inf: [0, 0], count: [10, 10] }[stat]));
  assert.deepEqual(of([0, 0]).length, 1);
  const lines = of([0, 5]);
  assert.deepEqual(lines[1].mean, [0, 0.5]);
  assert.equal(lines[1].color, "nan");
});

test("a link to a neighbor keeps the view and changes the module", () => {
  const there = addressOf("http://h/runs/r/layer?module=a.b", "http://h/runs/r/layer?module=x&kind=output&smooth=5");
  assert.equal(there, "http://h/runs/r/layer?module=a.b&kind=output&smooth=5");
  assert.equal(
    addressOf("http://h/runs/r/layer?module=", "http://h/l?module=x&y=log"),
    "http://h/runs/r/layer?module=&y=log",
  );
});
