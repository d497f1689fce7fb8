import assert from "node:assert/strict";
import { test } from "node:test";
import { addressOf, WORDS } from "../../app/static/js/layer/choice.js";
import {
  distributionsOf,
  fanOf,
  linesOf,
  plansOf,
  QUANTILES,
  shortOf,
  tensorOf,
} from "../../app/static/js/layer/plan.js";

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
test("a call has the same number as its label", () => {
  assert.equal(WORDS.call("1"), "1");
});

const NOTHING = { kind: "", index: "", call: "", phase: "" };
const LINEAR = [
  tap("param_grad", "weight"),
  tap("param_grad", "bias"),
  tap("output"),
  tap("output_grad"),
  tap("update", "weight"),
  tap("param", "weight"),
];

test("a module with everything gets its output, gradients, update ratio and shares at a glance", () => {
  assert.deepEqual(
    plansOf(LINEAR, NOTHING).map(({ id }) => id),
    ["values", "gradients", "ratio", "shares"],
  );
});

test("a chart with more tensors than lines says how many there are", () => {
  const many = Array.from({ length: 7 }, (_, place) => tap("param_grad", `w${place}`));
  const [gradients] = plansOf(many, NOTHING).filter(({ id }) => id === "gradients");
  assert.equal(gradients.title, "Gradients: norm, 4 of 7");
  assert.equal(gradients.parts.length, 4);
  const [few] = plansOf(LINEAR, NOTHING).filter(({ id }) => id === "gradients");
  assert.equal(few.title, "Gradients: norm");
});

test("a module without parameters gets the percentiles of its output instead of a ratio", () => {
  assert.deepEqual(
    plansOf(LINEAR.slice(2, 4), NOTHING).map(({ id }) => id),
    ["values", "gradients", "percentiles", "shares"],
  );
});

test("a module that was never called but has parameter gradients gets charts of these", () => {
  assert.deepEqual(
    plansOf(LINEAR.slice(0, 2), NOTHING).map(({ id }) => id),
    ["values", "gradients", "percentiles", "shares"],
  );
});

test("without captured tensors there is no chart", () => {
  assert.deepEqual(plansOf([], NOTHING), []);
});

test("probes have their own chart, named by the user", () => {
  const probe = { ...LINEAR[0], number: 90, kind: "probe", index: "rank", label: "fc probe [rank]" };
  const plans = plansOf([...LINEAR, probe], NOTHING);
  assert.ok(plans.length <= 4);
  assert.deepEqual(
    plans.find(({ id }) => id === "probes")?.parts.map(({ name, make }) => [name, make]),
    [["rank", "mean"]],
  );
  assert.equal(shortOf(probe), "rank");
});

test("there are never more than four charts", () => {
  for (const choice of [NOTHING, ...LINEAR.map(({ kind, index }) => ({ ...NOTHING, kind, index }))])
    assert.ok(plansOf(LINEAR, choice).length <= 4);
});

test("the URL names the tensor; missing or invalid parts default to the first one", () => {
  assert.equal(tensorOf(LINEAR, { ...NOTHING, kind: "param_grad", index: "bias" }), LINEAR[1]);
  assert.equal(tensorOf(LINEAR, { ...NOTHING, kind: "param_grad" }), LINEAR[0]);
  assert.equal(tensorOf(LINEAR, { ...NOTHING, kind: "param_grad", index: "gone" }), LINEAR[0]);
  assert.equal(tensorOf(LINEAR, { ...NOTHING, kind: "input" }), null);
});

test("call and phase choose among the taps of a kind", () => {
  const taps = [tap("output"), tap("output", "", { call: 1 }), tap("output", "", { phase: "eval" })];
  assert.equal(tensorOf(taps, { ...NOTHING, kind: "output", call: "1" }), taps[1]);
  assert.equal(tensorOf(taps, { ...NOTHING, kind: "output", phase: "eval" }), taps[2]);
  assert.equal(plansOf(taps, { ...NOTHING, phase: "eval" })[0].parts[0].tap, taps[2]);
});

test("distributions show the first tensor of each kind, or the selected one", () => {
  assert.deepEqual(
    distributionsOf(LINEAR, NOTHING).map(({ kind }) => kind),
    ["output", "output_grad", "param", "param_grad", "update"],
  );
  assert.deepEqual(distributionsOf(LINEAR, { ...NOTHING, kind: "update" }), [LINEAR[4]]);
});

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

test("every stat used by a chart's lines is requested", () => {
  for (const choice of [NOTHING, ...LINEAR.map(({ kind, index }) => ({ ...NOTHING, kind, index }))]) {
    for (const plan of plansOf(LINEAR, choice)) {
      const used = new Set();
      const lines = linesOf(plan, (_, stat) => (used.add(stat), series([1, 2])));
      assert.ok(lines.length > 0, plan.id);
      assert.deepEqual([...used].sort(), [...plan.stats].sort(), plan.id);
    }
  }
});

test("the band goes from the tensor's smallest to its largest value, not over the range of its mean", () => {
  const [plan] = plansOf(LINEAR, NOTHING);
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
  const values = Object.fromEntries(QUANTILES.map((name, place) => [name, series([place, place + 1])]));
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
  const plan = plansOf([LINEAR[2]], NOTHING).at(-1);
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
