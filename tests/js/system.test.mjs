// The charts of the machine, depending on the samples.
import assert from "node:assert/strict";
import { test } from "node:test";
import { lineOf, plansOf } from "../../app/static/js/system/charts.js";

const own = (names) => names.map((name) => `hookcore/system/${name}`);

test("there are charts only for sampled values", () => {
  const plans = plansOf(own(["memory/machine", "cpu/process", "memory/process", "something/new"]));
  assert.deepEqual(
    plans.map(({ id }) => id),
    ["cpu", "memory"],
  );
  assert.deepEqual(
    plans[1].parts.map(({ words }) => words),
    ["this process", "all processes"],
  );
  assert.deepEqual(plansOf([]), []);
});

test("GPUs share a chart of each sensor, in the order of their numbers, and have one each for their memory", () => {
  const plans = plansOf(own(["gpu10/utilization", "gpu2/utilization", "gpu2/reserved", "gpu2/power", "rate/steps"]));
  assert.deepEqual(
    plans.map(({ title }) => title),
    ["GPU utilization, %", "GPU power, W", "Memory of GPU 2, GB", "Steps per second"],
  );
  assert.deepEqual(plans[0].parts, [
    { name: "hookcore/system/gpu2/utilization", words: "GPU 2" },
    { name: "hookcore/system/gpu10/utilization", words: "GPU 10" },
  ]);
});

test("a line has the units of its chart, with a band only where samples were merged", () => {
  const series = { name: "x", first: [0, 8], mean: [1e9, 3e9], min: [1e9, 2e9], max: [1e9, 4e9] };
  const merged = lineOf({ ...series, last: [0, 15] }, "this process", 1e9);
  assert.deepEqual([merged.name, merged.mean, merged.min, merged.max], ["this process", [1, 3], [1, 2], [1, 4]]);
  const exact = lineOf({ ...series, last: [0, 8] }, "this process", 1e9);
  assert.deepEqual([exact.mean, exact.min, exact.max], [[1, 3], undefined, undefined]);
});

test("the parts of a step are lines of one chart, in milliseconds", () => {
  const [plan] = plansOf(own(["time/hookcore", "time/forward", "time/before", "time/loading"]));
  assert.equal(plan.title, "Step time, ms");
  assert.deepEqual(
    plan.parts.map(({ words }) => words),
    ["data loading", "before the model", "forward", "hookcore"],
  );
  const line = { name: "x", first: [3], last: [3], mean: [0.25], min: [0.25], max: [0.25] };
  assert.deepEqual(lineOf(line, "forward", plan.unit).mean, [250]);
  const colors = plan.parts.map(({ color }) => lineOf(line, "x", plan.unit, color).color);
  assert.equal(new Set(colors).size, 4);
});
