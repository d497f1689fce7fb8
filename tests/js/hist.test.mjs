import assert from "node:assert/strict";
import { test } from "node:test";
import { Along, sideBySide } from "../../app/static/js/along.js";
import { stopAt } from "../../app/static/js/canvas/columns.js";
import { levelOf, paint, STRIP } from "../../app/static/js/histograms/paint.js";
import { heightOf, heightsOf } from "../../app/static/js/histograms/profile.js";
import {
  barsOf,
  binAt,
  columnAt,
  extentOf,
  say,
  shapeOf,
  stopsOf,
  tableOf,
} from "../../app/static/js/histograms/shape.js";
import { Scale, ticks } from "../../app/static/js/scale.js";

const EDGES = [-1, -0.1, -0.01, -1e-17, 1e-17, 0.01, 0.1, 1];

/** @param {number[]} first @param {number[][]} counts @param {Record<string, number[]>} [others] */
function answer(first, counts, others = {}) {
  const none = first.map(() => 0);
  return {
    first_step: first,
    last_step: first,
    edges: EDGES,
    counts,
    nan: none,
    negative_infinity: none,
    positive_infinity: none,
    ...others,
  };
}

const PALETTE = {
  table: Uint32Array.from({ length: 256 }, (_, level) => 1000 + level),
  nan: 1,
  inf: 2,
  missing: 3,
  nanHatch: 4,
  infHatch: 5,
};
const EMPTY = 6;
const AXIS = new Scale("symlog", -1, 1, 0.01);

/** @param {{first: Float64Array, last: Float64Array}} shape @param {[number, number]} span */
const alongOf = (shape, span) => new Along(sideBySide(shape.first, shape.last), span, false);

test("places on a signed logarithmic axis ascend with the value and can be inverted", () => {
  for (const extent of [
    { small: 1e-3, negative: 1, positive: 10 },
    { small: 1e-6, negative: 0, positive: 5 },
    { small: 0.01, negative: 2, positive: 0 },
  ]) {
    const axis = new Scale("symlog", -extent.negative, extent.positive, extent.small);
    const values = [
      -extent.negative,
      -extent.small * 3,
      -extent.small / 2,
      0,
      extent.small / 2,
      extent.small * 3,
      extent.positive,
    ].filter((_value, place) => (place < 3 ? extent.negative > 0 : place < 4 || extent.positive > 0));
    const places = values.map((value) => axis.place(value));
    assert.deepEqual(
      places,
      [...places].sort((a, b) => a - b),
    );
    for (const value of values)
      if (axis.place(value) > 0 && axis.place(value) < 1)
        assert.ok(Math.abs(axis.value(axis.place(value)) - value) <= 1e-9 * Math.max(1, Math.abs(value)), `${value}`);
    assert.ok(ticks(axis).includes(0));
    assert.ok(ticks(axis).every((tick) => tick >= axis.low && tick <= axis.high));
  }
});

test("the axis includes the largest values, and the few tiny ones fall into the band around zero", () => {
  const shape = shapeOf({
    ...answer([0], [[0, 0, 0, 0, 1, 500, 499]]),
    edges: [-1, -0.1, -0.01, -1e-17, 1e-17, 0.01, 0.1, 0.83],
  });
  const extent = extentOf([shape]);
  assert.equal(extent.positive, 1);
  assert.equal(extent.negative, 0);
  assert.ok(extent.small >= 0.01 && extent.small <= 0.1);
  assert.deepEqual(extentOf([shapeOf(answer([0], [[0, 0, 0, 9, 0, 0, 0]]))]), { small: 0.1, negative: 1, positive: 1 });
});

test("bins without values are empty, uncaptured steps are blank, and the fullest bin is the brightest", () => {
  const shape = shapeOf(
    answer(
      [0, 1, 5],
      [
        [0, 0, 0, 0, 0, 10, 90],
        [0, 0, 0, 100, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 100],
      ],
    ),
  );
  const [width, height] = [6, 40];
  const pixels = new Uint32Array(width * height);
  paint(pixels, width, height, shape, AXIS, alongOf(shape, [0, 5]), PALETTE, EMPTY);
  const column = (/** @type {number} */ x) =>
    Array.from({ length: height - 2 * STRIP }, (_, y) => pixels[(y + STRIP) * width + x]);
  assert.deepEqual(new Set(column(0)), new Set([1000 + levelOf(0.9), 1000 + levelOf(0.1), EMPTY]));
  assert.equal(column(0)[0], 1000 + levelOf(0.9));
  assert.deepEqual(new Set(column(1)), new Set([1255, EMPTY]));
  assert.ok([2, 3, 4].every((x) => column(x).every((pixel) => pixel === 0)));
});

test("one non-finite column is visible, however many share a pixel", () => {
  const many = 400;
  const steps = Array.from({ length: many }, (_, step) => step);
  const one = steps.map((step) => Number(step === 137));
  for (const [name, colors, y] of /** @type {[string, number[], number][]} */ ([
    ["nan", [1, 4], 0],
    ["positive_infinity", [2, 5], 0],
    ["negative_infinity", [2, 5], 39],
  ])) {
    const shape = shapeOf(
      answer(
        steps,
        steps.map(() => [0, 0, 0, 0, 0, 0, 100]),
        { [name]: one },
      ),
    );
    const pixels = new Uint32Array(20 * 40);
    paint(pixels, 20, 40, shape, AXIS, alongOf(shape, [0, many - 1]), PALETTE, EMPTY);
    assert.ok(
      [...pixels.subarray(y * 20, (y + 1) * 20)].some((pixel) => colors.includes(pixel)),
      name,
    );
  }
  const all = shapeOf(answer([0], [[0, 0, 0, 0, 0, 0, 0]], { nan: [50] }));
  const pixels = new Uint32Array(4 * 40);
  paint(pixels, 4, 40, all, AXIS, alongOf(all, [0, 0]), PALETTE, EMPTY);
  assert.ok([...pixels.subarray(STRIP * 4, 35 * 4)].every((pixel) => pixel === 1 || pixel === 4));
});

test("the tooltip names the bin under the pointer and its share", () => {
  const shape = shapeOf(answer([4], [[0, 0, 0, 30, 0, 10, 50]], { nan: [10] }));
  assert.equal(say(shape, AXIS, { step: 4, value: 0.5 }), "step 4\n0.1 to 1: 50 of 100, 50.0%\nNaN: 10, 10.0%");
  assert.match(say(shape, AXIS, { step: 4, value: 0 }), /zero, and magnitudes up to 0.01: 30 of 100/);
  assert.match(say(shape, AXIS, { step: 9, value: 0 }), /no histogram/);
  assert.equal(binAt(shape, 7), -1);
  assert.deepEqual(tableOf(shape).rows[0], ["4", 10, 0, 0, 0, 0, 0, 30, 0, 10, 50]);
});

test("heights of a profile ascend with the share", () => {
  const shape = shapeOf(answer([0], [[0, 0, 0, 0, 0, 10, 90]]));
  const heights = heightsOf(shape, AXIS, 0, 100);
  assert.equal(heights[0], 0);
  assert.ok(heights[99] > heights[70] && heights[70] > 0);
  assert.equal(heightOf(1), 1);
  assert.equal(heightOf(0), 0);
});

test("a held step has a column only if it was captured", () => {
  const shape = shapeOf({ ...answer([0, 10, 20], [[], [], []]), last_step: [0, 14, 20] });
  assert.deepEqual(
    [0, 5, 10, 12, 15, 20, 21].map((step) => columnAt(shape, step)),
    [0, -1, 1, 1, -1, 2, -1],
  );
});

test("a held page requests bars of its step only, however many steps are shown", () => {
  assert.deepEqual(barsOf({ held: 7, span: [0, 9999] }, 240), { from: 7, to: 7, columns: 1 });
  assert.deepEqual(barsOf({ held: null, span: [0, 9999] }, 240), { from: 0, to: 9999, columns: 240 });
});

test("a click on a heatmap of histograms holds a captured step, even in a gap", () => {
  const stops = stopsOf(shapeOf(answer([0, 2, 4, 20, 22], Array(5).fill([0, 0, 0, 1, 0, 0, 0]))));
  const at = (step, by) => stopAt(stops, step, [0, 22], by);
  assert.deepEqual([at(3), at(12), at(12, -1), at(12, 1), at(22, 1)], [2, 4, 4, 20, 22]);
});
