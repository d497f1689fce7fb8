import assert from "node:assert/strict";
import { test } from "node:test";
import { ago, bytes, count, duration, number, pace, percent, setForm } from "../../app/static/js/format.js";

test("a number has four digits, commas, and an exponent where it is small or large", () => {
  const cases = [[0, "0"], [1.23456, "1.235"], [-12345.6, "-12,350"], [0.0123456, "0.01235"], [0.000012, "1.2e-5"], [1234567, "1.235e6"], [999999.4, "1,000,000"], [100, "100"]];
  for (const [value, words] of cases) assert.equal(number(value), words);
});

test("what is not finite is called by its name, and what is not there is a dash", () => {
  assert.deepEqual([NaN, Infinity, -Infinity, null, undefined].map((value) => number(value)), ["NaN", "Infinity", "-Infinity", "-", "-"]);
});

test("the reader chooses how numbers are written", () => {
  setForm({ digits: 2, style: "scientific" });
  assert.equal(number(1234), "1.2e3");
  setForm({ digits: 4, style: "auto" });
  assert.equal(number(1234), "1,234");
  assert.equal(number(1234.5678, { digits: 8 }), "1,234.5678");
});

test("a small share does not look like none", () => {
  assert.deepEqual([0, 1e-9, 0.25, 1, NaN, null].map(percent), ["0.0%", "< 0.1%", "25.0%", "100.0%", "NaN", "-"]);
});

test("times have at most two units", () => {
  assert.deepEqual([0.0000032, 0.0032, 3.21, 42, 125, 3600, 11520, 187200, -42].map(duration), ["3.2 \u00b5s", "3.2 ms", "3.2 s", "42 s", "2 min 5 s", "1 h", "3 h 12 min", "2 d 4 h", "-42 s"]);
  assert.deepEqual([0, 12, 90, 7200, 200000].map(ago), ["just now", "12 s ago", "1 min ago", "2 h ago", "2 d ago"]);
});

test("bytes are in the unit that fits, and counts have commas", () => {
  assert.deepEqual([0, 999, 1500, 12_345_678, 2e9].map(bytes), ["0 B", "999 B", "1.5 kB", "12.3 MB", "2 GB"]);
  assert.equal(count(1234567), "1,234,567");
});

test("a slow training has seconds a step", () => {
  assert.deepEqual([null, 0, 0.1, 1.23, 18.4, 1234].map(pace), ["", "", "10 s a step", "1.2/s", "18/s", "1,234/s"]);
});
