import assert from "node:assert/strict";
import { test } from "node:test";
import { Following, MAX_TAKEN } from "../../app/static/js/tensors/capture.js";

const TAP = { module: "a", kind: "output", index: "", call: 0, phase: "train" };

/** A trainer that captures each requested tensor as soon as `answer` is called, or at once. */
function make({ isSlow = false, problem = "" } = {}) {
  const made = { step: 0, asked: [], shown: [], waiting: [] };
  made.following = new Following(
    async (tap, done) => {
      if (problem) throw new Error(problem);
      const [number, step] = [made.asked.length, made.step];
      made.asked.push({ tap, step });
      made.waiting.push((why = "") => done(why ? undefined : { number, step }, why));
      if (!isSlow) made.answer();
    },
    (number) => made.shown.push(number),
  );
  made.answer = (why) => made.waiting.shift()?.(why);
  made.train = async (steps) => {
    for (let each = 0; each < steps; each += 1) {
      made.following.step(++made.step);
      await null; // a refusal arrives
    }
  };
  return made;
}

test("it takes a snapshot immediately, and then at an interval of steps", async () => {
  const made = make();
  made.following.start(TAP, 10, 0);
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
  const made = make({ isSlow: true });
  made.following.start(TAP, 1, 0);
  await made.train(30);
  assert.equal(made.asked.length, 1);
  made.answer();
  assert.equal(made.asked.length, 2);
  assert.equal(made.asked[1].step, 30);
});

test("it ends by itself after the maximum number of snapshots", async () => {
  const made = make();
  made.following.start(TAP, 1, 0);
  await made.train(MAX_TAKEN + 50);
  assert.equal(made.asked.length, MAX_TAKEN);
  assert.equal(made.following.tap, null);
  assert.match(made.following.why, /200 snapshots/);
});

test("it ends with the reason if the trainer or the server refuses", async () => {
  const made = make({ isSlow: true });
  made.following.start(TAP, 1, 0);
  made.answer("Not captured: there is no watched module");
  assert.equal(made.following.why, "Not captured: there is no watched module");
  const refused = make({ problem: "this run has no trainer" });
  refused.following.start(TAP, 1, 0);
  await refused.train(1);
  assert.deepEqual([refused.following.why, refused.following.tap], ["this run has no trainer", null]);
});

test("the end of a tensor that is no longer followed doesn't end the next one, and is not shown", () => {
  const made = make({ isSlow: true });
  const other = { ...TAP, module: "b" };
  for (const why of ["the module didn't run", ""]) {
    made.following.start(TAP, 1, 0);
    made.following.start(other, 1, 0);
    made.answer(why);
    assert.deepEqual([made.following.tap, made.following.why, made.shown], [other, "", []]);
    assert.equal(made.asked.at(-1).tap, other);
    made.following.stop();
    made.answer();
  }
});

test("a hidden page requests nothing", async () => {
  globalThis.document = { hidden: true };
  const made = make();
  made.following.start(TAP, 10, 0);
  await made.train(5);
  delete globalThis.document;
  assert.deepEqual(made.asked, []);
});
