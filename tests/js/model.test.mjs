import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { runInThisContext } from "node:vm";
import { arrange, placeLevel } from "../../app/static/js/model/arrange.js";
import {
  HEAD,
  makerSize,
  OUTSIDE,
  PAD,
  readFolds,
  signOf,
  sizeOf,
  Tree,
  writeFolds,
} from "../../app/static/js/model/tree.js";
import { dice } from "./dice.mjs";

const vendored = new URL("../../app/static/vendor/dagre.min.js", import.meta.url);
const dagre = runInThisContext(`${readFileSync(vendored, "utf8")};dagre`);

/** Boxes from a nested list: `["name", ...parts]`, or a name. @param {any[]} nested
 * @param {Record<string, any>} [more] */
function modelOf(nested, more = {}) {
  const boxes = /** @type {any[]} */ ([]);
  const add = (/** @type {any} */ each, /** @type {number | null} */ inside, /** @type {string} */ path) => {
    const [name, ...parts] = [each].flat(1);
    const [kind, plain] = name.startsWith("*") ? ["repeat", name.slice(1)] : ["call", name];
    const number = boxes.length;
    const module = kind === "repeat" ? "" : path ? `${path}.${plain}` : plain;
    const box = {
      number,
      kind,
      module,
      call: 0,
      phase: "train",
      type: "Linear",
      inside,
      parts: [],
      edges: [],
      period: 1,
      computes: true,
      made_by: "",
    };
    boxes.push(Object.assign(box, more[plain]));
    box.parts = parts.map((part) => add(part, number, kind === "repeat" ? path : module));
    if (kind === "repeat") box.module = boxes[box.parts[0]].module;
    return number;
  };
  const parts = nested.map((each) => add(each, null, ""));
  return /** @type {any} */ ({ run: "r", step: 0, steps: [0], why: "", parts, edges: [], boxes, absent: [] });
}

const GPT = [
  [
    "net",
    ["tr", "wte", "wpe", ["*h", ["h.0", "ln", "attn"], ["h.1", "ln", "attn"], ["h.2", "ln", "attn"]], "ln_f"],
    "head",
  ],
];

/** @param {{x: number, y: number, w: number, h: number}} a @param {typeof a} b */
const overlap = (a, b) =>
  a.x < b.x + b.w - 0.01 && b.x < a.x + a.w - 0.01 && a.y < b.y + b.h - 0.01 && b.y < a.y + a.h - 0.01;

/** @param {number} many @param {[number, number][]} edges @param {number} [width] */
function placed(many, edges, width = 800) {
  const sizes = /** @type {[number, number][]} */ (
    Array.from({ length: many }, (_, node) => (node % (many - 1) ? [100, 50] : [0, 0]))
  );
  return { sizes, ...placeLevel(sizes, edges, width, dagre) };
}

/** @param {ReturnType<typeof placed>} level */
function assertSound({ sizes, spots, lines, width, height }, edges = /** @type {[number, number][]} */ ([])) {
  const rects = spots.map(({ x, y }, node) => ({
    x: x - sizes[node][0] / 2,
    y: y - sizes[node][1] / 2,
    w: sizes[node][0],
    h: sizes[node][1],
  }));
  for (const [at, rect] of rects.entries()) {
    assert.ok(Number.isFinite(rect.x + rect.y), `node ${at}`);
    assert.ok(
      rect.x >= -0.01 && rect.y >= -0.01 && rect.x + rect.w <= width + 0.01 && rect.y + rect.h <= height + 0.01,
      `node ${at} is outside`,
    );
    if (rect.w)
      for (const other of rects.slice(at + 1)) assert.ok(!other.w || !overlap(rect, other), `node ${at} overlaps`);
  }
  assert.equal(lines.length, edges.length);
  for (const { at, points } of lines) {
    const [source, target] = edges[at];
    assert.deepEqual(
      points.slice(0, 2).map(Math.round),
      [rects[source].x + rects[source].w, spots[source].y].map(Math.round),
    );
    assert.deepEqual(points.slice(-2).map(Math.round), [rects[target].x, spots[target].y].map(Math.round));
  }
}

/** @param {number} many @returns {[number, number][]} */
const chain = (many) => Array.from({ length: many - 1 }, (_, node) => [node, node + 1]);

test("a chain is laid out in rows, like text", () => {
  const edges = chain(12);
  const level = placed(12, edges, 500);
  assertSound(level, edges);
  const rows = new Set(level.spots.slice(1, -1).map(({ y }) => y));
  assert.equal(rows.size, 3);
  assert.ok(level.width <= 560);
});

test("parallel parts are stacked, and the next part is to the right of both", () => {
  const edges = /** @type {[number, number][]} */ ([
    [1, 3],
    [2, 3],
    [3, 4],
  ]);
  const { spots, ...rest } = placed(5, edges);
  assertSound({ spots, ...rest }, edges);
  assert.equal(spots[1].x, spots[2].x);
  assert.ok(spots[3].x > spots[1].x);
});

test("a residual connection is drawn around the parts between its ends", () => {
  const edges = /** @type {[number, number][]} */ ([
    [0, 1],
    [1, 2],
    [2, 3],
    [0, 3],
  ]);
  const level = placed(4, edges);
  assertSound(level, edges);
  const [around] = level.lines.filter(({ at }) => at === 3);
  assert.ok(around.points.length > 4);
  const bends = around.points.slice(2, -2).filter((_, axis) => axis % 2);
  for (const y of bends) assert.ok(Math.abs(y - level.spots[1].y) >= 25);
});

test("without connections, parts are placed in order, row by row", () => {
  const level = placed(10, [], 330);
  assertSound(level);
  assert.deepEqual([...new Set(level.spots.slice(1, -1).map(({ y }) => Math.round(y)))].length, 4);
});

test("networks of any shape have a position for each part and line", () => {
  for (let seed = 0; seed < 25; seed += 1) {
    const random = dice(seed).chance;
    const many = 3 + Math.floor(random() * 25);
    const edges = /** @type {[number, number][]} */ ([]);
    for (let node = 1; node < many; node += 1)
      for (let turn = 0; turn < 1 + random() * 2; turn += 1) {
        const source = Math.max(0, node - 1 - Math.floor(random() ** 3 * node));
        if (!edges.some(([one, other]) => one === source && other === node)) edges.push([source, node]);
      }
    if (seed % 5 === 0) edges.push([many - 2, Math.max(1, many - 4)]); // an edge that leads back
    assertSound(placed(many, edges), edges);
  }
});

test("dense blocks and a thousand experts are placed without exhausting the layout library", () => {
  const dense = /** @type {[number, number][]} */ ([]);
  for (let node = 1; node < 49; node += 1) for (let source = 0; source < node; source += 1) dense.push([source, node]);
  assertSound(placed(49, dense), dense);
  const fan = /** @type {[number, number][]} */ ([]);
  for (let node = 2; node < 1000; node += 1) fan.push([1, node], [node, 1000]);
  const level = placed(1002, [[0, 1], ...fan, [1000, 1001]]);
  assertSound(level, [[0, 1], ...fan, [1000, 1001]]);
  assert.ok(level.width < 10 * level.height);
});

test("boxes lie inside their container, and equal boxes have the same layout", () => {
  const tree = new Tree(modelOf(GPT));
  const open = new Set(tree.boxes.filter(({ parts }) => parts.length).map(({ number }) => number));
  const shown = tree.shown(open);
  const chained = (/** @type {readonly number[]} */ parts) =>
    /** @type {[number, number][]} */ ([
      ...parts.map((part, place) => [place ? parts[place - 1] : -1, part]),
      [parts.at(-1), -1],
    ]);
  const levels = [OUTSIDE, ...shown.filter((number) => open.has(number))].map(
    (number) =>
      /** @type {[number, any]} */ ([
        number,
        {
          parts: [...tree.partsOf(number)],
          edges: chained(tree.partsOf(number)),
          maker: number === OUTSIDE ? null : [20, 20],
        },
      ]),
  );
  const sizes = shown
    .filter((number) => !open.has(number))
    .map((number) => /** @type {[number, any]} */ ([number, sizeOf(tree, number)]));
  const { rects, lines, width, height } = arrange({ levels, sizes, width: 900 }, dagre);
  assert.deepEqual(
    rects.map(({ number }) => number).sort((a, b) => a - b),
    [...shown].sort((a, b) => a - b),
  );
  const byNumber = new Map(rects.map((rect) => [rect.number, rect]));
  for (const rect of rects) {
    const { inside } = tree.boxes[rect.number];
    const outer = inside === null ? { x: 0, y: 0, w: width, h: height } : /** @type {any} */ (byNumber.get(inside));
    assert.ok(
      rect.x >= outer.x &&
        rect.y >= outer.y &&
        rect.x + rect.w <= outer.x + outer.w &&
        rect.y + rect.h <= outer.y + outer.h,
    );
    if (inside !== null) assert.ok(rect.y >= outer.y + HEAD && rect.x >= outer.x + PAD - 0.01);
  }
  const within = (/** @type {string} */ name) => {
    const at = /** @type {number} */ (tree.numbers.get(name));
    const outer = /** @type {any} */ (byNumber.get(at));
    return tree.boxes[at].parts.map((part) => {
      const { x, y } = /** @type {any} */ (byNumber.get(part));
      return [x - outer.x, y - outer.y].map(Math.round);
    });
  };
  assert.deepEqual(within("net.tr.h.0"), within("net.tr.h.2"));
  assert.equal(lines.filter(({ at }) => at === -1).length, levels.length - 1);
  for (const { level, at, points } of lines) {
    if (level === OUTSIDE || at < 0) continue;
    const outer = /** @type {any} */ (byNumber.get(level));
    if (tree.boxes[level] && levels.find(([number]) => number === level)?.[1].edges[at][0] === -1)
      assert.equal(Math.round(points[0]), Math.round(outer.x));
  }
});

test("repeats are folded at first, and everything else is unfolded if there is room", () => {
  const tree = new Tree(modelOf(GPT));
  const names = [...tree.openAtFirst()].map((number) => tree.idOf(number));
  assert.deepEqual(names, ["net", "net.tr"]);
  const wide = new Tree(modelOf([["net", ...Array.from({ length: 30 }, (_, at) => [`b${at}`, "x", "y", "z"])]]));
  assert.ok(wide.shown(wide.openAtFirst()).length <= 61);
});

test("names are short inside a box, and a repeat is named by its ends or by its unit", () => {
  const tree = new Tree(modelOf(GPT));
  const of = (/** @type {string} */ id) => tree.titleOf(/** @type {number} */ (tree.numbers.get(id)));
  assert.equal(of("net.tr.h.0;r"), "h.0 \u2026 h.2");
  assert.equal(of("net.tr.h.1"), "h.1");
  assert.equal(of("net.tr.h.1.attn"), "attn");
  const loop = new Tree(
    modelOf([["net", ["*loop", "embed", "cell", "embed", "cell", "embed", "cell"]]], { loop: { period: 2 } }),
  );
  const [repeat] = loop.boxes.filter(({ kind }) => kind === "repeat");
  assert.equal(loop.titleOf(repeat.number), "embed \u00b7 cell");
  assert.equal(loop.typeOf(repeat.number), "Linear \u00b7 Linear");
});

test("only boxes that differ from the default are in the URL, whatever the modules are called", () => {
  const odd = modelOf([["net,;", ["-a", "x"], ["*r", ["b 1", "x"], ["b 2", "x"], ["b 3", "x"]]]]);
  odd.boxes[2].call = 3;
  odd.boxes[2].phase = "eval";
  const tree = new Tree(odd);
  assert.equal(writeFolds(tree, tree.openAtFirst()), "");
  const open = new Set([0, 3, 4]); // "-a" is closed, the repeat and its first block are open
  const text = writeFolds(tree, open);
  assert.deepEqual(readFolds(tree, new URLSearchParams({ text }).get("text") ?? ""), open);
  assert.deepEqual(readFolds(tree, "gone,-gone,,net%2C%3B.-a.x"), tree.openAtFirst());
  assert.equal(tree.idOf(2), "net%2C%3B.-a.x;3;e");
});

test("a box inside folded ones is represented by the outermost of them, and revealed by unfolding all", () => {
  const tree = new Tree(modelOf(GPT));
  const open = tree.openAtFirst();
  const attn = /** @type {number} */ (tree.numbers.get("net.tr.h.1.attn"));
  assert.equal(tree.idOf(tree.shownFor(attn, open)), "net.tr.h.0;r");
  const revealed = tree.reveal([attn], open);
  assert.equal(tree.shownFor(attn, revealed), attn);
  assert.deepEqual(tree.shown(open).includes(attn), false);
});

test("the circle of an operator names it", () => {
  assert.deepEqual(["Add", "Mul", "Cat", "UnsafeView", ""].map(signOf), ["+", "\u00d7", "cat", "view", "\u0192"]);
  assert.deepEqual(makerSize("Add"), [20, 20]);
  assert.ok(makerSize("UnsafeView")[0] > 30);
});
