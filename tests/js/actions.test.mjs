import assert from "node:assert/strict";
import { test } from "node:test";
import { restore, tagsOf } from "../../app/static/js/runs/actions.js";
import { chosen } from "../../app/static/js/runs/columns.js";

test("a deleted run that is brought back is no longer hidden in the list", async (context) => {
  const asked = [];
  context.mock.method(
    globalThis,
    "fetch",
    async (url, { method }) => (asked.push([method, url]), new Response(null, { status: 204 })),
  );
  const gone = new Set(["one", "two"]);
  let refreshed = false;
  await restore("one", gone, () => (refreshed = true));
  assert.deepEqual([...gone], ["two"]);
  assert.deepEqual(asked, [["POST", "api/v1/removed-runs/one/restore"]]);
  assert.ok(refreshed);
});

test("tags are separated by commas, and each counts once", () => {
  assert.deepEqual(tagsOf(" best, my sweep,,best "), ["best", "my sweep"]);
  assert.deepEqual(tagsOf(" "), []);
});

test("a column that is chosen comes last, and without columns the choice is none", () => {
  assert.equal(chosen(["lr", "loss"], "act", true), "lr,loss,act");
  assert.equal(chosen(["lr", "loss"], "lr", false), "loss");
  assert.equal(chosen(["lr"], "lr", false), "-");
});
