import assert from "node:assert/strict";
import test from "node:test";
import { closedBut, compare, fold, grow, nodesOf, rowsOf, worstBelow } from "../../app/static/js/hooks/rows.js";

const all = { closed: new Set(), test: () => true, sort: null };
const paths = (shown) => shown.rows.map(({ node }) => node.path);

/** A model in torch's order: parents first. */
function random(seed, size = 60) {
  const next = () => (seed = (seed * 48271) % 2147483647);
  const modules = [{ path: "", type: "Net", parent: null }];
  const children = new Map();
  while (modules.length < size) {
    const parent = modules[next() % modules.length].path;
    const many = children.get(parent) ?? 0;
    children.set(parent, many + 1);
    const name = next() % 2 ? String(many) : "abc"[many % 3] + many;
    modules.push({ path: parent ? `${parent}.${name}` : name, type: "ABC"[next() % 3], parent });
  }
  const below = (path) =>
    modules.filter((module) => module.parent === path).flatMap((module) => [module, ...below(module.path)]);
  return [modules[0], ...below("")];
}

const blocks = [
  { path: "", type: "Net" },
  { path: "layers", type: "List" },
];
for (let block = 0; block < 6; block += 1) {
  blocks.push({ path: `layers.${block}`, type: "Block" });
  for (const name of ["attn", "attn.q", "mlp"])
    blocks.push({ path: `layers.${block}.${name}`, type: name, bad: block === 4 && name === "mlp" });
  if (block === 3) blocks.push({ path: `layers.${block}.extra`, type: "Linear" });
}

test("rows are the modules in order, each indented by its number of parents", () => {
  for (let seed = 1; seed <= 30; seed += 1) {
    const modules = random(seed);
    const shown = rowsOf(grow(modules), all);
    assert.deepEqual(
      paths(shown),
      modules.map(({ path }) => path),
    );
    assert.equal(shown.matching, modules.length);
    for (const { node, level } of shown.rows)
      assert.equal(level, node.path === "" ? 1 : node.path.split(".").length + 1);
  }
});

test("a module without its parent is below its nearest listed ancestor; without parents, its path decides", () => {
  const roots = grow([{ path: "a" }, { path: "a.b.c.d" }, { path: "x.y" }, { path: "GAN/left.0" }]);
  assert.deepEqual(
    roots.map(({ path }) => path),
    ["a", "x.y", "GAN/left.0"],
  );
  assert.deepEqual(
    roots[0].children.map(({ name }) => name),
    ["b.c.d"],
  );
  assert.equal(grow([{ path: "GAN" }, { path: "GAN/left" }, { path: "GAN/left.0" }]).length, 1);
});

test("a closed group hides exactly its descendants", () => {
  const modules = random(5);
  for (const { path } of modules) {
    const shown = paths(rowsOf(grow(modules), { ...all, closed: new Set([path]) }));
    const isBelow = (each) => (path === "" ? each !== "" : each.startsWith(`${path}.`));
    assert.deepEqual(
      shown,
      modules.map((module) => module.path).filter((each) => !isBelow(each)),
    );
  }
});

test("matches are shown with their groups, and counted without them", () => {
  for (let seed = 1; seed <= 20; seed += 1) {
    const modules = random(seed);
    const wanted = (module) => module.type === "B";
    const shown = rowsOf(grow(modules), { ...all, test: wanted });
    assert.equal(shown.matching, modules.filter(wanted).length);
    for (const { node, matches, expanded } of shown.rows) {
      assert.equal(matches, wanted(node.members[0]));
      assert.ok(matches || expanded, "a group without a match is shown for the matches in it");
    }
    assert.deepEqual(
      shown.rows.filter((row) => row.matches).map((row) => row.node.path),
      modules.filter(wanted).map(({ path }) => path),
    );
  }
});

test("position and set size are counted among the visible siblings", () => {
  const { rows } = rowsOf(grow(blocks), { ...all, test: ({ type }) => type === "mlp" });
  const groups = rows.filter(({ level }) => level === 3);
  assert.deepEqual(
    groups.map(({ place, siblings }) => [place, siblings]),
    [1, 2, 3, 4, 5, 6].map((place) => [place, 6]),
  );
});

test("identical blocks are folded, and a different one stays between them", () => {
  const folded = fold(grow(blocks));
  const rows = rowsOf(folded, all).rows.map(({ node }) => [node.path, node.members.length]);
  assert.deepEqual(rows, [
    ["", 1],
    ["layers", 1],
    ["layers.*", 3],
    ["layers.*.attn", 3],
    ["layers.*.attn.q", 3],
    ["layers.*.mlp", 3],
    ["layers.3", 1],
    ["layers.3.attn", 1],
    ["layers.3.attn.q", 1],
    ["layers.3.mlp", 1],
    ["layers.3.extra", 1],
    ["layers.*", 2],
    ["layers.*.attn", 2],
    ["layers.*.attn.q", 2],
    ["layers.*.mlp", 2],
  ]);
});

test("folding neither loses nor adds modules", () => {
  for (let seed = 1; seed <= 30; seed += 1) {
    const modules = random(seed);
    const members = nodesOf(fold(grow(modules))).flatMap((node) => node.members.map(({ path }) => path));
    assert.deepEqual(members.sort(), modules.map(({ path }) => path).sort());
  }
});

test("a closed group shows the state of its worst child, and so does a folded row", () => {
  const rank = (module) => Number(module.bad ?? false);
  const roots = grow(blocks);
  const worst = worstBelow(roots, rank);
  assert.equal(worst.get(roots[0]).module.path, "layers.4.mlp");
  const folded = fold(roots);
  const at = nodesOf(folded).findLast(({ path }) => path === "layers.*.mlp");
  assert.equal(worstBelow(folded, rank).get(at).module.path, "layers.4.mlp");
});

test("the worst rank of a node is the largest among itself and its descendants", () => {
  const modules = random(11);
  const rank = ({ path }) => (path.length * 7919) % 101;
  const roots = grow(modules);
  const worst = worstBelow(roots, rank);
  for (const node of nodesOf(roots))
    assert.equal(worst.get(node).rank, Math.max(...nodesOf([node]).map((each) => rank(each.members[0]))));
});

test("when groups open to marked modules, all of them are visible and every open group contains one", () => {
  const roots = grow(blocks);
  const marked = (module) => module.bad === true;
  const { rows } = rowsOf(roots, { ...all, closed: closedBut(roots, marked) });
  assert.ok(rows.some(({ node }) => marked(node.members[0])));
  for (const { node, expanded } of rows)
    if (expanded) assert.ok(nodesOf(node.children).some((each) => marked(each.members[0])));
});

test("sorting gives a list: numbers by size, NaN first, and missing values last in either direction", () => {
  const values = [3, NaN, undefined, -1, Infinity, "", 0];
  const modules = values.map((value, place) => ({ path: `m${place}`, value }));
  const sorted = (descending) =>
    rowsOf(grow(modules), { ...all, sort: { value: (node) => node.members[0].value, descending } }).rows.map(
      ({ node }) => node.members[0].value,
    );
  assert.deepEqual(sorted(false), [-1, 0, 3, Infinity, NaN, undefined, ""]);
  assert.deepEqual(sorted(true), [NaN, Infinity, 3, 0, -1, undefined, ""]);
  assert.ok(compare("layers.2", "layers.10") < 0);
});

test("ten thousand modules are built, folded and shown completely", () => {
  const many = random(3, 10_000);
  assert.equal(rowsOf(grow(many), all).rows.length, 10_000);
  assert.ok(rowsOf(fold(grow(many)), all).rows.length <= 10_000);
});
