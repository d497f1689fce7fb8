import assert from "node:assert/strict";
import { test } from "node:test";
import { INFINITE, MISSING } from "../../app/static/js/canvas/columns.js";
import { isLocal, kindWords } from "../../app/static/js/format.js";
import { labelOf } from "../../app/static/js/heat/rows.js";
import { cellsOf, mostColumns, rowsOf } from "../../app/static/js/ranks/map.js";

test("values by rank become columns of bits, and non-finite words become numbers", () => {
  const bits = cellsOf([
    [1, "NaN"],
    [2, "Infinity"],
    [-3, 0.5],
  ]);
  const floats = new Float32Array(bits.buffer);
  assert.deepEqual([...floats.subarray(0, 3)], [1, 2, -3]);
  assert.deepEqual([bits[3], bits[4], floats[5]], [MISSING, INFINITE, 0.5]);
  assert.equal(cellsOf([]).length, 0);
});

test("many ranks get fewer columns", () => {
  assert.equal(mostColumns(8), 400);
  assert.ok(mostColumns(64) * 64 <= 60_000);
  assert.ok(mostColumns(1024) >= 20);
  assert.equal(mostColumns(0), 400);
});

test("ranks are rows of a heatmap", () => {
  assert.deepEqual(rowsOf([0, 5]).map(labelOf), ["rank 0", "rank 5"]);
});

test("local gradients are labeled as such if the page says so", () => {
  assert.equal(kindWords("output_grad"), "activation gradient");
  globalThis.document = { body: { dataset: { local: "output_grad" } } };
  assert.equal(kindWords("output_grad"), "activation gradient (local)");
  assert.equal(kindWords("param_grad"), "weight gradient");
  assert.ok(!isLocal(""));
  delete globalThis.document;
});
