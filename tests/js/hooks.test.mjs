import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";
import { choose, globOf } from "../../app/static/js/hooks/dryRun.js";
import { literal, patternsOf, switched } from "../../app/static/js/hooks/switch.js";
import { fold, grow, rowsOf } from "../../app/static/js/treeRows.js";

const modules = [
  ["", "Net", null],
  ["layers", "Sequential", ""],
  ["layers.0", "Block", "layers"],
  ["layers.0.attn", "Attention", "layers.0"],
  ["layers.1", "Block", "layers"],
  ["layers.1.attn", "Attention", "layers.1"],
  ["layers.10", "Linear", "layers"],
  ["head", "Linear", ""],
].map(([path, type, parent]) => ({ path, type, parent }));
const cases = JSON.parse(readFileSync(new URL("pattern_cases.json", import.meta.url), "utf8"));
const chosen = (wanted, of = modules) => [...choose(of, wanted).paths];
const rowOf = (path, { closed = [], of = modules, folded = false } = {}) => {
  const roots = folded ? fold(grow(of)) : grow(of);
  return rowsOf(roots, { closed: new Set(closed), test: () => true, sort: null }).rows.find(
    ({ node }) => node.path === path,
  );
};

for (const [include, exclude, wanted] of cases) {
  test(`include ${JSON.stringify(include)} and exclude ${JSON.stringify(exclude)} choose what the trainer chooses`, () => {
    assert.deepEqual(chosen({ include, exclude }), wanted);
  });
}

test("what the trainer would refuse is told before", () => {
  assert.deepEqual(choose(modules, { include: "nothing.*\nhead", exclude: "" }).unmatched, ["nothing.*"]);
  assert.match(choose(modules, { include: "re:(", exclude: "" }).problem, /not a regular expression/);
  assert.match(choose(modules, { include: "", exclude: "is:odd" }).problem, /is:leaf or is:root/);
  assert.equal(choose(modules, { include: "type:Linear", exclude: "" }).unsure, true);
});

test("of several roots a pattern speaks of the path below each", () => {
  const two = [
    ["left", null],
    ["left/0", "left"],
    ["left/0.a", "left/0"],
    ["right", null],
    ["right/0", "right"],
  ].map(([path, parent]) => ({ path, parent, type: "M" }));
  assert.deepEqual(chosen({ include: "0", exclude: "" }, two), ["left/0", "right/0"]);
  assert.deepEqual(chosen({ include: "", exclude: "is:root" }, two), ["left/0", "left/0.a", "right/0"]);
  assert.deepEqual(patternsOf(rowOf("left/0", { of: two }), two), ["0"]);
});

test("a path with signs of a glob in it means itself alone", () => {
  for (const path of ["a[0].b", "a*b", "what?", "[x]", "a]b"]) {
    const pattern = globOf(literal(path));
    assert.ok(pattern.test(path));
    for (const other of ["a0.b", "axb", "whaty", "x", "ab"]) assert.ok(!pattern.test(other), `${path} is not ${other}`);
  }
});

test("one module switched off and on again leaves no pattern behind", () => {
  for (const { path } of modules) {
    const patterns = patternsOf(rowOf(path), modules);
    const off = switched(modules, { include: "", exclude: "" }, patterns, false, path);
    assert.deepEqual(
      chosen(off),
      modules.map((module) => module.path).filter((each) => each !== path),
    );
    const on = switched(modules, off, patterns, true, path);
    assert.deepEqual([on.include, on.exclude, on.blocked], ["", "", ""]);
  }
});

test("a closed group is switched with all below it", () => {
  const off = switched(
    modules,
    { include: "", exclude: "" },
    patternsOf(rowOf("layers.0", { closed: ["layers.0"] }), modules),
    false,
    "layers.0",
  );
  assert.deepEqual(chosen(off), ["", "layers", "layers.1", "layers.1.attn", "layers.10", "head"]);
});

test("a folded row is switched in all its blocks, and in nothing else", () => {
  const row = rowOf("layers.*.attn", { folded: true });
  const off = switched(
    modules,
    { include: "", exclude: "" },
    patternsOf(row, modules),
    false,
    row.node.members[0].path,
  );
  assert.deepEqual(chosen(off), ["", "layers", "layers.0", "layers.1", "layers.10", "head"]);
});

test("a folded row that is one part of its numbers is switched path by path", () => {
  const more = [
    ...modules,
    { path: "layers.2", type: "Other", parent: "layers" },
    { path: "layers.3", type: "Block", parent: "layers" },
    { path: "layers.3.attn", type: "Attention", parent: "layers.3" },
  ];
  const of = [...more].sort((one, two) => one.path.localeCompare(two.path)).filter(({ path }) => path !== "layers.10");
  const row = rowOf("layers.*.attn", { of, folded: true });
  assert.equal(row.node.members.length, 2);
  assert.deepEqual(patternsOf(row, of), ["layers.0.attn", "layers.1.attn"]);
});

test("what is not included is included when it is switched on, and taken out when it is switched off", () => {
  const on = switched(modules, { include: "head", exclude: "" }, ["layers.0"], true, "layers.0");
  assert.deepEqual(chosen(on), ["layers.0", "head"]);
  assert.deepEqual(switched(modules, on, ["layers.0"], false, "layers.0"), {
    include: "head",
    exclude: "",
    blocked: "",
  });
});

test("the last included pattern stays, since without any everything would be watched", () => {
  const off = switched(modules, { include: "head", exclude: "" }, ["head"], false, "head");
  assert.deepEqual(chosen(off), []);
});

test("a wider pattern that keeps a module off is named, and stays", () => {
  const before = { include: "", exclude: "layers.*" };
  const on = switched(modules, before, ["layers.0"], true, "layers.0");
  assert.equal(on.blocked, "layers.*");
  assert.deepEqual({ include: on.include, exclude: on.exclude }, before);
});
