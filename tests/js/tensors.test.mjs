import assert from "node:assert/strict";
import { test } from "node:test";
import { lineOf } from "../../app/static/js/tensors/capture.js";
import { indicesOf, isAttention, readNpy, sliceOf, tileNames, viewsOf } from "../../app/static/js/tensors/side.js";
import {
  besides,
  cellAt,
  cornerOf,
  isCausal,
  layoutOf,
  NONE,
  pixelsOf,
  rangeOf,
  strideOf,
  wordsAt,
} from "../../app/static/js/tensors/tiles.js";
import { zoomed } from "../../app/static/js/tensors/viewer.js";

test("the views of a tensor depend on its shape, and each view requests what it draws", () => {
  const first = (/** @type {number[]} */ shape, label = "m output", kind = "output") =>
    viewsOf(shape, { label, kind })[0];
  assert.deepEqual([first([8, 16, 32, 32]).name, first([8, 16, 32, 32]).words], ["tiles", "feature maps"]);
  assert.equal(first([8, 4, 65, 65], "blocks.0.attn output [1]").words, "attention heads");
  assert.equal(first([8, 65, 64]).name, "matrix");
  assert.equal(first([8, 65, 65], "attention output [1]").words, "attention maps");
  assert.equal(first([64, 32]).name, "matrix");
  assert.equal(first([64]).name, "trace");
  assert.equal(first([]).draws, "trace");
  assert.equal(first([32, 16, 3, 3], "stem.2 param [weight]", "param").words, "filters of one output");
  assert.equal(first([8, 16, 32, 32], "an update output").words, "feature maps", "its module is called so");
  assert.equal(sliceOf([8, 16, 32, 32], first([8, 16, 32, 32]), [5]), "5");
  assert.equal(sliceOf([8, 16, 32, 32], first([8, 16, 32, 32]), [99]), "7");
  assert.equal(sliceOf([8, 65, 64], viewsOf([8, 65, 64])[1], [2, 7]), "2,:,7");
  assert.equal(sliceOf([64, 32], first([64, 32]), [], { rows: [8, 16], columns: [0, 32] }), "8:16,0:32");
  assert.equal(sliceOf([8, 16, 32, 32], viewsOf([8, 16, 32, 32])[1], []), "");
  assert.ok(!isAttention([8, 16, 32, 32], { label: "conv output", kind: "output" }));
  assert.ok(!isAttention([4, 64, 64], { label: "attn.qkv param [weight]", kind: "param" }));
});

test("every cell of a view maps to the indices of its values in the tensor", () => {
  const shape = [3, 4, 5, 6];
  const [tiles, every] = viewsOf(shape);
  assert.deepEqual(indicesOf(shape, tiles, [2], { tile: 3, row: 1, column: 4 }, [1, 1]), ["2", "3", "1", "4"]);
  assert.deepEqual(indicesOf(shape, every, [], { tile: 9, row: 1, column: 4 }, [1, 1]), ["2", "1", "1", "4"]);
  assert.deepEqual(indicesOf(shape, tiles, [0], { tile: 0, row: 1, column: 1 }, [2, 4]), [
    "0",
    "0",
    "2\u20133",
    "4\u20135",
  ]);
  assert.deepEqual(
    indicesOf([64, 32], viewsOf([64, 32])[0], [], { tile: 0, row: 1, column: 2 }, [1, 1], {
      rows: [8, 16],
      columns: [4, 32],
    }),
    ["9", "6"],
  );
  assert.deepEqual(indicesOf([9], viewsOf([9])[0], [], { tile: 0, row: 0, column: 7 }, [1, 1]), ["7"]);
  assert.deepEqual(indicesOf([3, 5, 7], viewsOf([3, 5, 7])[1], [1, 6], { tile: 0, row: 0, column: 4 }, [1, 1]), [
    "1",
    "4",
    "6",
  ]);
});

test("tiles are next to each other without touching, inside the width, and a point finds its cell", () => {
  for (const [tiles, rows, columns] of [
    [1, 256, 64],
    [16, 32, 32],
    [64, 3, 3],
    [5, 8, 400],
    [7, 400, 8],
  ]) {
    const layout = layoutOf(700, 500, tiles, rows, columns);
    for (let tile = 0; tile < tiles; tile += 1) {
      const [left, top] = cornerOf(layout, tile);
      assert.ok(left + layout.tileWidth <= 700 && top + layout.tileHeight <= layout.height + 1);
      assert.deepEqual(
        cellAt(layout, left + layout.tileWidth - 0.5, top + layout.tileHeight - 0.5, [tiles, rows, columns]),
        { tile, row: rows - 1, column: columns - 1 },
      );
      assert.deepEqual(cellAt(layout, left, top, [tiles, rows, columns]), { tile, row: 0, column: 0 });
    }
    assert.equal(cellAt(layout, -1, 0, [tiles, rows, columns]), null);
    if (tiles > 1) assert.equal(cellAt(layout, layout.tileWidth + layout.gap / 2, 1, [tiles, rows, columns]), null);
  }
});

test("signed values get a symmetric range, and one outlier does not make everything else one color", () => {
  assert.deepEqual(rangeOf([-1, 3, NaN, Infinity], true), { low: -3, high: 3, signed: true, clipped: [false, false] });
  const values = Float32Array.from({ length: 10000 }, (_, place) => place / 10000);
  values[77] = 1e6;
  const range = rangeOf(values);
  assert.ok(range.high < 2 && range.clipped[1]);
  assert.equal(rangeOf(values, true).high, 1e6);
  assert.ok(rangeOf([2, 2, 2]).high > rangeOf([2, 2, 2]).low);
  assert.ok(rangeOf([NaN]).high > 0);
});

test("NaN, infinities and masked values have colors that no other value has", () => {
  const palette = {
    table: Uint32Array.from({ length: 256 }, (_, level) => 1000 + level),
    nan: 1,
    inf: 2,
    missing: 3,
    nanHatch: 4,
    infHatch: 5,
  };
  const pixels = pixelsOf([0, NaN, Infinity, -Infinity, 1, 0.5], 0, 2, 3, { low: 0, high: 1 }, palette, false);
  assert.deepEqual([...pixels], [1000, 1, 2, 2, 1255, 1128]);
  const causal = [1, 0, 0, 0.5, 0.5, 0, 0.2, 0.3, 0.5];
  assert.ok(isCausal(causal, [1, 3, 3]));
  assert.ok(!isCausal([1, 0.1, 0, 0.5, 0.5, 0, 0.2, 0.3, 0.5], [1, 3, 3]));
  assert.ok(!isCausal(Array(9).fill(0), [1, 3, 3]));
  assert.equal(pixelsOf(causal, 0, 3, 3, { low: 0, high: 1 }, palette, true)[1], 3);
});

test("a NumPy file of either float width is read", () => {
  for (const [type, Kind] of /** @type {[string, any][]} */ ([
    ["<f4", Float32Array],
    ["<f8", Float64Array],
  ])) {
    const text = `${`{'descr': '${type}', 'fortran_order': False, 'shape': (1, 2, 3), }`.padEnd(117)}\n`;
    const values = Kind.from([1, NaN, -Infinity, 0.5, -0, 9]);
    const head = Uint8Array.from([
      0x93,
      ...[..."NUMPY"].map((letter) => letter.charCodeAt(0)),
      1,
      0,
      118,
      0,
      ...[...text].map((letter) => letter.charCodeAt(0)),
    ]);
    const bytes = new Uint8Array(head.length + values.byteLength);
    bytes.set(head);
    bytes.set(new Uint8Array(values.buffer), head.length);
    const read = readNpy(bytes.buffer);
    assert.deepEqual(read.shape, [1, 2, 3]);
    assert.deepEqual([...read.values], [...values]);
  }
  assert.throws(() => readNpy(new TextEncoder().encode("<html>no</html>").buffer), /not send a NumPy file/);
});

test("zooming halves and doubles the view, stays inside, and ends at the whole", () => {
  assert.deepEqual(zoomed([100, 80], null, "in"), { rows: [25, 75], columns: [20, 60] });
  assert.deepEqual(zoomed([100, 80], null, "in", { row: 0, column: 79 }), { rows: [0, 50], columns: [40, 80] });
  assert.deepEqual(zoomed([100, 80], { rows: [25, 75], columns: [20, 60] }, "out"), null);
  assert.equal(zoomed([100, 80], { rows: [25, 75], columns: [20, 60] }, "whole"), null);
  let part = null;
  for (let times = 0; times < 20; times += 1) part = zoomed([100, 80], part, "in");
  assert.deepEqual([part.rows[1] - part.rows[0], part.columns[1] - part.columns[0]], [4, 4]);
  assert.equal(zoomed([3, 2], null, "in"), null);
});

test("a cell is labeled with its tokens and its sample, and several merged cells are not", () => {
  const names = {
    axes: [2, 3],
    tokens: [
      ["the", "cat"],
      ["a", "dog"],
    ],
    shared: false,
    labels: ["one", "two"],
    why: "",
  };
  assert.equal(wordsAt(names, ["1", "0", "0", "1"]), "two: a \u2192 dog");
  assert.equal(wordsAt(names, ["0", "0", "0\u20131", "1"]), "one");
  assert.equal(wordsAt({ ...names, axes: [1], labels: [] }, ["0", "1", "5"]), "cat");
  assert.equal(
    wordsAt({ ...names, shared: true, tokens: [["x", "y"]], labels: [] }, ["7", "0", "1", "0"]),
    "y \u2192 x",
  );
  assert.equal(wordsAt(NONE, ["0", "1"]), "");
  assert.equal(wordsAt(names, ["9", "0", "0", "0"]), "");
});

test("names are next to the last two dimensions of an image, starting at the first cell of its part", () => {
  const names = { ...NONE, axes: [2, 3], tokens: [["a", "b", "c", "d"]], shared: true };
  const picture = /** @type {any} */ ({ dimensions: 4, sample: 3, cells: [2, 4], factors: [1, 1], part: null });
  assert.deepEqual(besides(names, picture), { rows: ["a", "b"], columns: ["a", "b", "c", "d"] });
  const part = { rows: [2, 4], columns: [1, 3] };
  assert.deepEqual(besides(names, { ...picture, cells: [2, 2], part }), { rows: ["c", "d"], columns: ["b", "c"] });
  assert.deepEqual(besides(names, { ...picture, factors: [2, 1] }), { rows: [], columns: ["a", "b", "c", "d"] });
  assert.deepEqual(besides({ ...names, axes: [2] }, picture), { rows: ["a", "b"], columns: [] });
  assert.equal(besides({ ...names, axes: [1] }, picture), undefined);
  assert.deepEqual([strideOf(24), strideOf(12), strideOf(5)], [1, 1, 3]);
});

test("a single matrix is as wide as its place, however long it is, and a square one stays square", () => {
  const shapeOf = (/** @type {number} */ rows, /** @type {number} */ columns) => {
    const { tileWidth, tileHeight } = layoutOf(900, 520, 1, rows, columns);
    return [tileWidth, tileHeight];
  };
  assert.deepEqual(
    [shapeOf(496, 8), shapeOf(64, 64), shapeOf(1, 64)],
    [
      [900, 520],
      [520, 520],
      [900, 14],
    ],
  );
});

test("tiles are called after their dimensions, and layers are rows of heads", () => {
  const tap = { kind: "output", label: "h.0.attn output [1]" };
  const shape = [2, 4, 8, 8];
  const [heads, layers] = viewsOf(shape, tap);
  assert.equal(layers.words, "all layers by heads");
  assert.deepEqual(tileNames(shape, heads, tap, 2, 2), ["head 2", "head 3"]);
  const images = viewsOf([2, 3, 8, 8])[1];
  assert.deepEqual(
    tileNames([2, 3, 8, 8], images, { kind: "output", label: "conv" }, 4, 0).at(-1),
    "sample 1, channel 0",
  );
  const { across, head } = layoutOf(900, 520, 12, 8, 8, { head: 14, across: 4 });
  assert.deepEqual([across, head], [4, 14]);
  const layout = layoutOf(900, 520, 12, 8, 8, { head: 14, across: 4 });
  assert.equal(cornerOf(layout, 4)[1], layout.tileHeight + layout.gap + 28);
  assert.equal(cellAt(layout, 3, 5, [12, 8, 8]), null, "the name of a tile is no cell");
});

test("the line for the next run has what the form has", () => {
  assert.equal(lineOf("h.0.attn", "output", ""), 'watcher.request_snapshot("h.0.attn")');
  assert.equal(
    lineOf("fc", "param_grad", "weight"),
    'watcher.request_snapshot("fc", kind="param_grad", index="weight")',
  );
});
