import assert from "node:assert/strict";
import { test } from "node:test";

import { shapeOf } from "../../app/static/js/spark.js";

const heights = (line) => line.map(([, y]) => y);

test("a rising line goes up from the left to the right", () => {
  const [line] = shapeOf([1, 2, 3], 60, 20).lines;
  assert.equal(line.length, 3);
  assert.ok(line[0][1] > line[1][1] && line[1][1] > line[2][1]);
  assert.ok(line[0][0] < line[1][0] && line[1][0] < line[2][0]);
});

test("a line that ends in NaN keeps its last finite stretch and ends with a mark", () => {
  const shape = shapeOf([1, 2, 3, NaN, NaN], 60, 20);
  assert.equal(shape.lines.length, 1);
  assert.deepEqual(shape.end, shape.lines[0].at(-1));
  assert.equal(shape.strips.length, 1);
  assert.equal(shape.strips[0][2], false);
});

test("a NaN in between parts the line and is no end", () => {
  const shape = shapeOf([1, 2, NaN, 3, 4], 60, 20);
  assert.equal(shape.lines.length, 2);
  assert.equal(shape.end, null);
  assert.equal(shape.strips.length, 1);
});

test("an infinity is told apart from a NaN", () => {
  assert.equal(shapeOf([1, Infinity, 2], 60, 20).strips[0][2], true);
  assert.equal(shapeOf([1, Infinity, NaN, 2], 60, 20).strips.length, 2);
});

test("a step without a value is a gap, not a NaN", () => {
  const shape = shapeOf([1, null, 2], 60, 20);
  assert.equal(shape.lines.length, 2);
  assert.equal(shape.strips.length, 0);
});

test("one NaN and one spike among ten thousand values are still to be seen", () => {
  const values = new Array(10000).fill(1);
  values[5000] = NaN;
  values[7777] = 100;
  const shape = shapeOf(values, 96, 24);
  assert.equal(shape.strips.length, 1);
  const highest = Math.min(...shape.lines.flatMap(heights));
  assert.ok(highest <= 3);
});

test("all values the same are a level line in the middle, and none are nothing", () => {
  assert.ok(new Set(heights(shapeOf([5, 5, 5], 60, 20).lines[0])).size === 1);
  assert.deepEqual(shapeOf([], 60, 20), { lines: [], strips: [], end: null });
  assert.deepEqual(shapeOf([NaN, NaN], 60, 20).lines, []);
});

test("by magnitude a decade is as high as the next, and zero stands at the foot", () => {
  const [line] = shapeOf([1e-3, 1e-2, 1e-1, 0], 90, 30, true).lines;
  const [a, b, c, zero] = heights(line);
  assert.ok(Math.abs(a - b - (b - c)) < 1e-9);
  assert.ok(zero >= a);
});

test("every point stays within its box", () => {
  const values = Array.from({ length: 777 }, (_, i) => Math.sin(i) * 1e30);
  for (const line of shapeOf(values, 50, 16).lines) for (const [x, y] of line) assert.ok(x >= 0 && x <= 50 && y >= 0 && y <= 16);
});
