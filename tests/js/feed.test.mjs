import assert from "node:assert/strict";
import { test } from "node:test";
import { Follow } from "../../app/static/js/follow.js";
import { Source } from "../../app/static/js/model/readings.js";
import { Emitter } from "../../app/static/js/state.js";

/** A page that shows a whole run, and its subscriptions. */
function open(held = "") {
  const values = { steps: "all", step: held };
  const state = Object.assign(new Emitter(), {
    defaults: { steps: "all", step: "" },
    get: (name) => values[name] ?? "",
  });
  const asked = [];
  const stream = {
    subscribe: (query) => {
      asked.push(query);
      return { close: () => {}, change: (other) => asked.push(other) };
    },
  };
  return { page: { state, stream, follow: new Follow(state, 100) }, asked };
}

test("a page that is held at a step subscribes once, however many steps follow", () => {
  const { page, asked } = open("50");
  const told = { rows: () => {}, frame: () => {} };
  const source = new Source(page, () => ({ kind: "output", from: 50, to: 50, columns: 1 }), told, [1, 1]);
  source.setRows([{}]);
  for (let step = 101; step < 200; step += 1) page.follow.saw(step);
  assert.equal(asked.length, 1);
});

test("a run shown as a whole is requested again when its steps no longer fit", () => {
  const { page, asked } = open();
  const source = new Source(page, () => ({ kind: "output" }), { rows: () => {}, frame: () => {} }, [120, 1]);
  source.setRows([{}]);
  for (let step = 101; step < 130; step += 1) page.follow.saw(step);
  assert.ok(asked.length > 1);
});
