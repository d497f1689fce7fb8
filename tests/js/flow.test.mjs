import assert from "node:assert/strict";
import { test } from "node:test";
import { MISSING, NAN } from "../../app/static/js/canvas/columns.js";
import { escaped, svgOf } from "../../app/static/js/canvas/pen.js";
import {
  barsIn,
  barsOf,
  blockMarks,
  boxesOf,
  decadesOf,
  layerAt,
  panelMarks,
  stateOf,
} from "../../app/static/js/flow/bars.js";
import { merged } from "../../app/static/js/flow/profile.js";
import { capacityOf, windowOf } from "../../app/static/js/live/subscription.js";
import { dice } from "./dice.mjs";

/** @param {string} module @param {string} [index] */
const row = (module, index = "") => ({
  number: 0,
  module,
  kind: "output",
  label: `${module} output${index && ` [${index}]`}`,
  group: 1,
});
/** @param {number[]} values */
const bitsOf = (...values) => new Uint32Array(Float32Array.of(...values).buffer);
const PAGE = {
  ink: "#000",
  quiet: "#555",
  line: "#ccc",
  card: "#fff",
  nan: "#c0a",
  inf: "#d40",
  missing: "#ccc",
  warn: "#850",
  line1: "#00f",
};

test("layers are ordered from input to output, and a gradient without activation follows the layer before it", () => {
  const layers = merged(
    ["a", "b", "c"].map((name) => row(name)),
    [row("a"), row("extra"), row("c")],
  );
  assert.deepEqual(
    layers.map(({ label, rows }) => [label, ...rows]),
    [
      ["a", 0, 0],
      ["extra", -1, 1],
      ["b", 1, -1],
      ["c", 2, 2],
    ],
  );
  assert.deepEqual(
    merged([], [row("x"), row("y", "1")]).map(({ label }) => label),
    ["x", "y [1]"],
  );
});

test("a bar shows the worst of its layers, and every layer is in a bar", () => {
  for (let seed = 0; seed < 100; seed += 1) {
    const { whole, chance } = dice(seed);
    const many = 1 + whole(4000);
    const values = bitsOf(...Array.from({ length: many }, () => chance()));
    const at = whole(many);
    values[at] = NAN;
    const bars = barsOf(values, barsIn(many, 300 + whole(900)));
    assert.equal(bars[0].from, 0);
    assert.equal(bars.at(-1)?.to, many);
    for (let place = 1; place < bars.length; place += 1) assert.equal(bars[place].from, bars[place - 1].to);
    assert.deepEqual(
      bars.filter(({ state }) => state === "nan").map(({ from, to }) => from <= at && at < to),
      [true],
    );
  }
});

test("zero, NaN, infinite and missing values look different", () => {
  assert.deepEqual([...bitsOf(0, -0, NaN, -Infinity, 1e-40), MISSING].map(stateOf), [
    "zero",
    "zero",
    "nan",
    "inf",
    "finite",
    "missing",
  ]);
});

test("the axis has whole decades around the values, and does not jump with every step", () => {
  const first = decadesOf(barsOf(bitsOf(0.02, 3, NaN, 0), 4), null);
  assert.deepEqual(first, [-2, 1]);
  assert.equal(decadesOf(barsOf(bitsOf(0.2, 3), 2), first), first);
  assert.deepEqual(decadesOf(barsOf(bitsOf(0.2, 3000), 2), first), [-1, 4]);
  assert.equal(decadesOf(barsOf(bitsOf(NaN), 1), first), first);
});

test("a non-finite bar fills its panel and has its own symbol", () => {
  const [box] = boxesOf(600, 300, 2);
  const bars = barsOf(bitsOf(1, NaN, Infinity, 0), 4);
  const marks = panelMarks(box, { title: "t", bars, decades: [-2, 2], color: PAGE.line1 }, PAGE);
  assert.ok(marks.some((mark) => mark.kind === "rect" && mark.fill === PAGE.nan && mark.h === box.h));
  for (const sign of ["\u2715", "\u25b2", "\u25cb"])
    assert.ok(marks.some((mark) => mark.kind === "text" && mark.text === sign));
  const bar = marks.find((mark) => mark.kind === "rect" && mark.fill === PAGE.line1);
  assert.ok(bar?.kind === "rect" && Math.abs(bar.h - box.h / 2) < 1);
});

test("names of blocks do not overlap, and a position maps to its layer", () => {
  const [, box] = boxesOf(500, 300, 2);
  const layers = Array.from({ length: 900 }, (_, place) => ({ module: `layers.${place >> 3}.x` }));
  const names = blockMarks(box, layers, PAGE).filter((mark) => mark.kind === "text");
  assert.ok(names.length > 3);
  for (let place = 1; place < names.length; place += 1) assert.ok(names[place].x - names[place - 1].x > 30);
  assert.deepEqual(
    [box.x, box.x + box.w / 2, box.x + box.w - 0.01, box.x - 1].map((x) => layerAt(box, 900, x)),
    [0, 450, 899, -1],
  );
});

test("names in an SVG are always escaped as text", () => {
  assert.equal(escaped('<b>&"\u0001'), "&lt;b&gt;&amp;&quot;\ufffd");
  assert.match(
    svgOf([{ kind: "text", x: 1, y: 2, text: "</text><script>", fill: "#000", align: "left" }]),
    /&lt;\/text&gt;&lt;script&gt;/,
  );
});

test("a following page requests the newest steps, and a held one those in view", () => {
  const live = /** @type {any} */ ({ paused: false, window: { live: 500 }, span: [10, 509] });
  assert.deepEqual(windowOf(live), { from: -500, columns: 500 });
  const held = /** @type {any} */ ({ paused: true, window: { live: 500 }, span: [10, 509] });
  assert.deepEqual(windowOf(held), { from: 10, to: 509, columns: 500 });
  const wide = /** @type {any} */ ({ paused: true, window: { from: 0, to: 99999 }, span: [0, 99999] });
  assert.deepEqual(windowOf(wide), { from: 0, to: 99999, columns: 2000 });
  assert.deepEqual(windowOf(wide, 10000).columns, 800);
  const [many, width] = capacityOf(wide);
  assert.ok(many * width >= 100000 && many <= 2001);
  assert.deepEqual(capacityOf(live), [501, 1]);
});
