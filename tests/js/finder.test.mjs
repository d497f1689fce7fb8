import assert from "node:assert/strict";
import test from "node:test";
import { ApiError } from "../../app/static/js/api.js";
import { Finder } from "../../app/static/js/finder.js";
import { Emitter } from "../../app/static/js/state.js";

const box = { textContent: "", className: "", hidden: true };
globalThis.document = { hidden: false, getElementById: () => box };

/** A page, a finder on it, and the finder's requests, which the test answers. */
function start(text = "", more = {}) {
  const state = new Emitter();
  let typed = text;
  state.get = () => typed;
  const page = { run: "one", runState: "live", state, events: new Emitter(), follow: { paused: false }, ...more };
  const asked = [];
  const ask = (path, query, signal) =>
    new Promise((answer, fail) => asked.push({ path, f: query.f, signal, answer, fail }));
  let changes = 0;
  const finder = new Finder(page, () => (changes += 1), { ask });
  return {
    page,
    finder,
    asked,
    get changes() {
      return changes;
    },
    type(next) {
      typed = next;
      state.emit("f", next);
    },
  };
}

const only = (...paths) => ({ problem: "", fits: true, paths });
const settle = () => new Promise((go) => setImmediate(go));
const timed = (name, body) =>
  test(name, async (context) => {
    context.mock.timers.enable({ apis: ["setTimeout", "setInterval"] });
    await body(context.mock.timers);
  });

timed("without a text everything matches and nothing is asked", async () => {
  const { finder, asked } = start();
  assert.ok(finder.ready && finder.fits("a") && finder.fits(""));
  assert.equal(asked.length, 0);
});

timed("with a text nothing is known until the server answers", async () => {
  const world = start("attn");
  assert.ok(!world.finder.ready && !world.finder.fits("attn"));
  assert.deepEqual([world.asked[0].path, world.asked[0].f], ["runs/one/find", "attn"]);
  world.asked[0].answer(only("attn"));
  await settle();
  assert.ok(world.finder.ready && world.finder.fits("attn") && !world.finder.fits("mlp"));
  assert.equal(world.changes, 1);
});

timed("an answer can list the modules that don't match", async () => {
  const { finder, asked } = start("!attn");
  asked[0].answer({ problem: "", fits: false, paths: ["attn"] });
  await settle();
  assert.ok(!finder.fits("attn") && finder.fits("mlp"));
});

timed("while somebody types one question is asked, and the last result stays", async (timers) => {
  const world = start();
  for (const text of ["a", "at", "att"]) {
    world.type(text);
    timers.tick(50);
  }
  assert.ok(world.finder.fits("mlp"));
  assert.equal(world.asked.length, 0);
  timers.tick(200);
  assert.deepEqual(
    world.asked.map(({ f }) => f),
    ["att"],
  );
});

timed("an older answer never wins, in whatever order they come", async (timers) => {
  const world = start();
  for (const text of ["a", "ab"]) {
    world.type(text);
    timers.tick(200);
  }
  const [first, second] = world.asked;
  assert.ok(first.signal.aborted);
  second.answer(only("ab"));
  await settle();
  first.answer(only("a"));
  await settle();
  assert.ok(world.finder.fits("ab") && !world.finder.fits("a"));
});

timed("an answer that is renewed while somebody types doesn't end the question that waits", async (timers) => {
  const world = start("a");
  world.asked[0].answer(only("a"));
  await settle();
  world.finder.renew();
  timers.tick(1);
  world.type("b");
  world.asked[1].answer(only("a"));
  await settle();
  timers.tick(200);
  world.asked[2].answer(only("b"));
  await settle();
  assert.ok(world.finder.fits("b") && !world.finder.fits("a"));
});

timed("a cleared box matches everything at once, and a late answer changes nothing", async (timers) => {
  const world = start("attn");
  world.type("");
  assert.ok(world.finder.fits("mlp"));
  world.asked[0].answer(only("attn"));
  await settle();
  timers.tick(5000);
  assert.ok(world.finder.fits("mlp"));
  assert.equal(world.asked.length, 1);
});

timed("text that can't be read is explained at the box, and the last result stays", async (timers) => {
  const world = start("attn");
  world.asked[0].answer(only("attn"));
  await settle();
  world.type("re:(");
  timers.tick(200);
  world.asked[1].answer({ problem: "missing )", fits: false, paths: [] });
  await settle();
  assert.deepEqual([box.textContent, box.hidden], ["missing )", false]);
  assert.ok(world.finder.fits("attn") && !world.finder.fits("mlp"));
  world.type("");
  assert.deepEqual([box.textContent, box.hidden], ["", true]);
});

timed("text that can't be read when the page opens hides nothing", async () => {
  const { finder, asked } = start("re:(");
  asked[0].answer({ problem: "missing )", fits: false, paths: [] });
  await settle();
  assert.ok(finder.fits("mlp"));
  assert.equal(finder.problem, "missing )");
});

timed("if the server is away the last result stays, the box says so, and it is asked again", async (timers) => {
  const world = start("a");
  world.asked[0].answer(only("a"));
  await settle();
  world.type("b");
  timers.tick(200);
  world.asked[1].fail(new ApiError(0, "The dashboard isn’t responding"));
  await settle();
  assert.match(box.textContent, /^Can’t reach the dashboard/);
  assert.ok(world.finder.fits("a"));
  timers.tick(2500);
  world.asked[2].answer(only("b"));
  await settle();
  assert.ok(world.finder.fits("b") && !world.finder.fits("a"));
  assert.equal(box.hidden, true);
});

timed("a slow server is waited for, in words", async (timers) => {
  const world = start("a");
  timers.tick(700);
  assert.match(box.textContent, /Searching/);
  world.asked[0].answer(only("a"));
  await settle();
  assert.equal(box.hidden, true);
});

timed("new layers are asked about, and a live run from time to time", async (timers) => {
  const world = start("a");
  world.asked[0].answer(only("a"));
  await settle();
  world.page.events.emit("run", { taps: 3 });
  timers.tick(1);
  world.asked[1].answer(only("a", "new.a"));
  await settle();
  assert.ok(world.finder.fits("new.a"));
  world.page.events.emit("run", { taps: 3 });
  timers.tick(1);
  assert.equal(world.asked.length, 2);
  timers.tick(10_000);
  timers.tick(1);
  assert.equal(world.asked.length, 3);
  world.page.runState = "ended";
  timers.tick(20_000);
  assert.equal(world.asked.length, 3);
});
