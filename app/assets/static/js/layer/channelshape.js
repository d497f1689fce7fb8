// @ts-check
/** The numbers of a probe by channel and step: their order, their colors, and their descriptions. Pure. */
import { numberOf } from "../api.js";
import { colorOf } from "../canvas/colors.js";
import { count, counted, number } from "../format.js";
import { stepsOf } from "../histograms/say.js";
import { columnAt, endsOf, pixelsOf } from "../histograms/shape.js";
import { percentiles, Scale } from "../scale.js";

/** @typedef {import("../canvas/colors.js").Palette} Palette */
/**
 * @typedef {object} Channels
 * @property {number} rows
 * @property {number} columns
 * @property {number} channels more than `rows` if a row stands for several
 * @property {number} group channels of a row
 * @property {Float64Array} channel the first one of each row
 * @property {Float64Array} first steps of the columns
 * @property {Float64Array} last
 * @property {Float64Array} ends where the next column begins
 * @property {Float64Array} values row by row
 */

/** @param {import("../answers.js").Channels} said @returns {Channels} */
export function channelsOf(said) {
  const [first, last, channel] = [said.first_step, said.last_step, said.channel].map((each) => Float64Array.from(each));
  const [rows, columns] = [channel.length, first.length];
  const values = new Float64Array(rows * columns);
  for (const [place, row] of said.values.entries()) values.set(Float64Array.from(row, numberOf), place * columns);
  const group = rows > 1 ? channel[1] - channel[0] : Math.max(1, said.channels);
  const ends = endsOf({ first, last, columns });
  return { rows, columns, channels: said.channels, group, channel, first, last, ends, values };
}

/** The column of a step, or else the newest one. @param {Channels} shape @param {number | null} step */
export function columnOf(shape, step) {
  const found = step === null ? -1 : columnAt(shape, step);
  return found < 0 ? shape.columns - 1 : found;
}

/** The rows from top to bottom: by channel, or by the values of a column; then NaN is on top.
 * @param {Channels} shape @param {string} sort "" by channel, "largest", "smallest" @param {number} column
 * @returns {Uint32Array} */
export function orderOf(shape, sort, column) {
  const order = Uint32Array.from({ length: shape.rows }, (_, row) => row);
  if (!sort || column < 0) return order;
  const sign = sort === "smallest" ? 1 : -1;
  const key = (/** @type {number} */ row) => {
    const value = shape.values[row * shape.columns + column];
    return Number.isNaN(value) ? -Infinity : sign * value;
  };
  return order.sort((a, b) => {
    const [left, right] = [key(a), key(b)];
    return left < right ? -1 : left > right ? 1 : a - b;
  });
}

const WIDE = 20; // times: then the colors follow the logarithm

/** The scale of the colors. @param {ArrayLike<number>} values @param {string} kind "" is automatic */
export function scaleOf(values, kind) {
  const [low, high] = percentiles(values, "log");
  const negative = Array.prototype.some.call(values, (value) => value < 0);
  const chosen = /** @type {import("../scale.js").Kind} */ (
    kind || (!negative && high / low > WIDE ? "log" : "linear")
  );
  return new Scale(chosen, ...percentiles(values, chosen));
}

/** NaN, or else the larger one. @param {number} a @param {number} b */
function larger(a, b) {
  return Number.isNaN(a) || Number.isNaN(b) ? NaN : Math.max(a, b);
}

/** Fills pixels. Where rows or columns share a pixel, the largest value wins, or NaN.
 * @param {Uint32Array} pixels @param {number} width @param {number} height @param {Channels} shape
 * @param {Uint32Array} order @param {[number, number]} span first and last step @param {Scale} scale
 * @param {Palette} palette */
export function paintChannels(pixels, width, height, shape, order, span, scale, palette) {
  pixels.fill(palette.missing);
  const cells = new Float64Array(width * height).fill(-Infinity);
  const seen = new Uint8Array(width);
  for (let column = 0; column < shape.columns; column += 1) {
    const [left, right] = pixelsOf(shape, column, width, span);
    for (let place = 0; place < shape.rows && right > left; place += 1) {
      const top = Math.floor((place * height) / shape.rows);
      const bottom = Math.max(top + 1, Math.floor(((place + 1) * height) / shape.rows));
      const value = shape.values[order[place] * shape.columns + column];
      for (let y = top; y < bottom; y += 1)
        for (let x = left; x < right; x += 1) cells[y * width + x] = larger(cells[y * width + x], value);
    }
    seen.fill(1, left, Math.max(left, right));
  }
  for (let y = 0; y < height; y += 1)
    for (let x = 0; x < width; x += 1)
      if (seen[x]) {
        const value = cells[y * width + x];
        const level = Math.round(scale.place(value) * (palette.table.length - 1));
        pixels[y * width + x] = colorOf(palette, value, level, (x + y) % 4 === 0);
      }
}

/** `channel 17`, or `channels 16 to 23`. @param {Channels} shape @param {number} row */
export function nameOf(shape, row) {
  const first = shape.channel[row];
  const last = Math.min(shape.channels, first + shape.group) - 1;
  return first === last ? `channel ${count(first)}` : `channels ${count(first)} to ${count(last)}`;
}

/** What is at a place. @param {Channels} shape @param {Uint32Array} order @param {{step: number, place: number}} at */
export function say(shape, order, { step, place }) {
  const row = order[place];
  const column = columnAt(shape, step);
  if (column < 0) return `${nameOf(shape, row)}\nstep ${count(step)}: not captured`;
  const merged = shape.first[column] !== shape.last[column] || shape.group > 1;
  const value = shape.values[row * shape.columns + column];
  return `${nameOf(shape, row)}\n${stepsOf(shape, column)}\n${merged ? "largest: " : ""}${number(value)}`;
}

/** What the rows are. @param {Channels} shape @param {string} sort @param {number} column that they are sorted by */
export function captionOf(shape, sort, column) {
  const rows =
    shape.group > 1
      ? `${count(shape.channels)} channels in ${counted(shape.rows, "row")}: ` +
        `each row shows the largest value of ${count(shape.group)} neighboring channels, or NaN.`
      : `${counted(shape.channels, "channel")}.`;
  if (!sort) return `${rows} Channel 0 is on top.`;
  return `${rows} Sorted by the values of ${stepsOf(shape, column)}, ${sort} first.`;
}

/** A row for each channel, in the order of the picture; a column for each span of steps.
 * @param {Channels} shape @param {Uint32Array} order */
export function tableOf(shape, order) {
  const columns = Array.from(shape.first, (first) => `step ${count(first)}`);
  const rows = Array.from(order, (row) => [
    nameOf(shape, row).replace(/^channels? /, ""),
    ...shape.values.subarray(row * shape.columns, (row + 1) * shape.columns),
  ]);
  return { columns: ["channel", ...columns], rows: rows.reverse() }; // a card shows the last row first
}
