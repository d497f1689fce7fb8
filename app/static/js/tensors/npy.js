// @ts-check
/** A NumPy file of floats. Pure. */

/** @param {ArrayBuffer} buffer @returns {{shape: number[], values: Float32Array | Float64Array}} */
export function readNpy(buffer) {
  const bytes = new Uint8Array(buffer);
  if (String.fromCharCode(...bytes.subarray(1, 6)) !== "NUMPY") throw new Error("the server did not send a NumPy file");
  const view = new DataView(buffer);
  const [length, start] = bytes[6] === 1 ? [view.getUint16(8, true), 10] : [view.getUint32(8, true), 12];
  const header = new TextDecoder("latin1").decode(bytes.subarray(start, start + length));
  const type = /'descr': '([^']+)'/.exec(header)?.[1];
  const shape = (/'shape': \(([^)]*)\)/.exec(header)?.[1] ?? "")
    .split(",")
    .filter((part) => part.trim())
    .map(Number);
  const body = buffer.slice(start + length);
  if (type === "<f4") return { shape, values: new Float32Array(body) };
  if (type === "<f8") return { shape, values: new Float64Array(body) };
  throw new Error(`the server sent numbers of the unknown type ${type}`);
}
