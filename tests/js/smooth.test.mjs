import assert from "node:assert/strict";
import { test } from "node:test";

import { ema, leadOf } from "../../app/static/js/plot/thin.js";

/** The same, computed by definition: for each point, a sum over all points before it. */
function reference(steps, values, halfLife) {
  return values.map((value, n) => {
    if (!Number.isFinite(value)) return NaN;
    let above = 0;
    let below = 0;
    for (let i = 0; i <= n; i += 1) {
      if (!Number.isFinite(values[i])) continue;
      const weight = Math.exp((-Math.LN2 * (steps[n] - steps[i])) / halfLife);
      above += weight * values[i];
      below += weight;
    }
    return above / below;
  });
}

/** Numbers that look random, but are the same in each run. */
function drawn(many, seed) {
  let state = seed;
  return Array.from({ length: many }, () => ((state = (state * 1103515245 + 12345) % 2147483648) / 2147483648) * 2 - 1);
}

const close = (got, expected, name = "") => {
  assert.equal(got.length, expected.length);
  expected.forEach((value, place) => {
    if (Number.isNaN(value)) assert.ok(Number.isNaN(got[place]), `${name} ${place}`);
    else
      assert.ok(
        Math.abs(got[place] - value) <= 1e-12 * Math.max(1, Math.abs(value)),
        `${name} ${place}: ${got[place]} is not ${value}`,
      );
  });
};

for (const halfLife of [0.5, 5, 20, 300]) {
  test(`smoothing with a half-life of ${halfLife} is the mean weighted by the distance in steps`, () => {
    const values = drawn(700, 7);
    close(
      ema(
        values.map((_, step) => step),
        values,
        halfLife,
      ),
      reference(
        values.map((_, step) => step),
        values,
        halfLife,
      ),
    );
  });
}

test("unevenly spaced steps are weighted by their distance", () => {
  const gaps = drawn(300, 3).map((value) => 1 + Math.floor(Math.abs(value) * 40));
  let step = 0;
  const steps = gaps.map((gap) => (step += gap));
  const values = drawn(300, 11);
  close(ema(steps, values, 25), reference(steps, values, 25));
});

test("a non-finite value breaks the line and does not affect later values", () => {
  const values = drawn(200, 5);
  values[40] = NaN;
  values[41] = Infinity;
  values[120] = -Infinity;
  const steps = values.map((_, place) => place * 3);
  const smooth = ema(steps, values, 10);
  close(smooth, reference(steps, values, 10));
  assert.ok([40, 41, 120].every((place) => Number.isNaN(smooth[place])));
  assert.ok(Number.isFinite(smooth[42]));
});

test("a constant line is unchanged from its first point on", () => {
  assert.ok(ema([5, 6, 9, 1000], [3, 3, 3, 3], 10).every((value) => Math.abs(value - 3) < 1e-15));
});

test("a half-life of zero leaves the values alone", () => {
  assert.deepEqual([...ema([0, 1], [1, NaN], 0)], [1, NaN]);
});

test("with enough steps before the window, a point does not depend on where the window starts", () => {
  const values = drawn(3000, 9);
  const steps = values.map((_, step) => step);
  const halfLife = 20;
  const begin = 2000 - leadOf(halfLife);
  const whole = ema(steps, values, halfLife)[2000];
  const part = ema(steps.slice(begin), values.slice(begin), halfLife)[leadOf(halfLife)];
  assert.ok(Math.abs(whole - part) < 1e-3);
});
