import assert from "node:assert/strict";
import { test } from "node:test";
import { Along } from "../../app/static/js/along.js";
import { Painter } from "../../app/static/js/canvas/colors.js";
import { badness, Columns, MISSING, NAN, stopAt } from "../../app/static/js/canvas/columns.js";
import { Grid, relativeTo, usualOf } from "../../app/static/js/heat/grid.js";
import { Heat } from "../../app/static/js/heat/heat.js";
import { shortened, tableOf } from "../../app/static/js/heat/picture.js";
import {
  blockOf,
  boxOf,
  groupsOf,
  labelOf,
  layOut,
  onsets,
  pixelAt,
  ROW_PX,
  sorted,
  startsOf,
  stepAt,
  xOf,
} from "../../app/static/js/heat/rows.js";
import { Screen, wordsOf } from "../../app/static/js/heat/screen.js";
import { Feed } from "../../app/static/js/live/subscription.js";
import { Scale } from "../../app/static/js/scale.js";
import { dice } from "./dice.mjs";

const PALETTE = {
  table: Uint32Array.from({ length: 256 }, (_, place) => place),
  nan: 1001,
  inf: 1002,
  missing: 1003,
  nanHatch: 1004,
  infHatch: 1005,
};

/** @param {number} first @param {ArrayLike<number>} values @param {string} [kind] */
function column(first, values, kind = "delta") {
  const floats = Float32Array.from(values);
  const bits = new Uint32Array(floats.buffer);
  return {
    kind,
    k: 1,
    n: floats.length,
    bits,
    first: [first],
    last: [first],
    nonfinite: [floats.filter((value) => !Number.isFinite(value)).length],
  };
}

/** @param {number} many */
const identity = (many) => Int32Array.from({ length: many }, (_, row) => row);

/** @param {string} module @param {number} number */
const row = (module, number) => ({ number, module, kind: "output", index: "", call: 0, phase: "train", group: 1 });

test("steps that arrived together are requested again, so that each has its own column", () => {
  const asked = [];
  const stream = {
    subscribe: (wish, handlers) => (
      Object.assign(stream, handlers), asked.push(wish), { change: (again) => asked.push(again), close() {} }
    ),
  };
  const follow = { span: null, window: { live: 500 }, paused: false, on() {} };
  new Feed({ stream, follow }, { rows: [], take() {}, setRows() {} }, () => ({ kind: "output" }));
  const delta = (first, last) => stream.frame({ kind: "delta", first: [first], last: [last] });
  delta(10, 11);
  assert.equal(asked.length, 1);
  delta(12, 400);
  delta(401, 900);
  assert.deepEqual(asked[1], asked[0]);
  assert.equal(asked.length, 2);
});

test("filling in step by step gives the same image as filling in everything at once", () => {
  for (let seed = 0; seed < 40; seed += 1) {
    const { whole, chance } = dice(seed);
    const [rows, window, pixels] = [1 + whole(40), 5 + whole(60), 4 + whole(50)];
    const columns = new Columns(rows, window + 1);
    const order = identity(rows).sort(() => chance() - 0.5);
    const starts = startsOf(rows, 1 + whole(30));
    const live = new Grid();
    live.shape(starts, order);
    for (let step = 0; step < 150; step += 1) {
      const again = step > 0 && chance() < 0.1 ? step - 1 : step;
      if (chance() < 0.85)
        live.changed(
          columns.take(
            column(
              again,
              Array.from({ length: rows }, () => (chance() < 0.01 ? NaN : chance())),
            ),
          ),
        );
      if (!columns.length || chance() < 0.3) continue;
      const span = [Math.max(0, step - window + 1), step];
      const along = new Along(columns, span, seed % 2 === 0);
      live.show(...along.cells, pixels);
      live.fill(columns, along);
      const whole_ = new Grid();
      whole_.shape(starts, order);
      whole_.show(...along.cells, pixels);
      whole_.fill(columns, along);
      for (let cell = live.shown[0] + 1; cell <= live.shown[1]; cell += 1)
        assert.deepEqual([...live.at(cell)], [...whole_.at(cell)], `seed ${seed} step ${step} cell ${cell}`);
    }
  }
});

test("one NaN among thousands of layers and steps is one whole cell in NaN's color", () => {
  for (let seed = 0; seed < 8; seed += 1) {
    const { whole, chance } = dice(seed);
    const rows = 500 + whole(4500);
    const [at, when] = [whole(rows), whole(120)];
    const columns = new Columns(rows, 121);
    for (let step = 0; step < 120; step += 1)
      columns.take(
        column(
          step,
          Float32Array.from({ length: rows }, (_, each) => (step === when && each === at ? NaN : 0.1 + chance())),
        ),
      );
    const grid = new Grid();
    grid.shape(startsOf(rows, 60 + whole(300)), identity(rows));
    grid.show(0, 119, 10 + whole(150));
    grid.fill(columns, new Along(columns, [0, 119], true));
    const [from, to] = grid.shown;
    const pixels = new Uint32Array((to - from + 1) * grid.height);
    new Painter(new Scale("log", 0.1, 1), PALETTE).paint(grid, from, to, pixels);
    assert.equal(pixels.filter((each) => each === PALETTE.nan).length, 1, `seed ${seed}`);
  }
});

test("nothing is painted where no step was captured, and no cell keeps an older value", () => {
  const columns = new Columns(1, 50);
  for (const step of [10, 20, 30]) columns.take(column(step, [step + 1]));
  const grid = new Grid();
  grid.shape(startsOf(1, 10), identity(1));
  const along = new Along(columns, [0, 99], false);
  grid.show(...along.cells, 200);
  grid.fill(columns, along);
  const pixels = new Uint32Array(100);
  new Painter(new Scale("linear", 0, 100), { ...PALETTE, table: PALETTE.table.map((place) => place + 7) }).paint(
    grid,
    0,
    99,
    pixels,
  );
  assert.deepEqual(
    [...pixels.keys()].filter((cell) => pixels[cell]),
    [10, 20, 30],
  );
  const packed = new Along(columns, [0, 99], true);
  assert.deepEqual(packed.cells, [10, 12], "three captured steps, side by side");
  grid.forget();
  grid.show(...packed.cells, 200);
  grid.fill(columns, packed);
  const values = [10, 11, 12].map((cell) => new Float32Array(grid.at(cell).slice().buffer)[0]);
  assert.deepEqual(values, [11, 21, 31]);
});

test("the color table agrees with the scale", () => {
  const { chance, pick } = dice(5);
  for (let time = 0; time < 40; time += 1) {
    const kind = pick(["log", "linear", "symlog"]);
    const low = kind === "log" ? 10 ** (-6 * chance()) : -chance();
    const scale = new Scale(kind, low, kind === "log" ? low * 1e4 : 1 + chance());
    const painter = new Painter(scale, PALETTE);
    for (let each = 0; each < 200; each += 1) {
      const floats = Float32Array.of(scale.value(chance()));
      const color = painter.color(new Uint32Array(floats.buffer)[0]);
      assert.ok(Math.abs(color - scale.place(floats[0]) * 255) <= 3, `${kind} ${low} ${floats[0]}: ${color}`);
    }
  }
});

test("the color table does not blur a narrow linear range", () => {
  const painter = new Painter(new Scale("linear", 100, 100.5), PALETTE);
  const colors = [100, 100.125, 100.25, 100.375, 100.5].map((value) =>
    painter.color(new Uint32Array(Float32Array.of(value).buffer)[0]),
  );
  assert.deepEqual(colors, [0, 64, 128, 191, 255]);
});

test("wide stretches of NaN are hatched, and every cell of them keeps NaN's own color below the hatch", () => {
  const columns = new Columns(3, 30);
  for (let step = 0; step < 20; step += 1) columns.take(column(step, [NaN, step % 2 ? Infinity : 1, Infinity]));
  const grid = new Grid();
  grid.shape(startsOf(3, 10), identity(3));
  grid.show(0, 19, 40);
  grid.fill(columns, new Along(columns, [0, 19], false));
  const [pixels, hatch] = [new Uint32Array(60), new Uint32Array(60)];
  const painter = new Painter(new Scale("log", 0.1, 1), PALETTE);
  assert.equal(painter.paint(grid, 0, 19, pixels, hatch), true);
  const rowsOf = (cells) => [0, 1, 2].map((y) => [...cells.subarray(y * 20, (y + 1) * 20)]);
  const [top, middle, low] = rowsOf(hatch);
  assert.deepEqual(top, [0, ...Array(19).fill(PALETTE.nanHatch)]);
  assert.deepEqual(new Set(middle), new Set([0]), "single cells keep the full color");
  assert.deepEqual(low, [0, ...Array(19).fill(PALETTE.infHatch)]);
  assert.deepEqual(
    rowsOf(pixels).map((row) => new Set(row).size),
    [1, 2, 1],
  );
});

test("relative to its own median, a row of small values looks normal, and non-finite values stay", () => {
  const columns = new Columns(3, 50);
  for (let step = 0; step < 40; step += 1) columns.take(column(step, [1e-8, 5, 0]));
  const convert = relativeTo(usualOf(columns));
  const bits = new Uint32Array(Float32Array.of(1e-8, 50, 0).buffer);
  const found = new Float32Array(convert(bits).slice().buffer);
  assert.ok(Math.abs(found[0]) < 0.03 && Math.abs(found[1] - 1) < 0.05 && found[2] === 0, String(found));
  assert.deepEqual([...convert(Uint32Array.of(NAN, MISSING, 0x7f800000))], [NAN, MISSING, 0x7f800000]);
});

test("rows are sorted by their first non-finite step, followed by the others in model order", () => {
  const columns = new Columns(4, 20);
  for (let step = 0; step < 10; step += 1)
    columns.take(column(step, [1, step >= 7 ? NaN : 1, step >= 3 ? Infinity : 1, 2]));
  assert.deepEqual([...onsets(columns)], [Infinity, 7, 3, Infinity]);
  assert.deepEqual([...sorted([0, 1, 2, 3], "bad", columns)], [2, 1, 0, 3]);
  assert.deepEqual([...sorted([0, 1, 2, 3], "model", columns)], [0, 1, 2, 3]);
  assert.deepEqual([...sorted([0, 3], "value", columns)], [3, 0]);
});

test("sorted by change, the row that grew or shrank most comes first", () => {
  const columns = new Columns(3, 20);
  columns.take(column(0, [1, 1, 1]));
  columns.take(column(1, [2, 0.01, 1]));
  assert.deepEqual([...sorted([0, 1, 2], "change", columns)], [1, 0, 2]);
});

test("the block of a module is the first part of its path, with a number if there are many", () => {
  assert.deepEqual(
    ["layers.12.mlp.gate", "encoder.layers.3.norm", "head", "0", "", "a.b.c.7"].map((path) => blockOf(path)),
    ["layers.12", "encoder.layers.3", "head", "0", "", "a"],
  );
  const rows = ["embed", "layers.0.a", "layers.0.b", "layers.1.a", "head"].map(row);
  assert.deepEqual(groupsOf(rows, identity(5)), [
    { name: "embed", from: 0, to: 1 },
    { name: "layers.0", from: 1, to: 3 },
    { name: "layers.1", from: 3, to: 4 },
    { name: "head", from: 4, to: 5 },
  ]);
  assert.equal(labelOf({ ...row("", 0), label: "(root) output [1] call 2 (eval)" }), "(root) [1] call 2 (eval)");
  assert.deepEqual(groupsOf(["rank 0", "rank 1"].map(row), identity(2)), []);
  const deep = ["a.b.c.7.x", "a.b.c.7.y", "a.b.c.8.x"].map(row);
  assert.deepEqual(groupsOf(deep, identity(3), 3)[0], { name: "a.b.c.7", from: 0, to: 2 });
  assert.equal(shortened("layers.12.mlp.gate_proj", 80), "\u202612.mlp.ga\u2026oj");
});

test("every row is in exactly one pixel row, wherever it is scrolled to", () => {
  const { whole } = dice(9);
  for (let time = 0; time < 200; time += 1) {
    const rows = 1 + whole(3000);
    const fit = whole(2) ? "fit" : "read";
    const layout = layOut(400 + whole(1200), 200 + whole(600), identity(rows), fit, whole(rows), 120);
    assert.equal(layout.starts[0], 0);
    assert.equal(layout.starts[layout.starts.length - 1], layout.shown.length);
    for (let y = 1; y < layout.starts.length; y += 1) assert.ok(layout.starts[y] > layout.starts[y - 1]);
    for (let each = 0; each < 5; each += 1) {
      const place = whole(layout.shown.length);
      const box = boxOf(layout, place);
      const pixel = pixelAt(layout, box.y + box.h / 2);
      assert.ok(layout.starts[pixel] <= place && place < layout.starts[pixel + 1]);
    }
    if (fit === "read")
      assert.ok(
        boxOf(layout, layout.shown.length - 1).h >= Math.min(ROW_PX, layout.plot.h / layout.shown.length) - 0.01,
      );
  }
});

test("converting a step to a place on the axis and back gives the same step", () => {
  const layout = layOut(900, 400, identity(10), "fit", 0, 120);
  for (const span of /** @type {[number, number][]} */ ([
    [0, 499],
    [1000, 1007],
    [5, 100000],
  ])) {
    for (const step of [span[0], span[1], Math.floor((span[0] + span[1]) / 2)])
      assert.equal(stepAt(layout, new Along(null, span, false), xOf(layout, new Along(null, span, false), step)), step);
  }
});

test("the badness of a missing value is below all others", () => {
  assert.ok(badness(MISSING) < badness(0));
});

/** A heatmap with one row, whose columns are step 4 and steps 8 to 15. */
function ofMergedSteps(held) {
  const columns = new Columns(1, 4, 8);
  columns.take(column(4, [1]));
  columns.take({ ...column(8, [-3]), last: [15] });
  const rows = [{ module: "a", label: "a output", type: "Linear", depth: 0, group: 1 }];
  const page = { follow: { held, step: held ?? 15 } };
  return { columns, rows, order: [0], noun: "layer", span: [0, 20], page, options: { stat: "mean" } };
}

test("a table at a held step has values of this step only", () => {
  const at = (held) => {
    const { columns, rows } = tableOf(ofMergedSteps(held));
    return [columns[2], rows[0][2]];
  };
  assert.deepEqual(
    [at(2), at(4), at(5)],
    [
      ["value", null],
      ["value", 1],
      ["value", null],
    ],
  );
  assert.deepEqual(at(9), ["largest magnitude in steps 8 to 15", -3]);
  assert.deepEqual(at(null), ["largest magnitude in steps 8 to 15", -3]);
});

test("the tooltip says if a value is the largest of several steps", () => {
  const heat = ofMergedSteps(null);
  const at = (step) => wordsOf(heat, { row: 0, step, sharing: 1 }).split("\n")[1];
  assert.equal(at(9), "steps 8 to 15 \u00b7 mean -3, the largest magnitude of these steps");
  assert.equal(at(4), "step 4 \u00b7 mean 1");
  heat.options.merged = "mean";
  assert.match(at(9), /, the mean of these steps$/);
});

/** Every tenth step from 10 to 50 was captured; steps 60 to 69 have been merged into one column. */
function sparse() {
  const columns = new Columns(1, 10);
  for (const step of [10, 20, 30, 40, 50]) columns.take(column(step, [step]));
  columns.take({ ...column(60, [60]), last: [69] });
  return columns;
}

test("a click holds the captured step before it, or else the first one, among the shown steps", () => {
  const stops = sparse();
  const at = (...given) => stopAt(stops, ...given);
  assert.deepEqual(
    [5, 10, 19, 20, 65].map((step) => at(step, [0, 99])),
    [10, 10, 10, 20, 69],
  );
  assert.deepEqual(
    [15, 25, 99].map((step) => at(step, [15, 62])),
    [20, 20, 62], // a column that ends after the shown steps counts up to their end
  );
  assert.equal(at(33, [31, 39]), 33); // none of these steps was captured
});

test("the arrow keys move a heatmap's cursor from captured step to captured step, and Enter holds one", () => {
  const picked = [];
  const heat = {
    columns: sparse(),
    span: [0, 99],
    visible: [0],
    rows: [row("a", 0)],
    options: { onPick: (_, step) => picked.push(step) },
    stopAt: Heat.prototype.stopAt,
  };
  const page = { follow: { held: null, step: 99 }, cursor: { pin() {} } };
  const screen = Object.setPrototypeOf({ heat, page }, Screen.prototype);
  let at = { row: 0, step: 34, sharing: 1 };
  screen.choose(at, { key: "Enter" }); // at the pointer
  assert.deepEqual(picked, [30]);
  const moves = [-1, -1, 1, 1, -Infinity, -1, Infinity];
  const steps = moves.map((right) => {
    at = screen.next(at, right, 0);
    return at.step;
  });
  assert.deepEqual(steps, [30, 20, 30, 40, 10, 10, 69]);
  screen.choose(at, { key: "Enter" });
  assert.deepEqual(picked, [30, 69]);
  Object.assign(page.follow, { held: 34 });
  screen.choose({ row: 0, step: 34, sharing: 1 }, { button: 0 }); // a click on the name of a layer
  assert.deepEqual(picked, [30, 69, 34]);
});
