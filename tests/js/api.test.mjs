import assert from "node:assert/strict";
import { test } from "node:test";
import { get } from "../../app/static/js/api.js";

test("a proxy's error page is an error with its status, although it isn't JSON", async (t) => {
  const page = () => new Response("<h1>Bad Gateway</h1>", { status: 502, headers: { "Content-Type": "text/html" } });
  t.mock.method(globalThis, "fetch", async () => page());
  await assert.rejects(get("runs"), { status: 502, message: "the server answered 502" });
});
