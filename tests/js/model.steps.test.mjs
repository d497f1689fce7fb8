import assert from "node:assert/strict";
import { test } from "node:test";
import { Follow } from "../../app/static/js/follow.js";
import { Steps } from "../../app/static/js/model/steps.js";
import { brightOf, matchesOf, Tree } from "../../app/static/js/model/tree.js";
import { Place, View } from "../../app/static/js/model/view.js";
import { Emitter } from "../../app/static/js/state.js";

/** The part of a page's state that these tests need. */
class Address extends Emitter {
  defaults = { steps: "all", step: "", speed: "8" };
  /** @type {Record<string, string>} */
  values = { ...this.defaults };
  /** @param {string} name */
  get(name) {
    return this.values[name] ?? "";
  }
  /** @param {Record<string, string>} changes */
  set(changes) {
    const before = JSON.stringify(this.values);
    Object.assign(this.values, changes);
    if (JSON.stringify(this.values) !== before) this.emit("change");
  }
}

/** A page with tensors captured in some steps. @param {number[]} captured @param {number} newest */
function watched(captured, newest) {
  const state = new Address();
  const follow = new Follow(/** @type {any} */ (state), newest);
  /** @type {(number | null | undefined)[]} */
  const cursor = [];
  const page = {
    state,
    follow,
    cursor: { move: (/** @type {any} */ { step }) => cursor.push(step), clear: () => cursor.push(null) },
  };
  /** @type {[number | null, boolean][]} */
  const shown = [];
  const readings = {
    captured: captured.length,
    stepOf: (/** @type {number} */ place) => captured[Math.max(0, Math.min(captured.length - 1, place))] ?? 0,
    placeOf: (/** @type {number | null} */ step) => captured.findLastIndex((each) => step !== null && each <= step),
    show: (/** @type {number | null} */ step, /** @type {boolean} */ held) => shown.push([step, held]),
  };
  const steps = new Steps(/** @type {any} */ (page), /** @type {any} */ (readings));
  return { steps, state, follow, shown, cursor, readings };
}

test("the newest captured step is shown, or else only the held one", () => {
  const { steps, follow, shown, state } = watched([0, 10, 20], 25);
  assert.equal(steps.advance(0), true);
  assert.equal(steps.advance(1), false);
  follow.hold(13);
  assert.equal(steps.advance(2), true);
  follow.live();
  steps.advance(3);
  state.set({ steps: "5-15" });
  steps.advance(4);
  assert.deepEqual(shown, [
    [20, false],
    [13, true],
    [20, false],
  ]);
  assert.equal(steps.step, 20); // the columns of a range come from the server; until then, the old ones stay
});

test("without a captured step, no step is shown", () => {
  const { steps, shown } = watched([], 0);
  steps.advance(0);
  steps.play();
  assert.deepEqual([steps.step, steps.playing, shown], [null, false, [[null, false]]]);
});

test("playback starts at the shown step, restarts from the last one, and holds where it stops", async () => {
  const { steps, follow, cursor } = watched([0, 10, 20, 30], 30);
  steps.advance(0);
  const now = performance.now();
  steps.play();
  assert.deepEqual([steps.playing, follow.held], [true, 0]);
  steps.advance(now + 10);
  assert.equal(steps.step, 0);
  steps.advance(now + 260); // eight per second
  assert.equal(steps.step, 20);
  assert.deepEqual(cursor.slice(-1), [20]);
  steps.play(); // the second call stops it
  assert.deepEqual([steps.playing, follow.held, cursor.at(-1)], [false, 20, null]);
  steps.play();
  assert.equal(follow.held, 20);
  steps.advance(performance.now() + 5000);
  await Promise.resolve();
  assert.deepEqual([steps.playing, follow.held], [false, 30]);
});

test("changing the step stops playback", () => {
  const { steps, follow, shown } = watched([0, 10, 20, 30], 30);
  follow.hold(0);
  steps.advance(0);
  steps.play();
  follow.hold(10);
  assert.equal(steps.playing, false);
  steps.advance(performance.now());
  assert.deepEqual(shown.at(-1), [10, true]);
});

/** @param {[number, number][]} places of boxes @param {[number, number]} size */
const arrangedAt = (places, [width, height]) =>
  /** @type {any} */ ({
    width,
    height,
    rects: places.map(([x, y], number) => ({ number, x, y, w: 100, h: 40 })),
    lines: [],
  });

test("a fitted picture is fitted again until the user moves it", () => {
  const view = new View();
  view.resize(800, 400);
  const place = new Place(view);
  place.take(arrangedAt([[0, 0]], [400, 200]));
  assert.ok(view.isWhole);
  place.take(arrangedAt([[0, 0]], [4000, 200]));
  assert.equal(view.scale, 0.62); // names are readable, but not all of the picture is in view
  place.isMoved = true;
  place.take(arrangedAt([[0, 0]], [400, 200]));
  assert.equal(view.scale, 0.62);
  place.fitSoon();
  place.take(arrangedAt([[0, 0]], [4000, 200]));
  assert.ok(view.isWhole);
});

test("an unfolded box stays where it is, and a linked box is scrolled into view", () => {
  const view = new View();
  view.resize(800, 400);
  const place = new Place(view);
  place.take(
    arrangedAt(
      [
        [0, 0],
        [300, 100],
      ],
      [700, 300],
    ),
  );
  const at = (/** @type {number} */ x, /** @type {number} */ y) => [x * view.scale + view.x, y * view.scale + view.y];
  const before = at(300, 100);
  place.anchor = /** @type {any} */ ({ number: 1, x: 300, y: 100 });
  place.take(
    arrangedAt(
      [
        [0, 0],
        [500, 900],
      ],
      [3000, 3000],
    ),
  );
  assert.deepEqual(at(500, 900).map(Math.round), before.map(Math.round));
  place.wanted = 0;
  place.take(
    arrangedAt(
      [
        [2000, 2000],
        [0, 0],
      ],
      [3000, 3000],
    ),
  );
  const [left, top] = at(2000, 2000);
  assert.ok(left > 0 && left < 800 && top > 0 && top < 400);
  assert.equal(place.wanted, null);
});

test("a hidden picture is fitted when it becomes visible", () => {
  const view = new View();
  view.resize(0, 0);
  const place = new Place(view);
  place.take(arrangedAt([[0, 0]], [4000, 200]));
  view.resize(800, 400);
  place.take(arrangedAt([[0, 0]], [400, 200]));
  assert.ok(view.isWhole);
});

test("matches of the find box and their containers stay bright; repeats match by their parts", () => {
  const box = { kind: "call", call: 0, phase: "train", period: 1, parts: [], edges: [] };
  const tree = new Tree(
    /** @type {any} */ ({
      parts: [0],
      edges: [],
      boxes: [
        { ...box, number: 0, module: "", inside: null, parts: [1, 4] },
        { ...box, number: 1, kind: "repeat", module: "h", inside: 0, parts: [2, 3] },
        { ...box, number: 2, module: "h.0", inside: 1 },
        { ...box, number: 3, module: "h.1", inside: 1 },
        { ...box, number: 4, module: "head", inside: 0 },
      ],
    }),
  );
  const matches = matchesOf(tree, (module) => module.startsWith("h."));
  assert.deepEqual(matches, [2, 3]);
  assert.deepEqual([...brightOf(tree, matches)].sort(), [0, 1, 2, 3]);
});
