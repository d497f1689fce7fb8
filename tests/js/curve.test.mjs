import assert from "node:assert/strict";
import { test } from "node:test";

import { Curve } from "../../app/static/js/live/curve.js";

/** A series whose values are the steps themselves. */
const series = (steps, values = steps) => ({
  first_step: steps,
  last_step: steps,
  mean: values,
  min: values,
  max: values,
  nonfinite: steps.map(() => 0),
});

test("new steps are appended", () => {
  const curve = new Curve();
  curve.take(series([1, 2]), true);
  curve.take(series([3]), false);
  assert.deepEqual(curve.line("loss").first, [1, 2, 3]);
});

test("a repeated step replaces the earlier values", () => {
  const curve = new Curve();
  curve.take(series([1, 2, 3]), true);
  curve.take(series([3, 4], [30, 40]), false);
  assert.deepEqual(curve.line("loss").first, [1, 2, 3, 4]);
  assert.deepEqual(curve.line("loss").mean, [1, 2, 30, 40]);
});

test("a snapshot replaces everything, and an empty one leaves nothing", () => {
  const curve = new Curve();
  curve.take(series([1, 2]), true);
  curve.take(series([7]), true);
  assert.deepEqual(curve.line("loss").first, [7]);
  curve.take(series([]), true);
  assert.equal(curve.length, 0);
});

test("non-finite words of JSON become numbers again", () => {
  const curve = new Curve();
  curve.take(series([1, 2], ["NaN", "Infinity"]), true);
  assert.deepEqual(curve.line("loss").mean, [NaN, Infinity]);
});

test("old steps are forgotten in every column", () => {
  const curve = new Curve();
  curve.take(series([1, 2, 3, 4]), true);
  curve.forget(3);
  const line = curve.line("loss");
  for (const column of [line.first, line.last, line.mean, line.nonfinite]) assert.equal(column.length, 2);
  assert.equal(line.min, undefined);
});

test("a line has a band only if several steps share a point", () => {
  const curve = new Curve();
  curve.take({ ...series([1, 2]), last_step: [1, 5], min: [0, 1], max: [2, 3] }, true);
  assert.deepEqual(
    [curve.line("loss").min, curve.line("loss").max],
    [
      [0, 1],
      [2, 3],
    ],
  );
});
