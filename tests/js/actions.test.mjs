import assert from "node:assert/strict";
import { test } from "node:test";
import { restore } from "../../app/static/js/runs/actions.js";

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
