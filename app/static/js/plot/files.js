/** Files that a page hands to the reader. */
import { getFile } from "../api.js";
/** @import { Query } from "../card.js" */

/** A name that every file system takes. @param {...string} parts */
export function fileName(...parts) {
  const words = parts.filter(Boolean).map((part) => part.replace(/[^A-Za-z0-9._-]+/g, "-").replace(/^-+|-+$/g, ""));
  return ["hookcore", ...words].filter(Boolean).join("_").slice(0, 150);
}

/** A field of CSV: quoted if needed, NaN and the infinities as NumPy writes them, and no text that a spreadsheet would
 * run as a formula. @param {unknown} value */
function field(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number" && !Number.isFinite(value))
    return Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";
  const isFormula = typeof value === "string" && /^[=+\-@\t\r\n]/.test(value) && Number.isNaN(Number(value));
  const text = isFormula ? `'${value}` : String(value);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** @param {HTMLCanvasElement} canvas @returns {Promise<Blob>} a PNG */
export async function imageOf(canvas) {
  const blob = await new Promise((/** @type {BlobCallback} */ done) => canvas.toBlob(done, "image/png"));
  if (!blob) throw new Error("the browser could not create the image");
  return blob;
}

/** @param {string[]} columns @param {any[][]} rows */
export function csvOf(columns, rows) {
  return [columns, ...rows].map((row) => `${row.map(field).join(",")}\r\n`).join("");
}

/** JSON with the words for what JSON cannot say. @param {string[]} columns @param {any[][]} rows */
export function jsonOf(columns, rows) {
  const replace = (/** @type {string} */ _, /** @type {any} */ value) =>
    typeof value === "number" && !Number.isFinite(value)
      ? Number.isNaN(value)
        ? "NaN"
        : value > 0
          ? "Infinity"
          : "-Infinity"
      : value;
  return JSON.stringify({ columns, rows }, replace);
}

/** @param {Blob} blob @param {string} name */
export function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** The server's data for this chart, in one of its formats. @param {Query} asked @param {"csv" | "json"} format */
export async function fetchFile({ path, query }, format) {
  return (await getFile(path, { ...query, format })).blob();
}

/** The bytes of a data: address. @param {string} url */
export function blobOf(url) {
  const [head, body] = [url.slice(5, url.indexOf(",")), url.slice(url.indexOf(",") + 1)];
  const text = head.endsWith(";base64") ? atob(body) : null;
  const bytes = text === null ? decodeURIComponent(body) : Uint8Array.from(text, (sign) => sign.charCodeAt(0));
  return new Blob([bytes], { type: head.split(";")[0].split(",")[0] });
}
