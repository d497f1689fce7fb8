import assert from "node:assert/strict";
import { test } from "node:test";
import { Along, sideBySide, together } from "../../app/static/js/along.js";
import { axisOf, LineFigure, tracesOf } from "../../app/static/js/plot/lines.js";
import { dice } from "./dice.mjs";

/** @param {number[]} steps */
const single = (steps) => sideBySide(steps, steps);

test("captured steps stand side by side, with a mark that knows how many steps were left out", () => {
  const along = new Along(single([0, 1, 2, 34, 66, 400]), [0, 500], true);
  assert.deepEqual([along.from, along.to], [-0.5, 5.5]);
  assert.deepEqual(
    [0, 2, 34, 66, 400].map((step) => along.place(step)),
    [0, 2, 3, 4, 5],
  );
  assert.deepEqual(along.gaps, [
    { place: 2.5, many: 31 },
    { place: 3.5, many: 31 },
    { place: 4.5, many: 333 },
  ]);
  assert.equal(along.words, "31 to 333 steps left out at each mark");
  assert.deepEqual(
    [10, 50, 300].map((step) => along.place(step)),
    [2.5, 3.5, 4.5],
    "left-out steps are at their mark",
  );
});

test("a captured step comes back from its place, and a place never means a step that is left out", () => {
  for (let seed = 0; seed < 60; seed += 1) {
    const { whole, chance } = dice(seed);
    const [first, last] = [[], []];
    for (let step = whole(5), i = 0; i < 2 + whole(40); i += 1) {
      first.push(step);
      last.push(step + (chance() < 0.3 ? whole(9) : 0));
      step = last[i] + 1 + (chance() < 0.5 ? 0 : whole(50));
    }
    const columns = sideBySide(first, last);
    const along = new Along(columns, [first[0], last[last.length - 1]], true);
    for (const [i, begin] of first.entries()) {
      for (let step = begin; step <= last[i]; step += 1) {
        const found = along.stepAt(along.share(step));
        assert.ok(found >= begin && found <= last[i], `seed ${seed}: ${step} became ${found}`);
        if (begin === last[i]) assert.equal(found, step);
      }
    }
    for (let share = 0; share <= 1; share += 0.01) {
      const step = along.stepAt(share);
      assert.ok(
        first.some((begin, i) => begin <= step && step <= last[i]),
        `seed ${seed}: step ${step} was left out`,
      );
    }
  }
});

test("a merged column is as wide as the steps that were captured in it", () => {
  const along = new Along(sideBySide([0, 256, 512, 544], [224, 480, 512, 544]), [0, 544], true);
  assert.deepEqual(
    [0, 1, 2, 3].map((i) => along.last(i)),
    [7, 15, 16, 17],
  );
  const every = new Along(sideBySide([0, 64, 128], [63, 127, 128]), [0, 128], true);
  assert.deepEqual([every.gaps, every.from, every.to], [[], -0.5, 128.5]);
});

test("by step, each step has its true place, and nothing is left out", () => {
  const along = new Along(single([0, 32, 64]), [0, 99], false);
  assert.deepEqual([along.from, along.to, along.place(32), along.gaps, along.words], [-0.5, 99.5, 32, [], ""]);
  assert.deepEqual(along.cells, [0, 99]);
});

test("the axis names round steps that were captured", () => {
  const steps = Array.from({ length: 100 }, (_, place) => place * 16);
  const named = new Along(single(steps), [0, 1599], true).ticks(6);
  assert.ok(named.every((step) => steps.includes(step)));
  assert.ok(named.includes(400), String(named));
  assert.deepEqual(new Along(null, [0, 100], false).ticks(4), [0, 50, 100]);
});

test("steps of several lines are one axis", () => {
  const columns = together([
    { first: [0, 10], last: [0, 10] },
    { first: [0, 5], last: [0, 9] },
  ]);
  assert.deepEqual(
    [0, 1, 2].map((i) => [columns.first(i), columns.last(i)]),
    [
      [0, 0],
      [5, 9],
      [10, 10],
    ],
  );
});

const COLORS = {
  line: "#111111",
  quiet: "#222222",
  ink: "#333333",
  card: "#ffffff",
  line1: "#444444",
  "line-1": "#444",
};

/** @param {boolean} packs */
function figureOf(packs) {
  const page = {
    state: { optional: () => "" },
    clock: { packs, by: "step", ticks: () => [], title: "step" },
    follow: { span: /** @type {[number, number]} */ ([0, 99]) },
  };
  const figure = new LineFigure(/** @type {any} */ (page), { title: "norm", captured: true });
  figure.take([{ name: "norm", first: [0, 1, 33, 65], last: [0, 1, 33, 65], mean: [1, 2, 3, 4] }], "");
  return figure.make(COLORS, 600, 200).traces;
}

test("no line leads across steps that were not captured, unless the axis leaves them out", () => {
  const [byStep] = figureOf(false);
  assert.deepEqual(byStep.y, [1, 2, null, 3, null, 4]);
  assert.deepEqual(byStep.marker.size, [0, 0, 0, 4, 0, 4], "a value on its own is a dot");
  const [packed, marks] = figureOf(true);
  assert.deepEqual(
    [packed.x, packed.y],
    [
      [0, 1, 2, 3],
      [1, 2, 3, 4],
    ],
  );
  assert.deepEqual(marks.x, [1.5, 2.5]);
});

test("a series that exists in every step is drawn as it is", () => {
  const drawn = { x: [0, 50], first: [0, 50], last: [0, 50], steps: { first: [0, 50], last: [0, 50] } };
  const points = { ...drawn, raw: [1, 2], smooth: [], min: [], max: [], marks: [] };
  const [line] = tracesOf(
    [{ name: "acc", first: [0, 50], last: [0, 50], mean: [1, 2] }],
    [points],
    axisOf("linear", [[1, 2]]),
    COLORS,
  );
  assert.deepEqual(line.y, [1, 2]);
});

test("the band of a value on its own is a line, and a long name of an axis is shortened to its height", () => {
  const page = { state: { optional: () => "" }, follow: { span: /** @type {[number, number]} */ ([0, 99]) } };
  const figure = new LineFigure(/** @type {any} */ (page), { title: "x".repeat(200), captured: true });
  const steps = [0, 32, 64];
  figure.take([{ name: "mean", first: steps, last: steps, mean: [1, 2, 3], min: [0, 1, 2], max: [2, 3, 4] }], "");
  const { traces, layout } = figure.make(COLORS, 600, 200);
  assert.equal(traces[0].line.width, 2);
  assert.ok(layout.yaxis.title.text.length < 40);
});
