import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import * as format from "../../app/static/js/format.js";

const { count, number, pace, percent, setForm } = format;

const cases = JSON.parse(readFileSync(new URL("number_cases.json", import.meta.url), "utf8"));
const valueOf = (value) =>
  new Map([
    ["NaN", NaN],
    ["Infinity", Infinity],
    ["-Infinity", -Infinity],
  ]).get(value) ?? value;

test("a count of one has its noun in the singular", () => {
  assert.deepEqual(
    [0, 1, 2000].map((many) => format.counted(many, "layer")),
    ["0 layers", "1 layer", "2,000 layers"], // as in test_numerals.py
  );
});

for (const [name, some] of Object.entries(cases)) {
  test(`a ${name} reads as the table says, which the server is held to as well`, () => {
    for (const [value, words] of some) assert.equal(format[name](valueOf(value)), words, `${name} of ${value}`);
  });
}

test("non-finite values have names, and missing ones are a dash", () => {
  assert.deepEqual(
    [NaN, Infinity, -Infinity, null, undefined].map((value) => number(value)),
    ["NaN", "Infinity", "-Infinity", "-", "-"],
  );
});

test("the reader chooses how numbers are written", () => {
  setForm({ digits: 2, style: "scientific" });
  assert.equal(number(1234), "1.2e3");
  setForm({ digits: 4, style: "auto" });
  assert.equal(number(1234), "1,234");
  assert.equal(number(1234.5678, { digits: 8 }), "1,234.5678");
});

test("a small share is not shown as zero", () => {
  assert.deepEqual([0, 1e-9, 0.25, 1, NaN, null].map(percent), ["0.0%", "< 0.1%", "25.0%", "100.0%", "NaN", "-"]);
});

test("a missing value is a dash or empty", () => {
  assert.deepEqual([count(null), pace(null)], ["-", ""]);
});
