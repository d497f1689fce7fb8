import assert from "node:assert/strict";
import test from "node:test";
import { INFINITE, MISSING, NAN } from "../../app/static/js/canvas/columns.js";
import { cellsOf } from "../../app/static/js/compare/differences.js";

test("cells become columns, and NaN and missing values stay different", () => {
  const bits = cellsOf(
    [
      [0.5, "NaN", 0],
      ["NaN", "NaN", 2],
    ],
    [
      [1, 2, 1],
      [0, 2, 1],
    ],
  );
  const values = new Float32Array(bits.buffer);
  assert.equal(values[0], 0.5);
  assert.equal(bits[1], MISSING);
  assert.deepEqual([...bits.slice(2, 4)], [NAN, NAN]);
  assert.deepEqual([...values.slice(4)], [0, 2]);
});

test("NaN in both runs is neither equal nor a difference", () => {
  assert.deepEqual([...cellsOf([[0, 0]], [[3, 1]])], [INFINITE, 0]);
});

test("empty input gives empty output", () => {
  assert.equal(cellsOf([], []).length, 0);
  assert.equal(cellsOf([[], []], [[], []]).length, 0);
});
