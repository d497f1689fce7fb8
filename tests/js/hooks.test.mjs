import assert from "node:assert/strict";
import { test } from "node:test";

import { hooksOf } from "../../app/static/js/hooks/files.js";

test("all hooks are exported, however many there are", async (about) => {
  const all = Array.from({ length: 25_000 }, (_, number) => ({ number }));
  about.mock.method(globalThis, "fetch", async (/** @type {string} */ address) => {
    const asked = new URLSearchParams(address.split("?")[1]);
    const [after, end] = [Number(asked.get("after")), Number(asked.get("after")) + Number(asked.get("limit"))];
    return Response.json({ hooks: all.slice(after, end), next: end < all.length ? end : null });
  });
  assert.deepEqual(await hooksOf("one"), all);
});
