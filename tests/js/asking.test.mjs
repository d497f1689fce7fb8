import assert from "node:assert/strict";
import { test } from "node:test";
import { fateOf, fateOfAll, whyGone } from "../../app/static/js/tensors/capture.js";
import { squareOf } from "../../app/static/js/tensors/rolled.js";

test("a request is sent, pending, answered, or over, by the outcome of its command", () => {
  const fate = (/** @type {string} */ outcome, kept = false) => fateOf({ outcome }, kept);
  assert.deepEqual(
    ["waiting", "received"].map((outcome) => fate(outcome)),
    ["asked", "waiting"],
  );
  for (const outcome of ["refused", "dropped", "unknown", "applied"]) assert.equal(fate(outcome), "gone");
  assert.equal(fate("received", true), "came", "its outcome comes with the next frame");
  assert.equal(fateOfAll(["came", "waiting", "asked"]), "asked");
  assert.equal(fateOfAll(["came", "waiting"]), "waiting");
  assert.equal(fateOfAll(["came", "came"]), "came");
  assert.equal(fateOfAll(["came", "gone"]), "gone");
  assert.equal(fateOfAll(["waiting", "gone"]), "waiting", "the others may still come");
});

test("a request that is over says why", () => {
  assert.equal(
    whyGone({ outcome: "refused", reason: "there is no watched module 'a'" }),
    "Not captured: there is no watched module 'a'",
  );
  assert.equal(whyGone({ outcome: "applied", reason: "a output of step 5" }), "No longer kept: a output of step 5");
});

test("image positions form a square, with or without a class token before it", () => {
  assert.deepEqual(squareOf(65), { side: 8, from: 1 });
  assert.deepEqual(squareOf(64), { side: 8, from: 0 });
  assert.equal(squareOf(60), null);
  assert.equal(squareOf(5), null);
});
