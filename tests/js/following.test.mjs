import assert from "node:assert/strict";
import { test } from "node:test";
import { Following, MAX_TAKEN } from "../../app/static/js/tensors/capture.js";

const TAP = { module: "a", kind: "output", index: "", call: 0, phase: "train" };

/** A trainer that captures each requested tensor in its next step. */
function make({ comes = () => true, ask = async () => {} } = {}) {
  const made = { step: 0, asked: [], shown: [], clock: 0, open: 0, mostOpen: 0, polls: 0 };
  made.following = new Following({
    ask: async (tap) => {
      const { step } = made;
      await ask(made);
      made.asked.push({ tap, step });
      made.open += 1;
      made.mostOpen = Math.max(made.mostOpen, made.open);
      return made.asked.length - 1;
    },
    look: async (number) => {
      made.polls += 1;
      if (!comes(made)) return null;
      made.open -= 1;
      return made.asked[number].step;
    },
    show: (number) => made.shown.push(number),
    news: async (ms) => {
      made.clock += Math.min(ms, 500);
    },
    now: () => made.clock,
  });
  made.train = async (steps) => {
    for (let each = 0; each < steps; each += 1) await made.following.step(++made.step);
  };
  return made;
}

test("it takes a snapshot immediately, and then at an interval of steps", async () => {
  const made = make();
  await made.following.start(TAP, 10, 0);
  await made.train(35);
  assert.deepEqual(
    made.asked.map(({ step }) => step),
    [0, 10, 20, 30],
  );
  assert.deepEqual(made.shown, [0, 1, 2, 3]);
  assert.equal(made.following.taken, 4);
  made.following.stop();
  await made.train(50);
  assert.equal(made.asked.length, 4);
});

test("it never has more than one request, however fast the steps arrive", async () => {
  const made = make({ comes: ({ polls }) => polls % 3 === 0 });
  await Promise.all([made.following.start(TAP, 1, 0), ...Array.from({ length: 30 }, () => made.train(1))]);
  assert.equal(made.mostOpen, 1);
  assert.ok(made.asked.length > 1);
});

test("it ends by itself after the maximum number of snapshots", async () => {
  const made = make();
  await made.following.start(TAP, 1, 0);
  await made.train(MAX_TAKEN + 50);
  assert.equal(made.asked.length, MAX_TAKEN);
  assert.equal(made.following.tap, null);
  assert.match(made.following.why, /200 snapshots/);
});

test("it ends with the reason if no snapshot arrives or the server refuses", async () => {
  const made = make({ comes: () => false });
  await made.following.start(TAP, 1, 0);
  assert.match(made.following.why, /^No snapshot arrived within 30 s/);
  assert.ok(made.clock >= 30_000);
  const refused = make({
    ask: async () => {
      throw new Error("this run has no trainer");
    },
  });
  await refused.following.start(TAP, 1, 0);
  assert.equal(refused.following.why, "this run has no trainer");
  assert.equal(refused.following.tap, null);
});

test("the failure of a tensor that is no longer followed doesn't end the next one", async () => {
  const made = make();
  const other = { ...TAP, module: "b" };
  const { look } = made.following.around;
  made.following.around.look = async (number) => {
    if (number > 0) return look(number);
    made.following.stop();
    Object.assign(made.following, { tap: other, why: "" });
    throw new Error("the module didn't run");
  };
  await made.following.start(TAP, 1, 0);
  assert.deepEqual([made.following.tap, made.following.why], [other, ""]);
});

test("a snapshot that arrives after the stop is not shown", async () => {
  const made = make({
    comes: ({ following }) => {
      following.stop();
      return true;
    },
  });
  await made.following.start(TAP, 1, 0);
  assert.deepEqual(made.shown, []);
});

test("a hidden page requests nothing", async () => {
  globalThis.document = { hidden: true };
  const made = make();
  await made.following.start(TAP, 1, 0);
  await made.train(5);
  delete globalThis.document;
  assert.deepEqual(made.asked, []);
});
