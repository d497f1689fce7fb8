// The charts of the machine, depending on the samples.
import assert from "node:assert/strict";
import { test } from "node:test";
import { lineOf } from "../../app/static/js/system/charts.js";

test("a line has the units of its chart, also its band", () => {
  const line = { name: "x", first: [0, 8], last: [0, 15], mean: [1e9, 3e9], min: [1e9, 2e9], max: [1e9, 4e9] };
  const merged = lineOf(line, "this process", 1e9);
  assert.deepEqual([merged.name, merged.mean, merged.min, merged.max], ["this process", [1, 3], [1, 2], [1, 4]]);
  const exact = lineOf({ ...line, min: undefined, max: undefined }, "this process", 1e9);
  assert.deepEqual([exact.mean, exact.min, exact.max], [[1, 3], undefined, undefined]);
});
