import assert from "node:assert/strict";
import { test } from "node:test";
import { labelOf } from "../../app/static/js/heat/rows.js";
import { captionOf, columnOf, kindOf, orderOf, rowsOf } from "../../app/static/js/layer/channels.js";

const said = (values, more = {}) => ({
  first_step: values[0].map((_, place) => 10 * place),
  last_step: values[0].map((_, place) => 10 * place),
  channel: values.map((_, place) => place),
  channels: values.length,
  values,
  ...more,
});

test("rows are ordered by the values of a step, with NaN on top and ties in row order", () => {
  const answer = said([
    [1, 5],
    [3, "NaN"],
    [2, 5],
    [0, "-Infinity"],
  ]);
  assert.deepEqual(orderOf(answer, "", 1), [0, 1, 2, 3]);
  assert.deepEqual(orderOf(answer, "largest", 0), [1, 2, 0, 3]);
  assert.deepEqual(orderOf(answer, "smallest", 0), [3, 0, 2, 1]);
  assert.deepEqual(orderOf(answer, "largest", 1), [1, 0, 2, 3]);
  assert.deepEqual(orderOf(answer, "smallest", 1), [1, 3, 0, 2]);
  assert.deepEqual([columnOf(answer, 4), columnOf(answer, null), columnOf(answer, 900)], [0, 1, 1]);
});

test("a group names its channels, and so does the caption", () => {
  const grouped = said([[1], [2], [3]], { channel: [0, 4, 8], channels: 10 });
  assert.deepEqual(rowsOf(grouped).map(labelOf), ["channels 0 to 3", "channels 4 to 7", "channels 8 to 9"]);
  assert.match(captionOf(grouped, "", 0), /10 channels in 3 rows: .*largest value of 4 neighboring channels, or NaN/);
  const single = said([[1, 2]]);
  assert.deepEqual(rowsOf(single).map(labelOf), ["channel 0"]);
  assert.match(captionOf(single, "smallest", 1), /^1 channel\. Sorted by the values of step 10, smallest first\.$/);
});

test("colors are logarithmic only if positive values differ by orders of magnitude", () => {
  assert.equal(kindOf(said([[1, 2, 3]]), ""), "linear");
  assert.equal(kindOf(said([[1, 10, 1000]]), ""), "log");
  assert.equal(kindOf(said([[-1, 10, 1000]]), ""), "linear");
  assert.equal(kindOf(said([[1, 2]]), "log"), "log");
});
