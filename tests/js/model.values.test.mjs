import assert from "node:assert/strict";
import { test } from "node:test";
import { isBad, MISSING } from "../../app/static/js/canvas/columns.js";
import {
  BoxValues,
  flopsOf,
  flopsWords,
  formsOf,
  INSIDE,
  NONE,
  OWN,
  originWords,
  spreadOf,
  valueWords,
} from "../../app/static/js/model/boxes.js";
import { Ink, isDarkPixel, strokeOf } from "../../app/static/js/model/readings.js";
import { beginOf, FASTEST, Player, placeOf, SLOWEST, speedAt, speedWords } from "../../app/static/js/model/steps.js";
import { originsOf, reversed, sourcesOf, Tree } from "../../app/static/js/model/tree.js";
import { hit, neighbor, View } from "../../app/static/js/model/view.js";
import { Scale } from "../../app/static/js/scale.js";

/** @param {number[]} values including NaN and Infinity; undefined means not captured */
const bitsOf = (...values) =>
  Uint32Array.from(values, (value) =>
    value === undefined ? MISSING : new Uint32Array(Float32Array.of(value).buffer)[0],
  );

/** @param {string} module @param {string} [kind] @param {number} [call] @param {string} [phase] */
const row = (module, kind = "output", call = 0, phase = "train") => ({ module, kind, index: "", call, phase });

/** @param {number} number @param {string} module @param {number | null} inside @param {number[]} parts
 * @param {any} [more] */
const box = (number, module, inside, parts = [], more = {}) => ({
  number,
  kind: "call",
  module,
  call: 0,
  phase: "train",
  type: "Linear",
  inside,
  parts,
  edges: [],
  period: 1,
  computes: true,
  made_by: "",
  ...more,
});

/** @param {number | null} source @param {number | null} target @param {number[]} carries */
const edge = (source, target, carries) => ({ source, target, carries, guessed: false });

/** stem -> three blocks with a layer each, folded -> head */
function chained() {
  const boxes = [
    box(0, "stem", 9),
    box(1, "b.0.in", 2),
    box(2, "b.0", 8, [1], { edges: [edge(null, 1, [0]), edge(1, null, [1]), edge(null, null, [0])] }),
    box(3, "b.1.in", 4),
    box(4, "b.1", 8, [3], { edges: [edge(null, 3, [2]), edge(3, null, [3]), edge(null, null, [2])] }),
    box(5, "b.2.in", 6),
    box(6, "b.2", 8, [5], { edges: [edge(null, 5, [4]), edge(5, null, [5]), edge(null, null, [4])] }),
    box(7, "head", 9),
    box(8, "b.0", 9, [2, 4, 6], {
      kind: "repeat",
      edges: [edge(null, 2, [0]), edge(2, 4, [2]), edge(4, 6, [4]), edge(6, null, [6])],
    }),
    box(9, "", null, [0, 8, 7], { computes: false, edges: [edge(0, 8, [0]), edge(8, 7, [6]), edge(7, null, [7])] }),
  ];
  return new Tree(
    /** @type {any} */ ({ run: "r", step: 0, steps: [0], why: "", parts: [9], edges: [], boxes, absent: [] }),
  );
}

test("where non-finite values begin may be the weights of a box that has some", () => {
  const words = "All inputs are finite in this step, so the problem starts here";
  assert.equal(originWords({ parameters: 8 }), `${words}, or in the weights.`);
  assert.equal(originWords({ parameters: 0 }), `${words}.`);
});

test("a box has the values of its own tensors, or else those of its contents", () => {
  const rows = [row("stem"), row("b.0.in"), row("b.0"), row("b.1"), row("b.2"), row("head", "output", 1), row("")];
  const values = new BoxValues(chained(), rows);
  assert.deepEqual([...values.known], [OWN, OWN, OWN, NONE, OWN, NONE, OWN, NONE, INSIDE, OWN]);
  values.take(bitsOf(1, -8, 2, 3, NaN, 5, 6));
  const numbers = new Float32Array(values.bits.buffer);
  assert.deepEqual([numbers[0], numbers[1], numbers[2], numbers[9]], [1, -8, 2, 6]);
  assert.ok(Number.isNaN(numbers[8]) && isBad(values.bits[8]));
  assert.deepEqual([...values.bad].map(Boolean), [false, false, false, false, false, false, true, false, true, true]);
  assert.deepEqual(spreadOf(values, [2, 4, 6]), [2, 3]);
  values.take(null);
  assert.ok(values.bits.every((bits) => bits === MISSING) && values.bad.every((bits) => bits === 0));
});

test("the worst of several tensors of a call counts, and parameters belong to all calls", () => {
  const boxes = [box(0, "a", null), box(1, "a", null, [], { call: 1 }), box(2, "a", null, [], { phase: "eval" })];
  const tree = new Tree(/** @type {any} */ ({ parts: [0, 1, 2], edges: [], boxes, step: 0, steps: [0] }));
  const outputs = new BoxValues(tree, [row("a"), row("a"), row("a", "output", 1), row("a", "output", 0, "eval")]);
  outputs.take(bitsOf(1, -3, 0.5, Infinity));
  assert.deepEqual([...new Float32Array(outputs.bits.buffer)], [-3, 0.5, Infinity]);
  const weights = new BoxValues(tree, [row("a", "param_grad")]);
  weights.take(bitsOf(7));
  assert.deepEqual([...new Float32Array(weights.bits.buffer)], [7, 7, 7]);
});

test("non-finite values start where all inputs were finite, forward and backward", () => {
  const tree = chained();
  const sources = sourcesOf(tree);
  assert.deepEqual(sources[0], []);
  assert.deepEqual(sources[3], [2]);
  assert.deepEqual(sources[4].sort(), [2, 3]); // including what it adds
  assert.deepEqual(sources[7], [6]);
  assert.deepEqual(sources[9], [7]);
  const bad = new Set([3, 4, 5, 6, 7, 9]);
  assert.deepEqual(
    originsOf(sources, (each) => bad.has(each)),
    [3],
  );
  assert.deepEqual(
    originsOf(sources, () => false),
    [],
  );
  const backward = new Set([0, 1, 2, 3]);
  assert.deepEqual(
    originsOf(reversed(sources), (each) => backward.has(each)),
    [3],
  );
});

test("a box shows its value or says that it is unknown", () => {
  const tree = chained();
  const values = new BoxValues(tree, [row("stem"), row("b.0"), row("b.1"), row("b.2")]);
  values.take(bitsOf(0.012345, 2, 30, /** @type {any} */ (undefined)));
  assert.deepEqual(
    [0, 2, 6, 7].map((each) => valueWords(values, tree, each)),
    ["0.0123", "2", "not captured", ""],
  );
  assert.equal(valueWords(values, tree, 8), "2 to 30");
  assert.equal(valueWords(values, tree, 9), "\u2264 30");
  values.take(bitsOf(NaN, -Infinity, 1, 1));
  assert.deepEqual(
    [0, 2].map((each) => valueWords(values, tree, each)),
    ["\u2715 NaN", "\u2715 infinite"],
  );
});

test("text on a box is readable, and the width of lines shows the gradient", () => {
  const ink = new Ink(new Scale("log", 0.01, 10), { ...fakePalette() });
  const low = ink.of(bitsOf(0.01)[0]);
  const high = ink.of(bitsOf(10)[0]);
  assert.equal(low.text, "#fff");
  assert.notEqual(high.text, "#fff");
  assert.equal(ink.of(bitsOf(0.01)[0]), low);
  const scale = new Scale("log", 1e-4, 1);
  const wide = [1e-6, 1e-4, 1e-2, 1, 100].map((value) => strokeOf(bitsOf(value)[0], scale).width);
  assert.deepEqual(
    [...wide].sort((a, b) => a - b),
    wide,
  );
  assert.equal(wide[0], wide[1]);
  assert.deepEqual(
    [NaN, -Infinity, 0].map((value) => strokeOf(bitsOf(value)[0], scale).state),
    ["nan", "inf", "plain"],
  );
  assert.equal(strokeOf(MISSING, scale).state, "unknown");
  assert.equal(strokeOf(bitsOf(1)[0], null).state, "unknown");
  assert.ok(isDarkPixel(0xff000000) && !isDarkPixel(0xffffffff));
});

function fakePalette() {
  const table = Uint32Array.from({ length: 256 }, (_, at) => (0xff000000 | (at << 16) | (at << 8) | at) >>> 0);
  return /** @type {import("../../app/static/js/canvas/colors.js").Palette} */ ({
    table,
    nan: 1,
    inf: 2,
    missing: 3,
    nanHatch: 0,
    infHatch: 0,
  });
}

test("the steps play at any speed, and stop at the end", () => {
  const player = new Player();
  player.start(10, 0);
  assert.equal(player.tick(500, 8, 100), 14);
  assert.equal(player.tick(1000, 80, 100), 54);
  assert.equal(player.tick(9000, 80, 100), 99);
  assert.equal(player.playing, false);
  assert.equal(player.tick(9900, 80, 100), 99);
  assert.deepEqual([beginOf(100, 10), beginOf(100, -1), beginOf(100, 99)], [10, 0, 0]); // at the end, it starts over
  assert.deepEqual([speedAt(0), speedAt(1), speedAt(2)], [SLOWEST, FASTEST, FASTEST]);
  for (const speed of [0.5, 1, 8, 120]) assert.ok(Math.abs(speedAt(placeOf(speed)) / speed - 1) < 0.2);
  assert.deepEqual([speedWords(1), speedWords(500)], ["1 step a second", "500 steps a second"]);
});

test("the view fits the picture, keeps it visible, and zooms around a point", () => {
  const view = new View();
  view.resize(800, 600);
  view.picture = [400, 300];
  view.fit();
  assert.ok(view.scale <= 1.2 && view.isWhole);
  view.picture = [4000, 300];
  view.fit();
  assert.ok(view.scale >= 0.6 && !view.isWhole);
  view.fit(true);
  assert.ok(view.isWhole);
  const before = view.at(200, 300);
  view.zoom(3, 200, 300);
  assert.deepEqual(view.at(200, 300).map(Math.round), before.map(Math.round));
  view.move(1e6, 1e6);
  const [left, top] = view.seen;
  assert.ok(left < 0 && top < 0 && left > -view.width / view.scale && top > -view.height / view.scale);
  assert.equal(view.move(1e6, 1e6), false);
  view.show({ x: 3900, y: 100, w: 80, h: 50 });
  const [from, , to] = view.seen;
  assert.ok(from < 3900 && to > 3980);
});

test("a click hits the innermost box, and arrow keys move to the nearest box in their direction", () => {
  const rects = [
    { name: "outer", x: 0, y: 0, w: 500, h: 300 },
    { name: "a", x: 10, y: 30, w: 100, h: 50 },
    { name: "b", x: 150, y: 30, w: 100, h: 50 },
    { name: "c", x: 150, y: 130, w: 100, h: 50 },
  ];
  assert.equal(hit(rects, [20, 40])?.name, "a");
  assert.equal(hit(rects, [400, 200])?.name, "outer");
  assert.equal(hit(rects, [900, 0]), null);
  const boxes = rects.slice(1);
  assert.equal(neighbor(boxes, boxes[0], 1, 0)?.name, "b");
  assert.equal(neighbor(boxes, boxes[1], 0, 1)?.name, "c");
  assert.equal(neighbor(boxes, boxes[0], -1, 0), null);
});

test("sizes and shapes are formatted as text", () => {
  assert.deepEqual([0, 999, 1_234_567, 9.87e15].map(flopsWords), ["0 FLOP", "999 FLOP", "1.23 MFLOP", "9.87 PFLOP"]);
  const of = (/** @type {number | null} */ flops, unknown = "") =>
    flopsOf(/** @type {any} */ ({ flops, flops_unknown: unknown }));
  assert.deepEqual(
    [of(2e9), of(null, "compiled"), of(2e9, "one is compiled")],
    ["2 GFLOP", "unknown: compiled", "at least 2 GFLOP: one is compiled"],
  );
  assert.equal(
    formsOf([
      { place: "", dtype: "float32", shape: [2, 3] },
      { place: "past.0", dtype: "", shape: [] },
    ]),
    "2 \u00d7 3 float32, past.0 one value",
  );
});
