import assert from "node:assert/strict";
import { test } from "node:test";
import { numberOf, urlOf } from "../../app/static/js/api.js";
import { Cursor } from "../../app/static/js/follow.js";
import { changesOf } from "../../app/static/js/hooks/capture.js";
import { Emitter, read, State, write } from "../../app/static/js/state.js";

test("a URL has values that differ from the defaults, and foreign parameters", () => {
  const defaults = { f: "", sort: "model", steps: "live:500" };
  assert.equal(write({ f: "", sort: "model", steps: "live:500" }, defaults, "?f=x"), "");
  const query = write({ f: "layers.*", sort: "value", steps: "live:500" }, defaults, "?token=1");
  assert.deepEqual(Object.fromEntries(new URLSearchParams(query)), { token: "1", f: "layers.*", sort: "value" });
  assert.deepEqual(read(query, defaults), { f: "layers.*", sort: "value", steps: "live:500" });
});

test("a parameter that the page doesn't have is an error, unless a shared chart reads it", (about) => {
  const before = Object.getOwnPropertyDescriptor(globalThis, "location");
  about.after(() => (before ? Object.defineProperty(globalThis, "location", before) : delete globalThis.location));
  Object.assign(globalThis, { location: { search: "?sort=value" }, addEventListener: () => undefined });
  const state = new State({ f: "", sort: "model" });
  assert.equal(state.get("sort"), "value");
  assert.throws(() => state.get("srot"), /no parameter srot/);
  assert.equal(state.optional("srot"), "");
});

test("a field with options is applied when an option is picked or Enter is pressed, before it loses focus", (about) => {
  const before = Object.getOwnPropertyDescriptor(globalThis, "location");
  about.after(() => (before ? Object.defineProperty(globalThis, "location", before) : delete globalThis.location));
  const history = { replaceState() {} };
  Object.assign(globalThis, { location: { search: "", pathname: "/" }, addEventListener: () => undefined, history });
  const form = new EventTarget();
  const options = [{ value: "a" }, { value: "a.b" }];
  const input = Object.assign(new EventTarget(), { name: "module", type: "text", value: "", list: { options }, form });
  const state = new State({ module: "" });
  state.bind({ querySelectorAll: () => [input] });
  const type = (value) => {
    input.value = value;
    input.dispatchEvent(new Event("input"));
    return state.get("module");
  };
  assert.deepEqual(["x", "a", "a.", "a.b", "a.b*"].map(type), ["", "a", "a", "a.b", "a.b"]);
  input.dispatchEvent(Object.assign(new Event("keydown"), { key: "Enter" }));
  assert.equal(state.get("module"), "a.b*");
  input.value = "re:a";
  form.dispatchEvent(new Event("submit"));
  assert.equal(state.get("module"), "re:a");
});

test("the cursor reports a move once, with its source", () => {
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

test("a listener can unsubscribe, even during a notification", () => {
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

test("numbers of an answer that JSON cannot represent are numbers again", () => {
  assert.deepEqual(["NaN", "Infinity", "-Infinity", 1.5, null].map(numberOf), [NaN, Infinity, -Infinity, 1.5, NaN]);
  assert.equal(urlOf("series", { tap: 0, stat: "a b", none: null, empty: "" }), "api/v1/series?tap=0&stat=a+b");
});

test("only changed settings are sent to the trainer, in the format of the API", () => {
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
