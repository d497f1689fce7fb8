import assert from "node:assert/strict";
import { test } from "node:test";
import { badness, INFINITE, MISSING, NAN, startOf, worse, worstOf } from "../../app/static/js/canvas/columns.js";
import { dice } from "./dice.mjs";

const word = new Uint32Array(1);
const float = new Float32Array(word.buffer);

/** @param {number} value */
function bitsOf(value) {
  float[0] = value;
  return word[0];
}

/** The same order, by plain comparisons of numbers. @param {number} bits */
function rank(bits) {
  if (bits === MISSING) return -1;
  word[0] = bits;
  if (Number.isNaN(float[0])) return Infinity;
  return Number.isFinite(float[0]) ? Math.abs(float[0]) : Number.MAX_VALUE;
}

test("bits are ordered from missing over small, large and infinite to NaN", () => {
  const { pick } = dice(1);
  const values = [MISSING, NAN, INFINITE, bitsOf(-Infinity), ...[0, -0, 1e-40, -1e-30, 3, -3.5, 1e38].map(bitsOf)];
  for (let time = 0; time < 3000; time += 1) {
    const [a, b] = [pick(values), pick(values)];
    assert.equal(Math.sign(badness(a) - badness(b)), Math.sign(rank(a) - rank(b)) || 0, `${a} ${b}`);
    assert.equal(rank(worse(a, b)), Math.max(rank(a), rank(b)));
  }
});

test("rows that share pixels keep every NaN, infinity and spike, and add nothing", () => {
  for (let seed = 0; seed < 200; seed += 1) {
    const { whole, chance, pick } = dice(seed);
    const rows = 1 + whole(60);
    const pixels = Math.min(rows, 1 + whole(40));
    const values = Float32Array.from({ length: rows }, () =>
      chance() < 0.02 ? pick([NaN, Infinity, -Infinity, 1e9]) : chance() - 0.5,
    );
    const bits = new Uint32Array(values.buffer);
    if (chance() < 0.5) bits[whole(rows)] = MISSING;
    /** @type {number[][]} */
    const expected = Array.from({ length: pixels }, () => []);
    for (let row = 0; row < rows; row += 1) expected[Math.floor((row * pixels) / rows)].push(bits[row]);
    expected.forEach((each, pixel) => {
      const found = worstOf(bits, startOf(pixel, rows, pixels), startOf(pixel + 1, rows, pixels));
      assert.equal(rank(found), Math.max(...each.map(rank)), `seed ${seed}`);
    });
  }
});
