import assert from "node:assert/strict";
import { test } from "node:test";
import { bannerOf, pillOf, Rate } from "../../app/static/js/frame/status.js";

const live = {
  run: "live",
  capturePaused: false,
  broken: false,
  refused: "",
  newest: 12345,
  step: 12345,
  held: false,
  waiting: 0,
  rate: 18.2,
  drawing: null,
  retryS: 0,
  heardAt: "14:02:11",
};

test("the pill shows the step and the rate of a live run", () => {
  assert.deepEqual(pillOf(live), { state: "live", words: "live \u00b7 step 12,345 \u00b7 18/s" });
  assert.equal(pillOf({ ...live, rate: null }).words, "live \u00b7 step 12,345");
});

test("the pill says that drawing is slow", () => {
  assert.equal(pillOf({ ...live, drawing: 4 }).words, "live \u00b7 step 12,345 \u00b7 18/s \u00b7 display 4 fps");
});

test("the pill says that capture is paused, although the run is live", () => {
  const pill = pillOf({ ...live, capturePaused: true });
  assert.deepEqual(pill, { state: "paused", words: "capture paused \u00b7 step 12,345" });
  assert.equal(pillOf({ ...live, capturePaused: true, run: "ended" }).state, "ended");
});

test("a held page counts the steps that arrived since", () => {
  assert.deepEqual(pillOf({ ...live, held: true, waiting: 214 }), {
    state: "paused",
    words: "paused \u00b7 214 new steps",
  });
  assert.equal(pillOf({ ...live, held: true, waiting: 1 }).words, "paused \u00b7 1 new step");
  assert.equal(pillOf({ ...live, held: true, step: 40 }).words, "paused \u00b7 step 40");
});

test("every state of a run has its own text", () => {
  const words = (run, more) => pillOf({ ...live, run, ...more }).words;
  assert.equal(words("ended"), "ended \u00b7 step 12,345");
  assert.equal(words("crashed"), "crashed", "it crashed in the step after the newest one");
  assert.equal(words("stopped"), "stopped");
  assert.equal(words("lost"), "lost \u00b7 step 12,345");
  assert.equal(words("waiting"), "waiting \u00b7 step 12,345");
  assert.equal(words("removed"), "removed");
  assert.equal(words("ended", { held: true, step: 40 }), "held at step 40 \u00b7 ended");
  assert.equal(words("ended", { held: true, step: 60, range: [20, 60] }), "held at steps 20 to 60 \u00b7 ended");
  assert.deepEqual(pillOf({ ...live, newest: null, step: null }), {
    state: "waiting",
    words: "waiting for the first step",
  });
});

test("a broken connection is shown first, with what is displayed and when it is retried", () => {
  const broken = { ...live, broken: true, retryS: 3.2 };
  assert.deepEqual(pillOf(broken), { state: "disconnected", words: "disconnected \u00b7 step 12,345" });
  const { kind, words } = bannerOf(broken);
  assert.equal(kind, "disconnected");
  assert.match(words, /up to step 12,345, received at 14:02:11/);
  assert.match(words, /Next attempt in 4 s/);
  assert.match(bannerOf({ ...broken, retryS: 0 }).words, /Reconnecting/);
});

test("a page without a run says only that the connection is broken", () => {
  assert.equal(
    bannerOf({ ...live, run: "", newest: null, broken: true, retryS: 1 }).words,
    "The dashboard isn't responding. Next attempt in 1 s.",
  );
});

test("the banner says why connections are refused, and that a run waits, was lost, or was removed", () => {
  assert.deepEqual(bannerOf({ ...live, broken: true, refused: "Log in." }), { kind: "refused", words: "Log in." });
  assert.match(bannerOf({ ...live, run: "lost" }).words, /since step 12,345/);
  assert.match(bannerOf({ ...live, run: "waiting" }).words, /restarted and waits for the trainer.*up to step 12,345/);
  assert.equal(bannerOf({ ...live, run: "removed" }).kind, "removed");
  assert.equal(bannerOf(live), null);
  assert.equal(bannerOf({ ...live, run: "ended" }), null);
});

/** Lets a rate see a step as soon as it ended. @param {Rate} rate @param {number} place @param {number} now */
function saw(rate, place, now) {
  rate.saw(place, now, now);
}

test("the rate is measured over the last ten seconds, and over at least one", () => {
  const rate = new Rate();
  saw(rate, 100, 0);
  assert.equal(rate.at(500), null);
  saw(rate, 110, 500);
  assert.equal(rate.at(500), null);
  saw(rate, 120, 1000);
  assert.equal(rate.at(1000), 20);
  for (let second = 2; second <= 30; second += 1) saw(rate, 120 + 5 * (second - 1), second * 1000);
  assert.equal(rate.at(30_000), 5);
});

test("the rate of a stalled training falls, but not that of a slow one", () => {
  const rate = new Rate();
  saw(rate, 0, 0);
  saw(rate, 10, 2000);
  assert.equal(rate.at(2500), 5);
  saw(rate, 10, 50_000); // news of something else
  assert.ok(rate.at(60_000) < 0.2);
  const slow = new Rate();
  saw(slow, 0, 0);
  saw(slow, 1, 8000);
  assert.equal(slow.at(15_000), 1 / 8);
});

test("the rate of steps that waited for the server is that at which they were trained", () => {
  const rate = new Rate();
  saw(rate, 100, 0);
  saw(rate, 110, 1000);
  for (let place = 120; place <= 400; place += 10) rate.saw(place, 100 * (place - 100), 30_000 + place); // in 0.3 s
  assert.equal(rate.at(30_400), 10);
});

test("a restarted run has a new rate, and so has one whose clock was set back", () => {
  for (const [place, time] of [
    [0, 3000],
    [2100, -5000],
  ]) {
    const rate = new Rate();
    saw(rate, 1000, 0);
    saw(rate, 2000, 2000);
    rate.saw(place, time, 3000);
    assert.equal(rate.at(3000), null);
  }
});
