import assert from "node:assert/strict";
import { test } from "node:test";
import { fateOf, fateOfAll, missedWords } from "../../app/static/js/tensors/ask.js";
import { squareOf } from "../../app/static/js/tensors/rolled.js";

test("a request is asked, waiting, came, or cannot come any more", () => {
  const known = { kept: new Set([1]), waiting: new Set([2]), state: "live" };
  assert.deepEqual(
    [1, 2, 3].map((number) => fateOf(number, known)),
    ["came", "asked", "waiting"],
  );
  assert.deepEqual(
    [1, 2, 3].map((number) => fateOf(number, { ...known, state: "lost" })),
    ["came", "gone", "gone"],
  );
  assert.equal(fateOfAll(["came", "waiting", "asked"]), "asked");
  assert.equal(fateOfAll(["came", "waiting"]), "waiting");
  assert.equal(fateOfAll(["came", "came"]), "came");
  assert.equal(fateOfAll(["came", "gone"]), "gone");
});

test("why a tensor didn't come is what was said of it, and after it was asked for", () => {
  const missed = [
    { time_s: 100, module: "a", message: "a, long ago" },
    { time_s: 205, module: "a", message: "a, now" },
    { time_s: 210, module: "b", message: "b, now" },
  ];
  assert.equal(missedWords(missed, "a", 200), "a, now");
  assert.equal(missedWords(missed, null, 200), "b, now");
  assert.equal(missedWords(missed, "a", 300), undefined);
});

test("positions of a picture are a square, with a class token before it or without", () => {
  assert.deepEqual(squareOf(65), { side: 8, from: 1 });
  assert.deepEqual(squareOf(64), { side: 8, from: 0 });
  assert.equal(squareOf(60), null);
  assert.equal(squareOf(5), null);
});
