import assert from "node:assert/strict";
import { test } from "node:test";

import { nextPlace } from "../../app/assets/static/js/alerts/walk.js";

test("the first key goes to the first line, or back from the end to the last", () => {
  assert.equal(nextPlace(-1, 1, 3), 0);
  assert.equal(nextPlace(-1, -1, 3), 2);
});

test("at an end it stays", () => {
  assert.equal(nextPlace(2, 1, 3), 2);
  assert.equal(nextPlace(0, -1, 3), 0);
  assert.equal(nextPlace(1, 1, 3), 2);
});

test("in an empty list there is no line", () => {
  assert.equal(nextPlace(-1, 1, 0), -1);
});
