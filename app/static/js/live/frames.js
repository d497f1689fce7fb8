// @ts-check
/** The binary frames of the socket, read without a copy. docs/live.md has the table of bytes. Pure. */

const HEADER = 32;
const KINDS = /** @type {const} */ (["", "snapshot", "delta", "json"]);
const WIDTHS = [0, 4, 1]; // bytes of a value: none, f4, u8

/**
 * @typedef {object} Frame
 * @property {"" | "snapshot" | "delta" | "json"} kind
 * @property {number} id the subscription
 * @property {number} sequence
 * @property {number} time_s when the server sent it, since 1970
 * @property {import("../answers.js").Message | null} json the message; null in frames of values
 * @property {number} k columns
 * @property {number} n rows
 * @property {Float32Array | Uint8Array} values column by column; u8 where colors were asked for
 * @property {Uint32Array | null} bits the same values as integers: missing samples are MISSING (canvas/worst.js)
 * @property {Float64Array} first the first step of each column
 * @property {Float64Array} last
 * @property {Uint32Array} nonfinite how many rows of each column were not finite
 */

/** @param {ArrayBuffer} buffer @returns {Frame} */
export function decode(buffer) {
  const head = new DataView(buffer);
  const kind = KINDS[head.getUint8(0)];
  if (!kind)
    throw new Error(`unknown frame kind ${head.getUint8(0)}: the server has a different version. Reload the page`);
  const width = WIDTHS[head.getUint8(1)];
  const about = {
    kind,
    id: head.getUint16(2, true),
    sequence: head.getUint32(4, true),
    time_s: head.getFloat64(24, true),
  };
  const [k, n] = [head.getUint32(16, true), head.getUint32(20, true)];
  const steps = HEADER + Math.ceil((k * n * width) / 8) * 8;
  return {
    ...about,
    k,
    n,
    json: kind === "json" ? JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, HEADER))) : null,
    values: width === 1 ? new Uint8Array(buffer, HEADER, k * n) : new Float32Array(buffer, HEADER, k * n),
    bits: width === 1 ? null : new Uint32Array(buffer, HEADER, k * n),
    first: new Float64Array(buffer, kind === "json" ? HEADER - 8 : steps, k),
    last: new Float64Array(buffer, kind === "json" ? HEADER - 8 : steps + 8 * k, k),
    nonfinite: new Uint32Array(buffer, kind === "json" ? HEADER - 8 : steps + 16 * k, k),
  };
}
