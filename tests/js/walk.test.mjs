import assert from "node:assert/strict";
import { test } from "node:test";

import { nextPlace } from "../../app/static/js/alerts/controls.js";

test("the first key press goes to the first line, or to the last one when moving back", () => {
  assert.equal(nextPlace(-1, 1, 3), 0);
  assert.equal(nextPlace(-1, -1, 3), 2);
});

test("at either end the selection stays", () => {
  assert.equal(nextPlace(2, 1, 3), 2);
  assert.equal(nextPlace(0, -1, 3), 0);
  assert.equal(nextPlace(1, 1, 3), 2);
});

test("an empty list has no selected line", () => {
  assert.equal(nextPlace(-1, 1, 0), -1);
});
