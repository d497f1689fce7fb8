import assert from "node:assert/strict";
import { test } from "node:test";
import { sharedBy, shortened, shortPath } from "../../app/static/js/paths.js";

const fits = (/** @type {number} */ most) => (/** @type {string} */ text) => text.length <= most;

test("a long name keeps its ends", () => {
  const fits = (/** @type {number} */ most) => (/** @type {string} */ text) => text.length <= most;
  assert.equal(shortened("encoder", fits(7)), "encoder");
  const cut = shortened("transformer.h.11.mlp", fits(12));
  assert.equal(cut.length, 12);
  assert.ok(cut.startsWith("tran") && cut.endsWith("11.mlp"));
  assert.equal(shortened("abc", fits(0)), "");
});

test("a short path omits the common prefix, and keeps the numbers that distinguish layers", () => {
  const paths = Array.from(
    { length: 40 },
    (_, number) => `language_model.decoder.layers.${number}.attention.query_${number % 3}`,
  );
  const shared = sharedBy(["", ...paths].map((module) => ({ module })));
  assert.equal(shared, 3);
  assert.equal(sharedBy([{ module: "a.b" }, { module: "a.bc" }, { module: "" }]), 1);
  assert.equal(sharedBy([{ module: "a.b" }, { module: "b.b" }]), 0);
  assert.equal(shortPath(paths[12], fits(60), shared), paths[12]);
  assert.equal(shortPath(paths[12], fits(30), shared), "\u2026layers.12.attention.query_0");
  for (const most of [10, 16, 20, 28, 36, 50]) {
    const texts = paths.map((path) => shortPath(path, fits(most), shared));
    assert.equal(new Set(texts).size, paths.length, texts.join(" "));
    assert.ok(texts.every((text) => text.length <= most));
  }
  const flat = Array.from({ length: 40 }, (_, number) => `transformer_layers_${number}_attention_query_projection`);
  assert.equal(new Set(flat.map((path) => shortPath(path, fits(24)))).size, flat.length);
  assert.equal(shortPath("encoder.layers.0.linear", fits(21)), "en\u2026er.la\u2026rs.0.li\u2026ar");
  assert.equal(shortPath("w".repeat(200), fits(9)).length, 9);
});

test("axes and labels show the names that the server gave, and whole paths where it gave none", async (about) => {
  const before = globalThis.document;
  about.after(() => {
    globalThis.document = before;
  });
  const names = JSON.stringify({ shared: "inner.", spelled: { "inner.0": "0 Linear(20, 64)" } });
  globalThis.document = /** @type {any} */ ({ body: { dataset: { names } } });
  const { moduleName, tapWords } = await import("../../app/static/js/format.js?named");
  assert.deepEqual(["inner.0", "inner.h.3.attn", "inner", "outer.x", ""].map(moduleName), [
    "0 Linear(20, 64)",
    "h.3.attn",
    "inner",
    "outer.x",
    "(root)",
  ]);
  assert.equal(tapWords({ module: "inner.0", kind: "output", label: "inner.0 output" }), "0 Linear(20, 64) activation");
});
