import assert from "node:assert/strict";
import { test } from "node:test";
import { evenTicks, percentiles, Range, Scale, ticks } from "../../app/static/js/scale.js";
import { dice } from "./dice.mjs";

test("places rise with the values from 0 at the low end to 1 at the high end, and can be inverted", () => {
  const { chance, pick } = dice(2);
  for (let time = 0; time < 500; time += 1) {
    const kind = pick(["log", "linear", "symlog"]);
    const low = kind === "log" ? 10 ** (chance() * 8 - 8) : chance() * 20 - 10;
    const high = kind === "log" ? low * (1.5 + 1e4 * chance()) : low + 0.1 + chance() * 100;
    const scale = new Scale(kind, low, high);
    assert.ok(Math.abs(scale.place(low)) < 1e-9 && Math.abs(scale.place(high) - 1) < 1e-9);
    const [a, b] = [chance(), chance()].sort((x, y) => x - y).map((share) => low + share * (high - low));
    assert.ok(scale.place(a) <= scale.place(b));
    assert.ok(Math.abs(scale.value(scale.place(b)) - b) <= 1e-6 * Math.max(1, Math.abs(low), Math.abs(high)));
    assert.equal(scale.place(high + Math.abs(high) + 1), 1);
  }
});

test("a log scale shows magnitudes, zero is at its low end, and NaN has no place", () => {
  const scale = new Scale("log", 1e-3, 10);
  assert.equal(scale.place(-0.1), scale.place(0.1));
  assert.equal(scale.place(0), 0);
  assert.ok(Number.isNaN(scale.place(NaN)));
});

test("ticks are round, ascend, lie within the range, and are not many more than requested", () => {
  const { chance, pick, whole } = dice(3);
  for (let time = 0; time < 800; time += 1) {
    const kind = pick(["log", "linear", "symlog"]);
    const low = kind === "log" ? 10 ** (chance() * 12 - 10) : (chance() - 0.5) * 10 ** whole(6);
    const high = kind === "log" ? low * 10 ** (0.1 + chance() * 9) : low + 10 ** (chance() * 6 - 3);
    const many = 2 + whole(8);
    const found = ticks(new Scale(kind, low, high), many);
    assert.ok(found.length >= 1 && found.length <= 2 * many + 3, `${kind} ${low} ${high} ${many}: ${found}`);
    for (const [place, value] of found.entries()) {
      assert.ok(
        value >= low - (high - low) * 0.01 && value <= high + (high - low) * 0.01,
        `${kind} ${low} ${high}: ${found}`,
      );
      if (place) assert.ok(value > found[place - 1]);
    }
  }
});

test("steps are counted in whole numbers of 1, 2 and 5", () => {
  assert.deepEqual(evenTicks(886, 1385, 5), [900, 1000, 1100, 1200, 1300]);
  assert.deepEqual(evenTicks(0, 1, 5), [0, 0.2, 0.4, 0.6, 0.8, 1]);
});

test("the range leaves out rare values, non-finite values, and zeros on a log scale", () => {
  const values = Float64Array.from({ length: 1000 }, (_, place) =>
    place === 5 ? 1e9 : place === 6 ? NaN : place === 7 ? 0 : 1 + place / 100,
  );
  const [low, high] = percentiles(values, "log");
  assert.ok(low >= 1 && high < 12);
  assert.deepEqual(percentiles([NaN, Infinity], "log"), [1e-6, 1]);
  const [least, most] = percentiles([3, 3, 3], "linear");
  assert.ok(least < 3 && most > 3);
});

test("a range stays if it would change by less than a fifth or too soon", () => {
  const range = new Range();
  const of = (/** @type {number} */ high) =>
    Float64Array.from({ length: 500 }, (_, place) => 10 ** ((place / 499) * Math.log10(high)));
  const first = range.of(of(1000), "log", 0);
  assert.equal(range.of(of(1e6), "log", 500), first);
  assert.equal(range.of(of(1100), "log", 1500), first);
  const wider = range.of(of(1e6), "log", 3000);
  assert.ok(wider[1] > 1e5);
});

test("an initially empty picture takes the range of its first values immediately", () => {
  const range = new Range();
  range.of([], "log", 0);
  range.of([NaN, 0], "log", 10);
  const [low, high] = range.of([1e-42, 1e-20, 1], "log", 20);
  assert.ok(low < 1e-40 && high > 0.1, `${low} ${high}`);
});
