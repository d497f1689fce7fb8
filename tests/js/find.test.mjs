import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";
import { depthOf, EVERYTHING, glob, parse } from "../../app/static/js/find.js";

const modules = [
  { path: "", type: "Net", parameters: 9, trainable: 5, captured: true },
  { path: "layers.0", type: "Block", parameters: 5, trainable: 5, captured: true },
  { path: "layers.0.attn", type: "SelfAttention", parameters: 3, trainable: 3, captured: true },
  { path: "layers.0.attn.q", type: "Linear", parameters: 3, trainable: 3, captured: true, nan: true },
  { path: "layers.0.mlp", type: "Linear", parameters: 2, trainable: 0, captured: true, dead: true },
  { path: "layers.1", type: "Block", parameters: 0, trainable: 0, coverage: { captured: false } },
  { path: "layers.1.attn", type: "SelfAttention", parameters: 0, trainable: 0, captured: false },
  { path: "head", type: "Norm", aliases: ["head.again"], parameters: 0, trainable: 0 },
];
const cases = JSON.parse(readFileSync(new URL("find_cases.json", import.meta.url), "utf8"));
const places = (found) => modules.flatMap((module, place) => (found.test(module) ? [place] : []));

for (const [text, wanted] of cases) {
  test(`“${text}” finds what it says`, () => {
    const found = parse(text);
    assert.equal(found.problem, "");
    assert.deepEqual(places(found), wanted);
  });
}

/** A glob without any expression: tried letter by letter. */
function fits(pattern, text) {
  if (!pattern) return !text;
  if (pattern[0] === "*") return fits(pattern.slice(1), text) || (text !== "" && fits(pattern, text.slice(1)));
  return (
    text !== "" &&
    (pattern[0] === "?" || pattern[0].toLowerCase() === text[0].toLowerCase()) &&
    fits(pattern.slice(1), text.slice(1))
  );
}

test("a glob is what trying letter by letter says, for many random patterns and names", () => {
  let seed = 7;
  const random = (letters, most) =>
    Array.from(
      { length: (seed = (seed * 48271) % 2147483647) % most },
      () => letters[(seed = (seed * 48271) % 2147483647) % letters.length],
    ).join("");
  let hits = 0;
  for (let round = 0; round < 20000; round += 1) {
    const [pattern, text] = [random("ab.*?[(", 6), random("aAb.[(\n", 7)];
    assert.equal(glob(pattern).test(text), fits(pattern, text), JSON.stringify([pattern, text]));
    hits += Number(fits(pattern, text));
  }
  assert.ok(hits > 200);
});

test("what cannot be read says why, and the last result stays", () => {
  const before = parse("attn");
  for (const [text, words] of [
    ["/(/", /not a regular expression/],
    ["/abc", /also ends with a slash/],
    ["is:odd", /is:frozen/],
    ["type:", /class/],
    ["depth:x", /depth:2/],
    ["x".repeat(2000), /longer/],
  ]) {
    const found = parse(text, before);
    assert.match(found.problem, words);
    assert.equal(found.test, before.test);
    assert.deepEqual(places(found), [2, 3, 6]);
  }
  assert.equal(parse("", before), EVERYTHING);
});

test("an expression whose time could double with every letter is refused, others are not", () => {
  for (const text of ["/(a+)+b/", "/(a|a)*b/", "/((ab)*c)*/", "/(x{2,})+/"])
    assert.match(parse(text).problem, /too long/);
  for (const text of ["/(a|b)c/", "/(abc)+/", "/layers\\.(1|2)\\d+/", "/[(+]*/", "/(a+)?b/", "/\\(+/"])
    assert.equal(parse(text).problem, "");
});

test("a broken expression inside of a negation is told, too", () => {
  assert.match(parse("!/(/").problem, /not a regular expression/);
});

test("depth counts the parts of a path", () => {
  assert.deepEqual(["", "a", "a.b", "a.b.c"].map(depthOf), [0, 1, 2, 3]);
});
