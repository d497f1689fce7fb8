import assert from "node:assert/strict";
import { test } from "node:test";
import { pathOf } from "../../app/static/js/plot/sketch.js";

const same = (value) => value;

test("a line has a gap where a value is missing", () => {
  assert.equal(pathOf([0, 1, 2, 3], [5, 6, null, 8], same, same), "M0.0 5.0L1.0 6.0M3.0 8.0");
  assert.equal(pathOf([0, null, 1], [1, null, 2], same, same), "M0.0 1.0M1.0 2.0");
  assert.equal(pathOf([], [], same, same), "");
});
