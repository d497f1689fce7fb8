import assert from "node:assert/strict";
import { test } from "node:test";
import {
  captionOf,
  channelsOf,
  columnOf,
  nameOf,
  orderOf,
  paintChannels,
  say,
  scaleOf,
  tableOf,
} from "../../app/assets/static/js/layer/channelshape.js";

const said = (values, more = {}) => ({
  first_step: values[0].map((_, place) => 10 * place),
  last_step: values[0].map((_, place) => 10 * place),
  channel: values.map((_, place) => place),
  channels: values.length,
  values,
  ...more,
});
const PALETTE = {
  table: Uint32Array.from({ length: 256 }, (_, place) => 1000 + place),
  nan: 1,
  inf: 2,
  missing: 3,
  nanHatch: 1,
  infHatch: 2,
};

test("rows are ordered by the values of a step, with NaN on top and ties in row order", () => {
  const shape = channelsOf(
    said([
      [1, 5],
      [3, "NaN"],
      [2, 5],
      [0, "-Infinity"],
    ]),
  );
  assert.deepEqual([...orderOf(shape, "", 1)], [0, 1, 2, 3]);
  assert.deepEqual([...orderOf(shape, "largest", 0)], [1, 2, 0, 3]);
  assert.deepEqual([...orderOf(shape, "smallest", 0)], [3, 0, 2, 1]);
  assert.deepEqual([...orderOf(shape, "largest", 1)], [1, 0, 2, 3]);
  assert.deepEqual([...orderOf(shape, "smallest", 1)], [1, 3, 0, 2]);
  assert.deepEqual([columnOf(shape, 4), columnOf(shape, null), columnOf(shape, 900)], [0, 1, 1]);
});

test("channels that share a pixel show the largest value, or NaN", () => {
  const shape = channelsOf(said([[0], [1], [0], ["NaN"], ["Infinity"], [0.5]]));
  const pixels = new Uint32Array(3);
  const scale = scaleOf([0, 1], "linear");
  paintChannels(pixels, 1, 3, shape, orderOf(shape, "", 0), [0, 0], scale, PALETTE);
  assert.deepEqual([...pixels], [1255, 1, 2]);
});

test("a column extends to the next one, and uncaptured steps stay gray", () => {
  const shape = channelsOf(said([[0, 1, 0]], { first_step: [10, 20, 60], last_step: [10, 20, 60] }));
  const pixels = new Uint32Array(80);
  paintChannels(pixels, 80, 1, shape, orderOf(shape, "", 0), [0, 79], scaleOf([0, 1], "linear"), PALETTE);
  assert.equal(pixels[9], 3);
  assert.deepEqual([pixels[10], pixels[19], pixels[20]], [1000, 1000, 1255]);
  assert.equal(pixels[50], 3);
  assert.equal(pixels[60], 1000);
});

test("a group names its channels, and so does the caption", () => {
  const shape = channelsOf(said([[1], [2], [3]], { channel: [0, 4, 8], channels: 10 }));
  assert.deepEqual([nameOf(shape, 1), nameOf(shape, 2)], ["channels 4 to 7", "channels 8 to 9"]);
  assert.equal(say(shape, orderOf(shape, "largest", 0), { step: 0, place: 0 }), "channels 8 to 9\nstep 0\nlargest: 3");
  assert.match(captionOf(shape, "", 0), /10 channels in 3 rows: .*largest value of 4 neighboring channels, or NaN/);
  const single = channelsOf(said([[1, 2]]));
  assert.equal(say(single, orderOf(single, "", 0), { step: 12, place: 0 }), "channel 0\nstep 10\n2");
  assert.equal(say(single, orderOf(single, "", 0), { step: 70, place: 0 }), "channel 0\nstep 70: not captured");
  assert.match(captionOf(single, "smallest", 1), /^1 channel\. Sorted by the values of step \d+, smallest first\.$/);
});

test("the table has the same order as the image: a card shows the last row first", () => {
  const shape = channelsOf(
    said([
      [1, 2],
      [5, 6],
    ]),
  );
  const { columns, rows } = tableOf(shape, orderOf(shape, "largest", 1));
  assert.deepEqual(columns, ["channel", "step 0", "step 10"]);
  assert.deepEqual(rows, [
    ["0", 1, 2],
    ["1", 5, 6],
  ]);
});

test("colors are logarithmic only if positive values differ by orders of magnitude", () => {
  assert.equal(scaleOf([1, 2, 3], "").kind, "linear");
  assert.equal(scaleOf([1, 10, 1000], "").kind, "log");
  assert.equal(scaleOf([-1, 10, 1000], "").kind, "linear");
  assert.equal(scaleOf([1, 2], "log").kind, "log");
});
