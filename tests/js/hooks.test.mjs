import assert from "node:assert/strict";
import { test } from "node:test";
import { applied } from "../../app/static/js/live/news.js";
import { Emitter } from "../../app/static/js/state.js";

const page = { run: "one", events: new Emitter() };

/** A server that knows more of a command at each request.
 * @param {import("node:test").TestContext} about @param {{outcome: string, reason?: string}[]} outcomes */
function serve(about, outcomes) {
  about.mock.method(globalThis, "setTimeout", (/** @type {() => void} */ go) => queueMicrotask(go));
  about.mock.method(globalThis, "fetch", async (/** @type {string} */ address) => {
    const number = Number(new URLSearchParams(address.split("?")[1]).get("numbers"));
    return Response.json({ outcomes: [{ number, reason: "", ...outcomes.shift() }] });
  });
}

test("a change is waited for until its own outcome is known, with the reason", async (about) => {
  const words = [];
  const waits = { outcome: "received", reason: "no step is running" };
  serve(about, [{ outcome: "waiting" }, { outcome: "received" }, waits, { outcome: "applied" }]);
  await applied(page, 7, (why) => words.push(why));
  assert.deepEqual(words, ["Waiting: no step is running"]);
});

test("a change that was not applied says why", async (about) => {
  for (const [outcome, words] of Object.entries({
    refused: "The trainer refused the change: because",
    superseded: "Another change replaced yours: because",
    dropped: "The server dropped the change: because",
    unknown: "It is unknown whether the change was applied: because",
  })) {
    serve(about, [{ outcome, reason: "because" }]);
    await assert.rejects(
      applied(page, 7, () => {}),
      { message: words },
    );
  }
});
