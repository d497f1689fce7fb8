import assert from "node:assert/strict";
import { mock, test } from "node:test";
import { Refresh } from "../../app/static/js/live/refresh.js";

/** A page whose clock only the test moves. */
class World extends EventTarget {
  hidden = false;
  clock = 0;
  calls = 0;
  /** @type {{done: (value?: unknown) => void, fail: (error: unknown) => void, signal: AbortSignal}[]} */
  open = [];

  constructor(/** @type {import("node:test").TestContext} */ t) {
    super();
    t.mock.timers.enable({ apis: ["setTimeout"] });
    mock.method(performance, "now", () => this.clock);
    t.after(() => mock.restoreAll());
  }

  make(how = {}) {
    return new Refresh((signal) => this.#work(signal), { page: this, ...how });
  }

  #work(/** @type {AbortSignal} */ signal) {
    this.calls += 1;
    return new Promise((done, fail) => {
      this.open.push({ done, fail, signal });
      signal.addEventListener("abort", () => fail(new Error("aborted")));
    });
  }

  async pass(/** @type {import("node:test").TestContext} */ t, ms = 0) {
    this.clock += ms;
    t.mock.timers.tick(ms);
    for (let turn = 0; turn < 5; turn += 1) await Promise.resolve();
  }

  /** Ends the running call. */
  async answer(/** @type {import("node:test").TestContext} */ t, /** @type {unknown} */ error = null, ms = 0) {
    this.clock += ms;
    const { done, fail } = /** @type {any} */ (this.open.shift());
    if (error) fail(error);
    else done();
    await this.pass(t);
  }

  show(/** @type {boolean} */ shown) {
    this.hidden = !shown;
    this.dispatchEvent(new Event("visibilitychange"));
  }
}

test("a change during the pause or during a call is not lost: it is followed by one more call", async (t) => {
  const world = new World(t);
  const refresh = world.make({ min: 1000 });
  refresh.soon();
  await world.pass(t, 0);
  assert.equal(world.calls, 1);
  refresh.soon();
  refresh.soon();
  await world.answer(t);
  assert.equal(world.calls, 1);
  await world.pass(t, 999);
  assert.equal(world.calls, 1);
  await world.pass(t, 1);
  assert.equal(world.calls, 2);
  await world.answer(t);
  refresh.soon(); // the last one, within the pause
  await world.pass(t, 1000);
  assert.equal(world.calls, 3);
  await world.answer(t);
  await world.pass(t, 100_000);
  assert.equal(world.calls, 3);
});

test("slow calls are followed by longer pauses, up to a limit", async (t) => {
  const world = new World(t);
  const refresh = world.make({ min: 1000, max: 5000, share: 10 });
  for (const [took, pause] of [
    [10, 1000],
    [300, 3000],
    [4000, 5000],
  ]) {
    const { calls } = world;
    refresh.stop();
    await world.pass(t, 10_000);
    refresh.soon();
    await world.pass(t, 0);
    refresh.soon();
    await world.answer(t, null, took);
    await world.pass(t, pause - 1);
    assert.equal(world.calls, calls + 1);
    await world.pass(t, 1);
    assert.equal(world.calls, calls + 2);
    await world.answer(t);
  }
});

test("a failed call is repeated without a new change, but not a request that the server rejects", async (t) => {
  const world = new World(t);
  world.make().soon();
  await world.pass(t, 0);
  await world.answer(t, new TypeError("Failed to fetch"));
  await world.pass(t, 5000);
  assert.equal(world.calls, 2);
  await world.answer(t, Object.assign(new Error("busy"), { status: 503 }));
  await world.pass(t, 5000);
  assert.equal(world.calls, 3);
  await world.answer(t, Object.assign(new Error("no such run"), { status: 404 }));
  await world.pass(t, 100_000);
  assert.equal(world.calls, 3);
});

test("a failed call is reported, but not an aborted one", async (t) => {
  const world = new World(t);
  /** @type {unknown[]} */
  const reported = [];
  const refresh = world.make({ failed: (/** @type {unknown} */ error) => reported.push(error) });
  const error = new TypeError("Failed to fetch");
  refresh.soon();
  await world.pass(t, 0);
  await world.answer(t, error);
  refresh.soon();
  await world.pass(t, 5000);
  refresh.stop();
  await world.pass(t, 0);
  assert.deepEqual(reported, [error]);
});

test("nothing is requested while the page is hidden or not ready, and changes are remembered", async (t) => {
  const world = new World(t);
  let ready = true;
  const refresh = world.make({ ready: () => ready });
  world.show(false);
  refresh.soon();
  await world.pass(t, 10_000);
  assert.equal(world.calls, 0);
  world.show(true);
  await world.pass(t, 0);
  assert.equal(world.calls, 1);
  await world.answer(t);
  ready = false;
  refresh.soon();
  await world.pass(t, 10_000);
  ready = true;
  assert.equal(world.calls, 1);
  refresh.soon();
  await world.pass(t, 0);
  assert.equal(world.calls, 2);
});

test("a waiting user aborts the running call, whose end changes nothing", async (t) => {
  const world = new World(t);
  const refresh = world.make();
  refresh.soon();
  await world.pass(t, 0);
  void refresh.now();
  await world.pass(t);
  assert.equal(world.calls, 2);
  assert.deepEqual(
    world.open.map(({ signal }) => signal.aborted),
    [true, false],
  );
  world.open.shift();
  await world.answer(t);
  await world.pass(t, 100_000);
  assert.equal(world.calls, 2);
});

test("a closed refresh no longer runs, and the page forgets it", async (t) => {
  const world = new World(t);
  const heard = new Set();
  t.mock.method(world, "addEventListener", (_, listener) => heard.add(listener));
  t.mock.method(world, "removeEventListener", (_, listener) => heard.delete(listener));
  const refresh = world.make();
  assert.equal(heard.size, 1);
  refresh.soon();
  refresh.close();
  await world.pass(t, 10_000);
  assert.deepEqual([world.calls, heard.size], [0, 0]);
});

test("choosing other steps skips the pause, and holding a key down requests a few times a second", async (t) => {
  const world = new World(t);
  const refresh = world.make({ min: 5000 });
  refresh.soon();
  await world.pass(t, 0);
  await world.answer(t);
  refresh.promptly();
  refresh.promptly();
  await world.pass(t, 1);
  assert.equal(world.calls, 2);
  for (let key = 0; key < 30; key += 1) {
    refresh.promptly();
    await world.pass(t, 30);
  }
  assert.ok(world.calls >= 4 && world.calls <= 6, `${world.calls} calls`);
  await world.pass(t, 300);
  assert.equal(world.open.filter(({ signal }) => !signal.aborted).length, 1); // the newest call, for the last key
});
