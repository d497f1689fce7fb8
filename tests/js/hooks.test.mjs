import assert from "node:assert/strict";
import { test } from "node:test";
import { hooksOf } from "../../app/static/js/hooks/lists.js";
import { applied } from "../../app/static/js/live/news.js";
import { Emitter } from "../../app/static/js/state.js";

/** A server whose trainer gets command 7 after some requests, with these events.
 * @param {import("node:test").TestContext} about @param {{name: string, message: string}[]} events
 * @param {{waits?: number, later?: {name: string, message: string}[], states?: string[]}} [how] `later`: events
 *   that arrive after a request */
function serve(about, events, { waits = 0, later = [], states = [] } = {}) {
  about.mock.method(globalThis, "setTimeout", (/** @type {() => void} */ go) => queueMicrotask(go));
  let asked = 0;
  about.mock.method(globalThis, "fetch", async (/** @type {string} */ address) => {
    const query = new URLSearchParams(address.split("?")[1]);
    if (address.includes("events")) {
      const [after, limit] = [Number(query.get("after")), Number(query.get("limit"))];
      return Response.json({
        events: events.slice(after, after + limit),
        next: Math.min(events.length, after + limit),
      });
    }
    asked += 1;
    if (asked > 20) throw new Error("it asks forever");
    events.push(...later.splice(0));
    return Response.json({ waiting: asked > waits ? [] : [{ number: 7 }], state: states[asked - 1] ?? "live" });
  });
}
const page = { run: "one", events: new Emitter() };
const command = { number: 7, names: ["every", "budget"], from: 0 };

test("a change is recognized as applied after any number of events, even if applied in parts", async (about) => {
  const events = Array.from({ length: 12_500 }, () => ({ name: "nonfinite", message: "loss: NaN" }));
  events.push({ name: "settings-changed", message: "every: 1 -> 2" });
  events.push({ name: "settings-changed", message: "budget: 0.05 -> null; kinds: [] -> []" });
  serve(about, events);
  await applied(page, command, () => {});
});

test("a refusal belongs to a change if it names its settings and the change is no longer pending", async (about) => {
  const refused = (/** @type {string} */ names) => ({ name: "settings-refused", message: `${names}: no` });
  const done = { name: "settings-changed", message: "every: 1 -> 2; budget: 0.05 -> null" };
  serve(about, [refused("include"), refused("every"), done]);
  await applied(page, command, () => {});
  serve(about, [refused("every, budget")], { waits: 1, later: [done] }); // from an earlier reader
  await applied(page, command, () => {});
  serve(about, [refused("budget, every")]);
  await assert.rejects(
    applied(page, command, () => {}),
    /The trainer refused budget, every: no/,
  );
});

test("a change of an ended run is settled when the last events have arrived", async (about) => {
  serve(about, [{ name: "settings-changed", message: "include: [] -> []" }], { states: ["live", "ended", "ended"] });
  await assert.rejects(
    applied(page, command, () => {}),
    /The run is ended now/,
  );
});

test("all hooks are exported, however many there are", async (about) => {
  const all = Array.from({ length: 25_000 }, (_, number) => ({ number }));
  about.mock.method(globalThis, "fetch", async (/** @type {string} */ address) => {
    const asked = new URLSearchParams(address.split("?")[1]);
    const [after, end] = [Number(asked.get("after")), Number(asked.get("after")) + Number(asked.get("limit"))];
    return Response.json({ hooks: all.slice(after, end), next: end < all.length ? end : null });
  });
  assert.deepEqual(await hooksOf("one"), all);
});
