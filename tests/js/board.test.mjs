import assert from "node:assert/strict";
import { test } from "node:test";
import { freeName, pinOf, queryOf } from "../../app/static/js/board/pin.js";
import { linesOf, scaleOf } from "../../app/static/js/board/pinned.js";

test("a pin is a chart's query without its run and its steps", () => {
  const layer = { run: "r", tap: ["a output", "b output"], stat: "mean,min", from: 3, to: undefined, points: 100 };
  assert.deepEqual(pinOf([{ path: "series", query: layer }], "Mean"), {
    name: "a and 1 more: Mean",
    path: "series",
    query: "tap=a+output&tap=b+output&stat=mean%2Cmin",
  });
  assert.deepEqual(pinOf([{ path: "scalars", query: { run: "r", name: "loss" } }], "loss"), {
    name: "loss",
    path: "scalars",
    query: "name=loss",
  });
  assert.deepEqual(queryOf("tap=a+output&tap=b+output&stat=mean%2Cmin"), {
    tap: ["a output", "b output"],
    stat: ["mean,min"],
  });
});

test("a pin is named by its value, by its layer, or by its title", () => {
  const nameOf = (/** @type {string} */ path, /** @type {any} */ query, title = "Norm") =>
    pinOf([{ path, query }], title)?.name;
  assert.equal(nameOf("scalars", { name: "lr" }, "Loss"), "lr");
  assert.equal(nameOf("scalars", { name: ["hookcore/system/cpu/process"] }, "CPU"), "CPU");
  assert.equal(nameOf("scalars", { name: ["a", "b"] }, "Both"), "Both");
  assert.equal(nameOf("series", { tap: ["a output", "a param [weight]"], stat: "norm" }), "a: Norm");
  assert.deepEqual([scaleOf("norm,rms"), scaleOf("mean,min,max"), scaleOf("")], ["log", "linear", "linear"]);
});

test("a second chart with the same name gets a number, and the same chart is pinned only once", () => {
  const chart = { name: "a: Norm", path: "series", query: "tap=a+output&stat=norm" };
  assert.equal(freeName(chart, []), "a: Norm");
  assert.equal(freeName(chart, [{ ...chart, name: "mine" }]), null);
  const other = { ...chart, query: "tap=a+output+%281%29&stat=norm" };
  assert.equal(freeName(other, [chart]), "a: Norm (2)");
  assert.equal(freeName(other, [chart, { ...chart, name: "a: Norm (2)", query: "x=y" }]), "a: Norm (3)");
});

test("charts of the machine keep their words and units", () => {
  const parts = ["forward", "backward", "other"].map((words) => ({ name: `hookcore/system/time/${words}`, words }));
  const plan = { id: "time", title: "Step time, ms", unit: 1e-3, parts };
  const times = ["time/backward", "time/forward"].map((name) => series(`hookcore/system/${name}`, null, [0.5]));
  assert.deepEqual(
    linesOf(times, plan).map(({ name, mean }) => [name, mean]),
    [
      ["forward", [500]],
      ["backward", [500]],
    ],
  );
});

test("charts that the board can't show have no pin", () => {
  const loss = { path: "scalars", query: { name: "loss" } };
  assert.equal(pinOf([], "x"), null);
  assert.equal(pinOf([loss, loss], "two runs"), null);
  assert.equal(pinOf([{ path: "heatmap", query: { kind: "output" } }], "x"), null);
  assert.equal(pinOf([{ path: "scalars", query: { name: "" } }], "x"), null);
  assert.equal(pinOf([{ path: "series", query: { tap: Array(50).fill("x".repeat(200)), stat: "rms" } }], "x"), null);
  assert.equal(pinOf([{ path: "scalars", query: { name: "n".repeat(300) } }], "Loss")?.name.length, 100);
});

/** @param {string} name @param {string | null} label @param {number[]} mean */
function series(name, label, mean) {
  const steps = mean.map((_, place) => place);
  const tap = label === null ? null : { label, module: label.split(" ")[0], kind: "output", index: "", call: 0 };
  return /** @type {any} */ ({ name, tap, first_step: steps, last_step: steps, mean, min: mean, max: mean });
}

test("lines are named by their differences, and extremes and percentiles are bands", () => {
  const names = (/** @type {any[]} */ found) => linesOf(found).map(({ name }) => name);
  assert.deepEqual(names([series("loss", null, [1, 2])]), ["loss"]);
  assert.deepEqual(names([series("rms", "a output", [1]), series("rms", "b output", [2])]), [
    "a activation",
    "b activation",
  ]);
  assert.deepEqual(names([series("rms", "a output", [1]), series("std", "b output", [2])]), [
    "a activation rms",
    "b activation std",
  ]);
  assert.deepEqual(names([series("rms", "a output", [1]), series("std", "a output", [2])]), ["rms", "std"]);
  const [band, ...others] = linesOf(["mean", "min", "max"].map((stat, place) => series(stat, "a output", [place])));
  assert.deepEqual([band.name, band.mean, band.min, band.max, others], ["mean", [0], [1], [2], []]);
  assert.deepEqual(names(["p1", "p50", "p99"].map((stat) => series(stat, "a output", [1]))), ["p1 to p99", "median"]);
  assert.deepEqual(names([series("rms", "a output", []), series("rms", "b output", [2])]), ["rms"]);
});
