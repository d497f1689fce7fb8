import assert from "node:assert/strict";
import { test } from "node:test";
import { get } from "../../app/static/js/api.js";
import { failedWords } from "../../app/static/js/live/refresh.js";

test("a proxy's error page is an error with its status, even if it isn't JSON", async (t) => {
  const page = () => new Response("<h1>Bad Gateway</h1>", { status: 502, headers: { "Content-Type": "text/html" } });
  t.mock.method(globalThis, "fetch", async () => page());
  await assert.rejects(get("runs"), { status: 502, message: "the server answered 502" });
});

test("a chart says that the dashboard is away, and promises values only if they are requested again", async (t) => {
  t.mock.method(globalThis, "fetch", async () => {
    throw new TypeError("Failed to fetch");
  });
  const error = await get("runs").catch((each) => each);
  assert.equal(failedWords(error), "The dashboard isn\u2019t responding. Values appear when it is back.");
  assert.equal(failedWords({ status: 503, message: "busy" }), "busy. The chart will retry.");
  assert.equal(failedWords({ status: 404, message: "there is no such tap" }), "there is no such tap");
});
