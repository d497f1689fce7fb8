import assert from "node:assert/strict";
import { test } from "node:test";
import { badness, INFINITE, MISSING, NAN, squeeze, worse } from "../../app/static/js/worst.js";
import { dice } from "./dice.mjs";

const word = new Uint32Array(1);
const float = new Float32Array(word.buffer);

/** @param {number} value */
function bitsOf(value) {
  float[0] = value;
  return word[0];
}

/** The same order by a plain comparison of numbers. @param {number} bits */
function rank(bits) {
  if (bits === MISSING) return -1;
  word[0] = bits;
  if (Number.isNaN(float[0])) return Infinity;
  return Number.isFinite(float[0]) ? Math.abs(float[0]) : Number.MAX_VALUE;
}

test("the order of bits is: not sampled, small, large, infinite, NaN", () => {
  const { pick } = dice(1);
  const values = [MISSING, NAN, INFINITE, bitsOf(-Infinity), ...[0, -0, 1e-40, -1e-30, 3, -3.5, 1e38].map(bitsOf)];
  for (let time = 0; time < 3000; time += 1) {
    const [a, b] = [pick(values), pick(values)];
    assert.equal(Math.sign(badness(a) - badness(b)), Math.sign(rank(a) - rank(b)) || 0, `${a} ${b}`);
    assert.equal(rank(worse(a, b)), Math.max(rank(a), rank(b)));
  }
});

test("squeezing loses no NaN, no infinity and no spike, and invents nothing", () => {
  for (let seed = 0; seed < 200; seed += 1) {
    const { whole, chance, pick } = dice(seed);
    const [n, k] = [1 + whole(60), 1 + whole(30)];
    const values = Float32Array.from({ length: n * k }, () =>
      chance() < 0.02 ? pick([NaN, Infinity, -Infinity, 1e9]) : chance() - 0.5,
    );
    const bits = new Uint32Array(values.buffer);
    for (let hole = whole(n); hole > 0; hole -= 1) bits[whole(n * k)] = MISSING;
    const small = squeeze(values, n, k, 1 + whole(40), 1 + whole(40));
    const found = new Uint32Array(small.values.buffer);
    /** @type {number[][]} */
    const expected = Array.from({ length: small.n * small.k }, () => []);
    for (let column = 0; column < k; column += 1)
      for (let row = 0; row < n; row += 1)
        expected[Math.floor((column * small.k) / k) * small.n + Math.floor((row * small.n) / n)].push(
          bits[column * n + row],
        );
    expected.forEach((each, place) => assert.equal(rank(found[place]), Math.max(...each.map(rank)), `seed ${seed}`));
  }
});
