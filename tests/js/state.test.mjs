import assert from "node:assert/strict";
import { test } from "node:test";
import { numberOf, urlOf } from "../../app/static/js/api.js";
import { Cursor } from "../../app/static/js/cursor.js";
import { Emitter } from "../../app/static/js/events.js";
import { Follow, readSteps } from "../../app/static/js/follow.js";
import { changesOf } from "../../app/static/js/hooks/changes.js";
import { stepsOf } from "../../app/static/js/page.js";
import { read, State, write } from "../../app/static/js/state.js";

class FakeState extends Emitter {
  defaults = { step: "" };
  values = { steps: "live:500", step: "" };
  get(name) {
    return this.values[name];
  }
  set(changes) {
    Object.assign(this.values, changes);
    for (const name of Object.keys(changes)) this.emit(name);
  }
}

test("an address holds what differs from the defaults, and what is not ours", () => {
  const defaults = { f: "", sort: "model", steps: "live:500" };
  assert.equal(write({ f: "", sort: "model", steps: "live:500" }, defaults, "?f=x"), "");
  const query = write({ f: "layers.*", sort: "value", steps: "live:500" }, defaults, "?token=1");
  assert.deepEqual(Object.fromEntries(new URLSearchParams(query)), { token: "1", f: "layers.*", sort: "value" });
  assert.deepEqual(read(query, defaults), { f: "layers.*", sort: "value", steps: "live:500" });
});

test("a parameter that the page doesn't have is an error, unless a shared chart asks for it", (about) => {
  const before = Object.getOwnPropertyDescriptor(globalThis, "location");
  about.after(() => (before ? Object.defineProperty(globalThis, "location", before) : delete globalThis.location));
  Object.assign(globalThis, { location: { search: "?sort=value" }, addEventListener: () => undefined });
  const state = new State({ f: "", sort: "model" });
  assert.equal(state.get("sort"), "value");
  assert.throws(() => state.get("srot"), /no parameter srot/);
  assert.equal(state.optional("srot"), "");
});

test("steps are a live window or a range, and anything else is the usual window", () => {
  assert.deepEqual(readSteps("live:200"), { live: 200 });
  assert.deepEqual(readSteps("1000-1500"), { from: 1000, to: 1500 });
  for (const wrong of ["", "live:", "9-3", "x", "1-", "-5"]) assert.deepEqual(readSteps(wrong), { live: 500 });
});

test("a held page keeps its steps and counts the new ones; back to live it shows them", () => {
  const follow = new Follow(new FakeState(), 100);
  assert.equal(follow.paused, false);
  follow.hold();
  follow.saw(110);
  follow.saw(105);
  assert.deepEqual([follow.paused, follow.step, follow.waiting, follow.newest], [true, 100, 10, 110]);
  assert.deepEqual(follow.span, [0, 100]);
  follow.live();
  assert.deepEqual([follow.paused, follow.step, follow.waiting], [false, 110, 0]);
  follow.zoom(20.4, 50.6);
  assert.deepEqual([follow.paused, follow.span], [true, [20, 51]]);
});

test("a page that was opened held shows the step it is held at, and what came until it was opened", () => {
  const state = new FakeState();
  state.values.step = "30";
  assert.deepEqual(new Follow(state, 59).span, [0, 59]);
  assert.deepEqual(new Follow(state, 10_000).span, [30, 529]);
  assert.deepEqual(new Follow(state, null).span, [0, 30]);
});

test("a page about certain steps is neither held nor live", () => {
  const state = new FakeState();
  state.defaults = { step: "40" };
  Object.assign(state.values, { step: "40", steps: "1-90" });
  const follow = new Follow(state, 100);
  follow.saw(110);
  assert.deepEqual([follow.fixed, follow.paused, follow.waiting, follow.span], [true, false, 0, [1, 90]]);
});

test("the cursor tells a move once, with who moved it", () => {
  const cursor = new Cursor();
  const told = [];
  const chart = {};
  cursor.on("move", (point) => told.push(point));
  cursor.move({ module: "a", step: 3 }, chart);
  cursor.move({ module: "a", step: 3 });
  cursor.clear();
  assert.equal(told.length, 2);
  assert.equal(told[0].source, chart);
  assert.equal(told[1].module, null);
});

test("who listens can stop, also while it is told", () => {
  const told = new Emitter();
  const heard = [];
  const end = told.on("x", () => {
    heard.push(1);
    end();
  });
  told.on("x", () => heard.push(2));
  told.emit("x");
  told.emit("x");
  assert.deepEqual(heard, [1, 2, 2]);
});

test("numbers of an answer that JSON cannot hold are numbers again", () => {
  assert.deepEqual(["NaN", "Infinity", "-Infinity", 1.5, null].map(numberOf), [NaN, Infinity, -Infinity, 1.5, NaN]);
  assert.equal(urlOf("series", { tap: 0, stat: "a b", none: null, empty: "" }), "api/v1/series?tap=0&stat=a+b");
});

test("only what was changed is asked of the trainer, as the interface takes it", () => {
  const before = { every: "1", budget: "5", kinds: ["output"], include: "", exclude: "" };
  assert.deepEqual(changesOf(before, before), {});
  assert.deepEqual(changesOf(before, { ...before, every: "01", budget: "5.0", exclude: " \n" }), {});
  const wanted = {
    every: "10",
    budget: "",
    kinds: ["output", "update"],
    include: "blocks.*\n\n type:Linear ",
    exclude: "head",
  };
  assert.deepEqual(changesOf(before, wanted), {
    every: 10,
    budget: null,
    kinds: ["output", "update"],
    include: ["blocks.*", "type:Linear"],
    exclude: ["head"],
  });
  assert.deepEqual(changesOf(before, { ...before, budget: "0.7" }), { budget: 0.007 });
  assert.deepEqual(changesOf({ ...before, include: "a" }, before), { include: null });
});

test("a finished run is shown whole and a live one by its newest steps", () => {
  assert.equal(stepsOf("live", "0", "9000"), "live:500");
  assert.equal(stepsOf("ended", "0", "699"), "live:700");
  assert.equal(stepsOf("crashed", "100", "129"), "live:30");
  assert.equal(stepsOf("ended", "", ""), "live:500");
  assert.equal(stepsOf("kept", "5", "5"), "live:2");
});
