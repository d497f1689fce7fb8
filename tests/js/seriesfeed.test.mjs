import assert from "node:assert/strict";
import { mock, test } from "node:test";
import { Follow } from "../../app/static/js/follow.js";
import { SeriesFeed } from "../../app/static/js/layer/charts.js";
import { Emitter } from "../../app/static/js/state.js";

test("a whole live run is loaded again, in fewer points, when its new points are too many", async (t) => {
  const before = globalThis.document;
  globalThis.document = Object.assign(new EventTarget(), { hidden: false });
  t.after(() => {
    globalThis.document = before;
    mock.restoreAll();
  });
  t.mock.timers.enable({ apis: ["setTimeout"] });
  let clock = 0;
  mock.method(performance, "now", () => clock);
  const get = (name) => ({ steps: "all", step: "", smooth: "0" })[name] ?? "";
  const state = Object.assign(new Emitter(), { defaults: { steps: "all", step: "" }, get, optional: get });
  const follow = new Follow(state, 999);
  const asked = [];
  t.mock.method(globalThis, "fetch", async (url) => {
    const from = Number(new URL(url, "http://x/").searchParams.get("from"));
    asked.push(from);
    const steps = Array.from({ length: follow.newest + 1 - from }, (_, place) => from + place);
    const values = steps.map(() => 1);
    const series = { name: "rms", tap: { number: 0 }, first_step: steps, last_step: steps, mean: values };
    return Response.json({ series: [{ ...series, min: values, max: values, nonfinite: values.map(() => 0) }] });
  });
  const pass = async () => {
    clock += 10_000;
    t.mock.timers.tick(10_000);
    for (let turn = 0; turn < 50; turn += 1) await new Promise((go) => setImmediate(go));
  };
  const feed = new SeriesFeed({ run: "r", state, follow });
  feed.show([{ taps: [0], stats: ["rms"] }]);
  await pass();
  for (const step of [1500, 4000, 4010]) {
    follow.saw(step);
    await pass();
  }
  assert.deepEqual(asked, [0, 999, 1500, 0]);
});
