import assert from "node:assert/strict";
import { test } from "node:test";
import { around, Follow, readSteps } from "../../app/static/js/follow.js";
import { Axis } from "../../app/static/js/plot/lines.js";
import { Scale, ticks } from "../../app/static/js/scale.js";
import { Emitter } from "../../app/static/js/state.js";
import { aboutStep, nearestOf } from "../../app/static/js/tensors/rolled.js";
import {
  Captured,
  further,
  movedBy,
  nextMark,
  readStep,
  Strip,
  snapped,
} from "../../app/static/js/timeline/captured.js";
import {
  Clock,
  elapsedText,
  elapsedTicks,
  sampleKnots,
  stepOf,
  timeKnots,
  timeText,
  timeTicks,
  valueAt,
} from "../../app/static/js/timeline/clock.js";
import { added, isOfRun, kept, Links } from "../../app/static/js/timeline/links.js";
import { RunsClock } from "../../app/static/js/timeline/runsclock.js";

class FakeState extends Emitter {
  values = { steps: "live:500", step: "" };
  constructor(defaults = {}) {
    super();
    this.defaults = { steps: "live:500", step: "", ...defaults };
    Object.assign(this.values, this.defaults);
  }
  get(name) {
    return this.values[name];
  }
  set(changes) {
    Object.assign(this.values, changes);
    this.emit("change", Object.keys(changes));
  }
}

function finished(newest = 699, first = 0) {
  return new Follow(new FakeState({ steps: "all" }), newest, first);
}

test("steps are all, a live window, or a range, and anything else is the default", () => {
  assert.deepEqual(readSteps("live:200"), { live: 200 });
  assert.deepEqual(readSteps("all"), { live: Infinity });
  assert.deepEqual(readSteps("1000-1500"), { from: 1000, to: 1500 });
  for (const wrong of ["", "live:", "9-3", "x", "1-", "-5"]) {
    assert.deepEqual(readSteps(wrong), { live: 500 });
    assert.deepEqual(readSteps(wrong, "all"), { live: Infinity });
    assert.deepEqual(readSteps(wrong, wrong), { live: 500 }, "a wrong default must not be read forever");
  }
});

test("a finished run is shown as a whole, and a live one by its newest steps", () => {
  assert.deepEqual(finished(699, 3).span, [3, 699]);
  assert.deepEqual(new Follow(new FakeState(), 9000).span, [8501, 9000]);
  assert.deepEqual(new Follow(new FakeState(), 20, 4).span, [4, 20]);
  assert.equal(new Follow(new FakeState(), null).span, null);
});

test("a held page keeps its steps and counts the new ones, and shows them when it returns to live", () => {
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
  assert.deepEqual([follow.paused, follow.span, follow.range], [true, [20, 51], [20, 51]]);
  follow.live();
  assert.deepEqual([follow.paused, follow.range, follow.state.get("steps")], [false, null, "live:500"]);
});

test("values are those of the held step, of the chosen range, or the newest ones", () => {
  const follow = finished();
  assert.deepEqual(follow.values, {});
  follow.zoom(100, 200);
  assert.deepEqual([follow.values, follow.step], [{ from: 100, to: 200 }, 200]);
  follow.hold(150);
  assert.deepEqual([follow.values, follow.step, follow.span], [{ from: 150, to: 150 }, 150, [100, 200]]);
  follow.release();
  assert.deepEqual(follow.values, { from: 100, to: 200 });
  follow.whole();
  assert.deepEqual([follow.values, follow.span, follow.paused], [{}, [0, 699], false]);
});

test("holding a step outside the range moves the range, and a range without the held step releases it", () => {
  const follow = finished();
  follow.zoom(100, 200);
  follow.hold(250);
  assert.deepEqual([follow.held, follow.range], [250, [150, 250]]);
  follow.hold(20);
  assert.deepEqual([follow.held, follow.range], [20, [20, 120]]);
  follow.zoom(300, 400);
  assert.deepEqual([follow.held, follow.range], [null, [300, 400]]);
  assert.deepEqual(around([10, 20], null), [10, 20]);
  follow.hold(5000);
  assert.equal(follow.held, 699, "there is no step after the newest one");
});

test("a range from the first to the newest step is the whole run", () => {
  const follow = finished(699, 5);
  follow.zoom(0, 699);
  assert.deepEqual([follow.state.get("steps"), follow.range, follow.span], ["all", null, [5, 699]]);
});

test("a step or a range in the URL that the run doesn't have is clamped", () => {
  const follow = finished();
  follow.state.set({ steps: "600-9000", step: "" });
  assert.deepEqual(follow.range, [600, 699]);
  follow.state.set({ steps: "800-900", step: "" });
  assert.deepEqual(follow.range, [699, 699]);
  follow.state.set({ steps: "all", step: "x" });
  assert.equal(follow.held, null);
});

test("a change of both range and held step is reported once", () => {
  const follow = finished();
  let told = 0;
  follow.on("change", () => {
    told += 1;
  });
  follow.zoom(100, 200);
  follow.hold(250);
  assert.equal(told, 2);
  follow.state.set({ kind: "output" });
  assert.equal(told, 2);
});

test("a page opened at a held step shows that step and the steps that arrived before it was opened", () => {
  const state = new FakeState();
  state.values.step = "30";
  assert.deepEqual(new Follow(state, 59).span, [0, 59]);
  assert.deepEqual(new Follow(state, 10_000).span, [30, 529]);
  assert.deepEqual(new Follow(state, null).span, [0, 30]);
});

test("a page about certain steps is neither held nor live, and shows these", () => {
  const follow = new Follow(new FakeState({ step: "40", steps: "1-90" }), 100);
  follow.saw(110);
  assert.deepEqual([follow.fixed, follow.paused, follow.waiting, follow.span], [true, false, 0, [1, 90]]);
  assert.equal(follow.held, 40);
});

test("every step has a place, and every place has a step", () => {
  const strip = new Strip(10, 19);
  for (let step = 10; step <= 19; step += 1) assert.equal(strip.step(strip.place(step)), step);
  assert.deepEqual([strip.step(-1), strip.step(2), strip.place(0), strip.place(99)], [10, 19, 0, 1]);
  assert.deepEqual(strip.band([10, 19]), [0, 1]);
  assert.deepEqual(
    strip.band([12, 13]).map((each) => Math.round(each * 1000)),
    [200, 200],
  );
  assert.deepEqual(new Strip(5, 5).band([5, 5]), [0, 1]);
  assert.equal(new Strip(5, 4).step(0.5), 5);
});

const ROWS = { first: [0, 8, 27, 54], last: [0, 15, 27, 54] };

test("a pointer selects the nearest captured step in reach, or the step under it", () => {
  assert.equal(snapped(ROWS, 25, 3), 27);
  assert.equal(snapped(ROWS, 25, 1), 25);
  assert.equal(snapped(ROWS, 12, 3), 12, "a merged row holds it");
  assert.equal(snapped(ROWS, 17, 3), 15);
  assert.equal(snapped(ROWS, 60, 10), 54);
  assert.equal(snapped({ first: [], last: [] }, 7, 100), 7);
});

test("moving one step goes to the next captured one, whether or not the current step was captured", () => {
  assert.deepEqual([further(ROWS, 27, 1), further(ROWS, 27, -1), further(ROWS, 27, -2)], [54, 8, 0]);
  assert.deepEqual([further(ROWS, 30, 1), further(ROWS, 30, -1), further(ROWS, 30, -2)], [54, 27, 8]);
  assert.deepEqual([further(ROWS, 12, 1), further(ROWS, 12, -1)], [27, 0]);
  assert.deepEqual([further(ROWS, 54, 1), further(ROWS, 0, -1), further(ROWS, 60, 1)], [null, null, null]);
});

test("keys visit marks in the order of their steps", () => {
  assert.deepEqual([nextMark([3, 9], 3, 1), nextMark([3, 9], 3, -1), nextMark([3, 9], 20, -1)], [9, null, 9]);
});

test("a step is parsed in any notation, and everything else is rejected", () => {
  assert.deepEqual(["120", " 1,234 ", "1.234", "30 144", "1\u00a0000"].map(readStep), [120, 1234, 1234, 30144, 1000]);
  assert.deepEqual(["", "-5", "1e3", "abc", "12x", "9".repeat(20)].map(readStep), [null, null, null, null, null, null]);
});

test("keys move a handle as they move any slider", () => {
  assert.deepEqual(movedBy("ArrowLeft", false), { steps: -1 });
  assert.deepEqual(movedBy("ArrowUp", true), { steps: 10 });
  assert.deepEqual(movedBy("PageDown", false), { share: -0.1 });
  assert.deepEqual([movedBy("Home", false), movedBy("End", false)], [{ end: 0 }, { end: 1 }]);
  assert.equal(movedBy("a", false), null);
});

/** A run that captured every third step, and a server that sends at most this number of steps. */
function server(newest, most = 2000) {
  const asked = [];
  const ask = async (_path, { from = 0, to = newest }) => {
    asked.push([from, to]);
    const every = [];
    for (let step = Math.ceil(from / 3) * 3; step <= Math.min(to, newest); step += 3) every.push(step);
    const shown =
      every.length <= most ? every : every.filter((_, place) => place % Math.ceil(every.length / most) === 0);
    const many = Math.floor(newest / 3) + 1;
    return { captured_first: shown, captured_last: shown, captured: many, captured_all: shown.length === every.length };
  };
  return { asked, ask };
}

test("arrow keys stop at captured steps and at the ends", async () => {
  const { ask, asked } = server(99);
  const captured = new Captured({ run: "r", follow: { newest: 99, first: 0 } }, { ask, now: () => 0 });
  assert.equal(captured.snap(4, 5), 4, "nothing is known before it is loaded");
  assert.deepEqual(
    [await captured.further(50, 1), await captured.further(50, -10), await captured.further(96, 10)],
    [51, 21, 99],
  );
  assert.deepEqual([await captured.further(0, -1), await captured.further(99, 1)], [0, 99]);
  assert.equal(captured.snap(4, 5), 3);
  assert.equal(asked.length, 1);
});

test("in a run with too many captured steps, nearby ones are requested", async () => {
  const { ask, asked } = server(3_000_000);
  const captured = new Captured({ run: "r", follow: { newest: 3_000_000, first: 0 } }, { ask, now: () => 0 });
  assert.equal(await captured.further(1_500_000, 1), 1_500_003);
  assert.equal(await captured.further(1_500_003, -10), 1_499_973);
  assert.equal(asked.length, 2);
  assert.equal(await captured.further(2_999_998, 10), 3_000_000 - (3_000_000 % 3));
});

test("without a server the keys still move by steps", async () => {
  const ask = () => Promise.reject(new Error("gone"));
  const captured = new Captured({ run: "r", follow: { newest: 99, first: 10 } }, { ask });
  assert.deepEqual([await captured.further(50, 1), await captured.further(12, -10)], [51, 10]);
});

const SHARED = { steps: "100-200", step: "150", by: "time", range: [100, 200] };

test("links in the page header and sidebar keep the page's steps", () => {
  assert.equal(kept("runs/a/flow?step=3", SHARED), "runs/a/flow?step=150&steps=100-200&by=time");
  assert.equal(kept("runs/a?steps=1-2&step=1&by=samples#x", { steps: "", step: "", by: "", range: null }), "runs/a#x");
});

test("other links keep their own step, and keep the range only if it contains that step", () => {
  assert.equal(added("runs/a/layer?module=x", SHARED), "runs/a/layer?module=x&steps=100-200&step=150&by=time");
  assert.equal(added("runs/a/layer?module=x&step=120", SHARED), "runs/a/layer?module=x&step=120&steps=100-200&by=time");
  assert.equal(added("runs/a/layer?module=x&step=300", SHARED), "runs/a/layer?module=x&step=300&by=time");
  const once = added("runs/a/flow", SHARED);
  assert.equal(added(once, SHARED), once);
  assert.equal(added("runs/a/flow", { steps: "", step: "", by: "", range: null }), "runs/a/flow");
});

test("a link follows the held step each time it is pointed at, and keeps a step of its own", () => {
  const links = new Links();
  const [plain, own] = [{}, {}];
  const at = (step) => ({ steps: "", step, by: "", range: null });
  let href = links.added(plain, "runs/a/layer?module=x", at("100"));
  assert.equal(href, "runs/a/layer?module=x&step=100");
  href = links.added(plain, href, at("200"));
  assert.equal(href, "runs/a/layer?module=x&step=200");
  assert.equal(links.added(plain, href, at("")), "runs/a/layer?module=x");
  assert.equal(links.added(plain, "runs/a/layer?module=x&step=7", at("200")), "runs/a/layer?module=x&step=7");
  href = links.added(own, "runs/a/flow?step=3", at("100"));
  assert.equal(links.added(own, href, at("200")), "runs/a/flow?step=3");
});

test("links to incidents, other runs and other pages don't take the steps of this page", () => {
  const of = (href) => isOfRun(href, "runs/a");
  assert.deepEqual([of("runs/a"), of("runs/a?x=1"), of("runs/a/events#mutes")], [true, true, true]);
  assert.deepEqual(
    [of("runs/a/problems/incident?id=x"), of("runs/ab"), of("help"), of("api/v1/report")],
    [false, false, false, false],
  );
});

function points(steps, values, merged = 0) {
  return {
    first_step: steps,
    last_step: steps.map((step) => step + merged),
    mean: values,
    min: values,
    max: values.map((value) => value + merged),
  };
}

test("a step is placed at its time, between known steps and slightly beyond them", () => {
  const knots = timeKnots(points([0, 10, 20], [100, 200, 230]));
  assert.deepEqual(
    [0, 5, 10, 15, 20].map((step) => valueAt(knots, step)),
    [100, 150, 200, 215, 230],
  );
  for (const step of [0, 3, 10, 17, 20]) assert.ok(Math.abs(stepOf(knots, valueAt(knots, step)) - step) < 1e-9);
  assert.equal(valueAt(knots, 22), 243, "extrapolated at the average pace");
  assert.equal(timeKnots(points([4], [1])), null);
});

test("merged steps have a first and a last time, and a clock that was set back does not reverse the order", () => {
  const merged = timeKnots(points([0, 8], [0, 80], 7));
  assert.deepEqual(
    [merged.steps, merged.values],
    [
      [0, 7, 8, 15],
      [0, 7, 80, 87],
    ],
  );
  const { values } = timeKnots(points([0, 1, 2, 3], [10, 11, 5, 12]));
  assert.ok(values.every((value, place) => place === 0 || value > values[place - 1]));
});

test("samples are steps times batch size, even if the batch size changes", () => {
  const same = sampleKnots(points([9, 19], [320, 640]), points([9, 19], [10, 20]), 0, 29);
  assert.deepEqual([valueAt(same, 0), valueAt(same, 9), valueAt(same, 29)], [32, 320, 960]);
  const other = sampleKnots(points([9, 19], [320, 160]), points([9, 19], [10, 20]), 0, 19);
  assert.deepEqual([valueAt(other, 9), valueAt(other, 19)], [320, 400]);
  assert.equal(sampleKnots(points([], []), points([], []), 0, 10), null);
  assert.equal(
    sampleKnots(points([5], [0]), points([5], [0]), 0, 10),
    null,
    "a training that stands still says nothing",
  );
});

test("ticks of time are whole minutes or hours of the reader's clock", () => {
  const noon = Date.UTC(2026, 0, 2, 12, 0, 7) / 1000;
  assert.deepEqual(
    timeTicks(noon, noon + 60, 6, 0).map(({ text }) => text),
    ["12:00:10", "12:00:20", "12:00:30", "12:00:40", "12:00:50", "12:01:00"],
  );
  assert.deepEqual(
    timeTicks(noon, noon + 4 * 3600, 5, 1800).map(({ text }) => text),
    ["13:00", "14:00", "15:00", "16:00"],
    "half an hour ahead of UTC",
  );
  assert.deepEqual(
    timeTicks(noon, noon + 3 * 86_400, 4, 0).map(({ text }) => text),
    ["01-03", "01-04", "01-05"],
  );
  assert.ok(timeTicks(noon, noon + 0.5, 5, 0).length > 1);
  assert.equal(timeText(noon + 0.25, 0.1, 0), "12:00:07.25");
});

class FakeClockPage {
  constructor(by, answers) {
    this.run = "r";
    this.state = new FakeState({ by });
    this.state.optional = (name) => this.state.values[name] ?? "";
    this.follow = new Follow(this.state, 29);
    this.asked = [];
    this.ask = async (_path, query) => {
      this.asked.push(query);
      return query.name
        ? { series: [query.name].flat().map((name) => answers[name]) }
        : { names: Object.keys(answers) };
    };
  }
}

async function settled() {
  for (let turn = 0; turn < 10; turn += 1) await Promise.resolve();
}

test("charts by time place steps at their times, and say so if times are unknown", async (about) => {
  const before = globalThis.document;
  globalThis.document = new Emitter();
  about.after(() => {
    globalThis.document = before;
  });
  const page = new FakeClockPage("time", { "hookcore/time_s": points([0, 29], [1000, 1290]) });
  const clock = new Clock(page, page);
  await settled();
  assert.deepEqual([clock.by, clock.place(10), clock.step(1100), clock.why], ["time", 1100, 10, ""]);
  const empty = new FakeClockPage("samples", {});
  const none = new Clock(empty, empty);
  await settled();
  assert.deepEqual([none.asked, none.by, none.place(10)], ["samples", "step", 10]);
  assert.match(none.why, /unknown, so the x-axis shows steps/);
  empty.state.values.by = "step";
  empty.state.emit("by", "step");
  assert.deepEqual([none.by, none.why, none.text(1234, [0, 2000]), none.beside(5)], ["step", "", "1,234", ""]);
});

test("the precision of a time since the start depends on the distance between ticks", () => {
  const texts = (from, to, many) => elapsedTicks(from, to, many).map(({ text }) => text);
  assert.deepEqual(texts(0, 1, 4), ["0 s", "0.5 s", "1 s"]);
  assert.deepEqual(texts(0, 90, 4), ["0:00", "0:30", "1:00", "1:30"]);
  assert.deepEqual(texts(3500, 7300, 3), ["1:00:00", "1:30:00", "2:00:00"]);
  assert.deepEqual(texts(0, 4 * 86_400, 4), ["0:00", "1 d 0 h", "2 d 0 h", "3 d 0 h", "4 d 0 h"]);
  assert.equal(elapsedText(3 * 86_400 + 4 * 3600 + 65, 1), "76:01:05");
});

test("lines of several runs are placed by their times or samples on the steps of the longest run", async (about) => {
  const before = globalThis.document;
  globalThis.document = new Emitter();
  about.after(() => {
    globalThis.document = before;
  });
  const line = (run, from, to) => ({ run, first_step: [0, 100], last_step: [0, 100], ...ends([from, to]) });
  const ends = (values) => ({ mean: values, min: values, max: values });
  const lines = {
    "hookcore/time_s": [line("fast", 1010, 1110), line("slow", 5000, 5400)],
    "hookcore/system/rate/samples": [line("fast", 320, 320)],
    "hookcore/system/rate/steps": [line("fast", 10, 10)],
  };
  const run = (id, started_s) => ({ id, started_s, first_step: 0, newest_step: 100 });
  const runs = [run("fast", 1000), run("slow", 0), run("none", 0)];
  const page = new FakeClockPage("time", {});
  const ask = async (_path, { scalar }) => ({ lines: lines[scalar] });
  const clock = new RunsClock(page, { ask });
  const { signal } = new AbortController();
  const of = (id) => clock.moved({ name: id, first: [0, 50], last: [0, 50], mean: [1, 2] }, id);
  await clock.learn(runs, signal);
  assert.equal(clock.by, "time");
  assert.match(clock.why, /^The times of 1 of 3 runs are unknown/);
  assert.equal(of("none"), null);
  assert.deepEqual(
    of("fast").last.map((step) => clock.place(step)),
    [10, 60],
    "since its start",
  );
  assert.deepEqual(
    of("slow").last.map((step) => clock.place(step)),
    [0, 200],
    "since its first step",
  );
  assert.deepEqual(of("fast").steps.last, [0, 50]);
  assert.deepEqual([clock.beside(50), clock.title], ["3:20", "time since the start"]);
  page.state.set({ steps: "5-10" }); // 20 to 40 seconds
  assert.deepEqual(clock.stepsOf("fast"), { from: 10, to: 30 });
  page.state.set({ steps: "live:500", by: "samples" });
  page.state.emit("by", "samples");
  await clock.learn(runs, signal);
  assert.deepEqual([clock.by, clock.place(9), of("slow")], ["samples", 320, null]);
  assert.match(clock.why, /^The batch sizes of 2 of 3/);
  page.state.set({ by: "step" });
  page.state.emit("by", "step");
  await clock.learn(runs, signal);
  assert.deepEqual([clock.by, clock.why, of("slow").first], ["step", "", [0, 50]]);
});

test("a zoomed axis shows a part, and values outside keep their places", () => {
  const axis = new Axis("linear", 0, 100);
  const [outside, inside] = [axis.place(90), axis.place(20)];
  axis.zoom([10, 30]);
  assert.deepEqual(axis.range, [10, 30]);
  assert.deepEqual([axis.place(90), axis.place(20)], [outside, inside]);
  assert.ok(axis.ticks().every(({ at }) => at >= 10 && at <= 30));
  axis.zoom([5, 5]);
  assert.deepEqual(axis.range, [10, 30], "an empty zoom changes nothing");
  const log = new Axis("log", 1e-3, 1e3);
  log.zoom(log.values([-1, 1]));
  assert.deepEqual(
    log.range.map((end) => Math.round(end)),
    [-1, 1],
  );
});

test("a zoomed part of a histogram's axis fills the whole height", () => {
  const part = new Scale("symlog", 0.1, 10, 0.01);
  assert.deepEqual([part.place(0.1), part.place(10)], [0, 1]);
  assert.ok(Math.abs(part.value(part.place(1)) - 1) < 1e-9);
  assert.deepEqual(ticks(part), [0.1, 1, 10]);
});

test("the nearest snapshot is shown with its own step", () => {
  const kept = [{ step: 130 }, { step: 96 }, { step: 40 }];
  assert.equal(nearestOf(kept, { from: 120, to: 120 }).step, 130);
  assert.equal(nearestOf(kept, { from: 100, to: 110 }).step, 96);
  assert.equal(nearestOf(kept, {}).step, 130);
  assert.equal(nearestOf([], { from: 1, to: 1 }), null);
  assert.equal(
    aboutStep("A snapshot", 96, { from: 120, to: 120 }, false),
    "A snapshot of step 96, the nearest to step 120.",
  );
  assert.equal(aboutStep("A snapshot", 96, { from: 90, to: 99 }, false), "");
  assert.match(
    aboutStep("Maps", 1000, { from: 0, to: 9 }, true),
    /^Maps of step 1,000; the page is held at steps 0 to 9/,
  );
});

test("keys zoom in and out by a factor of two, move the view, and reset it", () => {
  const axis = new Axis("log", 1, 100);
  axis.zoom([1, 100]);
  const near = (found, ...wanted) => found.forEach((each, i) => assert.ok(Math.abs(each / wanted[i] - 1) < 1e-9));
  near(axis.part(0.5), 10 ** 0.5, 10 ** 1.5);
  near(axis.part(1, 0.25), 10 ** 0.5, 10 ** 2.5);
  assert.equal(axis.part(2), null);
  axis.zoom([90, 99]);
  assert.ok(axis.part(1, 20)[0] < 200, "it can't be moved out of sight");
});

test("zooming out by key undoes zooming in by key, although values are rounded on the way", () => {
  for (const kind of ["linear", "log"]) {
    for (let i = 1; i < 200; i += 1) {
      const axis = new Axis(kind, 0.37 / i, 0.91 * i);
      axis.zoom(axis.part(0.5));
      assert.equal(axis.part(2), null, `${kind} ${i}`);
    }
  }
});
