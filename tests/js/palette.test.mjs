import assert from "node:assert/strict";
import { test } from "node:test";
import { inTurn } from "../../app/static/js/dom.js";
import { rank, unique } from "../../app/static/js/palette.js";

const NAMES = [
  "Gradient flow",
  "Copy a link to this view",
  "Layer",
  "Export: Overlay",
  "flow.attn",
  "Reset zoom",
  "Zoom in",
];
const entries = NAMES.map((name) => ({ name }));
const found = (text, most = 10) => rank(text, entries, most).map(({ name }) => name);

test("names that start with the word come first, then names with such a word inside, then the rest", () => {
  assert.deepEqual(found("zoom"), ["Zoom in", "Reset zoom"]);
  assert.deepEqual(found("flow"), ["flow.attn", "Gradient flow"]);
  assert.deepEqual(found("lay"), ["Layer", "Export: Overlay"]);
});

test("every word must match, in any order and in upper or lower case", () => {
  assert.deepEqual(found("VIEW copy"), ["Copy a link to this view"]);
  assert.deepEqual(found("view nothing"), []);
});

test("without words the order stays, and the number of results is limited", () => {
  assert.deepEqual(found("  ", 3), NAMES.slice(0, 3));
});

test("punctuation in a query is literal", () => {
  assert.deepEqual(found("n.a"), []);
  assert.deepEqual(found("w.at"), ["flow.attn"]);
  assert.deepEqual(found("["), []);
});

test("words in other languages match at their start too", () => {
  const names = [{ name: "naïveté" }, { name: "a ïb" }];
  assert.deepEqual(rank("ï", names, 5), [names[1], names[0]]);
});

test("other words find an entry too, after those that have them in their names", () => {
  const pages = [{ name: "Model", words: "experts routers" }, { name: "Dead expert" }, { name: "Flow", words: "" }];
  assert.deepEqual(rank("expert", pages, 5), [pages[1], pages[0]]);
  assert.deepEqual(rank("model rout", pages, 5), [pages[0]]);
  assert.deepEqual(rank("attention", pages, 5), []);
});

test("of entries with the same name, the first one stays", () => {
  assert.deepEqual(unique([{ name: "Fold", keys: "o" }, { name: "fold" }, { name: "Fit" }]), [
    { name: "Fold", keys: "o" },
    { name: "Fit" },
  ]);
});

test("what stands between backticks is code, and a backtick alone is text", () => {
  assert.deepEqual(inTurn("try `attn`."), ["try ", "attn", "."]);
  assert.deepEqual(inTurn("`a` and `b"), ["", "a", " and `b"]);
  assert.deepEqual(inTurn("plain"), ["plain"]);
});
