import assert from "node:assert/strict";
import { test } from "node:test";
import { Columns, MISSING, NAN } from "../../app/static/js/canvas/columns.js";
import { dice } from "./dice.mjs";

/** @param {string} kind @param {[number, number, number[]][]} columns first step, last step, bits */
function frame(kind, columns) {
  const n = columns[0]?.[2].length ?? 3;
  return {
    kind,
    k: columns.length,
    n,
    bits: Uint32Array.from(columns.flatMap((each) => each[2])),
    first: columns.map((each) => each[0]),
    last: columns.map((each) => each[1]),
    nonfinite: columns.map(() => 0),
  };
}

/** @param {Columns} columns */
const held = (columns) =>
  Array.from({ length: columns.length }, (_, i) => [columns.first(i), columns.last(i), [...columns.bits(i)]]);

test("a ring holds the same as a plain list, whatever is repeated", () => {
  for (let seed = 0; seed < 300; seed += 1) {
    const { whole, chance } = dice(seed);
    const [rows, capacity] = [1 + whole(4), 2 + whole(9)];
    const columns = new Columns(rows, capacity);
    /** @type {[number, number, number[]][]} */
    let plain = [];
    let step = 0;
    for (let deed = 0; deed < 40; deed += 1) {
      if (plain.length && chance() < 0.2) step = plain[plain.length - 1][1]; // the newest step comes again
      /** @type {[number, number, number[]][]} */
      const fresh = [];
      for (let many = 1 + whole(4); many > 0; many -= 1) {
        const last = step + (chance() < 0.2 ? whole(5) : 0);
        fresh.push([step, last, Array.from({ length: rows }, () => 1 + whole(1000))]);
        step = last + 1;
      }
      columns.take(frame("delta", fresh));
      plain = plain.filter(([first]) => first < fresh[0][0]);
      const before = plain.at(-1);
      if (before) plain[plain.length - 1] = [before[0], Math.min(before[1], fresh[0][0] - 1), before[2]];
      plain = [...plain, ...fresh].slice(-capacity);
      assert.deepEqual(held(columns), plain, `seed ${seed}`);
      const asked = whole(step + 3);
      assert.equal(
        columns.find(asked),
        plain.findLastIndex(([first]) => first <= asked),
        `seed ${seed}`,
      );
    }
  }
});

test("a snapshot replaces the steps it covers, and adjoining earlier steps stay", () => {
  const columns = new Columns(1, 10);
  columns.take(
    frame("snapshot", [
      [0, 0, [1]],
      [1, 1, [2]],
      [2, 2, [3]],
    ]),
  );
  columns.take(
    frame("snapshot", [
      [2, 2, [9]],
      [3, 3, [4]],
    ]),
  );
  assert.deepEqual(
    held(columns).map((each) => each[2][0]),
    [1, 2, 9, 4],
  );
});

test("a snapshot of another time replaces the whole previous window", () => {
  const columns = new Columns(1, 10);
  columns.take(frame("snapshot", [[0, 0, [1]]]));
  columns.take(frame("snapshot", [[500, 500, [2]]]));
  assert.deepEqual(held(columns), [[500, 500, [2]]]);
  columns.take(frame("snapshot", [[100, 100, [3]]]));
  assert.deepEqual(held(columns), [[100, 100, [3]]]);
});

test("a frame without columns or rows changes nothing: a restarted server has none at first", () => {
  const columns = new Columns(3, 10);
  columns.take(frame("delta", [[0, 0, [1, 2, 3]]]));
  for (const kind of ["delta", "snapshot"]) assert.equal(columns.take(frame(kind, [])), null);
  assert.equal(columns.take({ kind: "snapshot", k: 0, n: 0, bits: new Uint32Array(0), first: [], last: [] }), null);
  assert.equal(columns.length, 1);
});

test("a step in which nothing was captured leaves no column", () => {
  const columns = new Columns(2, 10);
  columns.take(
    frame("delta", [
      [0, 0, [1, MISSING]],
      [1, 1, [MISSING, MISSING]],
      [2, 2, [MISSING, 4]],
    ]),
  );
  assert.deepEqual(
    held(columns).map((each) => each[0]),
    [0, 2],
  );
});

test("in a window longer than the ring, steps share a column, and a NaN among them stays", () => {
  const columns = new Columns(1, 10, 5);
  for (let step = 0; step < 48; step += 1)
    columns.take(frame("delta", [[step, step, [step === 12 ? NAN : 0x3f800000 + step]]]));
  assert.equal(columns.length, 10);
  assert.deepEqual([columns.first(2), columns.last(2), columns.bits(2)[0]], [10, 14, NAN]);
  assert.deepEqual([columns.first(9), columns.last(9), columns.bits(9)[0]], [45, 47, 0x3f800000 + 47]);
});

test("a frame with a different number of rows is refused, and the error names both numbers", () => {
  assert.throws(() => new Columns(2, 10).take(frame("delta", [[0, 0, [1, 2, 3]]])), /3 rows, expected 2/);
});
