import assert from "node:assert/strict";
import { test } from "node:test";
import { fateOf, fateOfAll, missedWords } from "../../app/static/js/tensors/capture.js";
import { squareOf } from "../../app/static/js/tensors/rolled.js";

test("a request is sent, pending, answered, or impossible", () => {
  const known = { kept: new Set([1]), waiting: new Set([2]), state: "live" };
  assert.deepEqual(
    [1, 2, 3].map((number) => fateOf(number, known)),
    ["came", "asked", "waiting"],
  );
  assert.deepEqual(
    [1, 2, 3].map((number) => fateOf(number, { ...known, state: "lost" })),
    ["came", "gone", "gone"],
  );
  assert.deepEqual(
    [1, 2, 3].map((number) => fateOf(number, { ...known, state: "waiting" })),
    ["came", "asked", "waiting"],
    "its trainer may come back",
  );
  assert.equal(fateOfAll(["came", "waiting", "asked"]), "asked");
  assert.equal(fateOfAll(["came", "waiting"]), "waiting");
  assert.equal(fateOfAll(["came", "came"]), "came");
  assert.equal(fateOfAll(["came", "gone"]), "gone");
});

test("the reason for a missing tensor is given since the request, whatever the trainer's clock says", async (about) => {
  const missed = [
    { time_s: 100, module: "a", message: "a, long ago" },
    { time_s: 5, module: "a", message: "a, now" }, // its clock was set back
    { time_s: 7, module: "b", message: "b, now" },
  ];
  about.mock.method(globalThis, "fetch", async (/** @type {string} */ address) => {
    const after = Number(new URLSearchParams(address.split("?")[1]).get("after"));
    return Response.json({ events: missed.slice(after), next: missed.length });
  });
  assert.equal(await missedWords("run", "a", 1), "a, now");
  assert.equal(await missedWords("run", null, 1), "b, now");
  assert.equal(await missedWords("run", "a", 2), undefined);
});

test("image positions form a square, with or without a class token before it", () => {
  assert.deepEqual(squareOf(65), { side: 8, from: 1 });
  assert.deepEqual(squareOf(64), { side: 8, from: 0 });
  assert.equal(squareOf(60), null);
  assert.equal(squareOf(5), null);
});
