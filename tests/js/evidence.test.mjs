import assert from "node:assert/strict";
import { test } from "node:test";

import { linesOf } from "../../app/static/js/alerts/onset.js";

const evidence = {
  taps: [
    { module: "b", kind: "output", label: "b output" },
    { module: "", kind: "param_grad", label: "(root) param_grad [w]" },
    { module: "c", kind: "output", label: "c output call 2" },
  ],
  steps: [8, 9, 11],
  stats: {
    count: [
      [8, 8, "NaN"],
      [8, "NaN", "NaN"],
      [8, 8, "NaN"],
    ],
    nan: [
      [0, 0, "NaN"],
      [0, "NaN", "NaN"],
      [3, 0, "NaN"],
    ],
    inf: [
      [0, 0, "NaN"],
      [0, "NaN", "NaN"],
      [0, 2, "NaN"],
    ],
    rms: [
      [1, 4, "NaN"],
      [2, "NaN", "NaN"],
      [3, 6, "NaN"],
    ],
  },
};

test("a tensor has the steps in which it was captured, and one that never was has no line", () => {
  const lines = linesOf(evidence, "rms");
  assert.deepEqual(
    lines.map(({ name, first }) => [name, first]),
    [
      ["b activation", [8, 9, 11]],
      ["(root) weight gradient [w]", [8, 11]],
    ],
  );
});

test("a value that includes non-finite ones is marked, not drawn", () => {
  const [culprit, other] = linesOf(evidence, "rms");
  assert.deepEqual(culprit.mean, [1, 2, NaN]);
  assert.deepEqual(
    [culprit.nonfinite, culprit.infinite],
    [
      [0, 0, 3],
      [true, true, false],
    ],
  );
  assert.deepEqual(
    [other.mean, other.nonfinite, other.infinite],
    [
      [4, NaN],
      [0, 2],
      [true, true],
    ],
  );
});

test("counts are drawn unscaled", () => {
  const [culprit] = linesOf(evidence, "nan");
  assert.deepEqual(
    [culprit.mean, culprit.nonfinite],
    [
      [0, 0, 3],
      [0, 0, 0],
    ],
  );
});

test("the culprit is the solid line", () => {
  assert.deepEqual(
    linesOf(evidence, "rms").map(({ dashed }) => dashed),
    [false, true],
  );
});
