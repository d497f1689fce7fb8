/** REST from a page. JSON can't represent NaN and infinities, so they arrive as words, which are converted here. */
import { byId } from "./dom.js";
import { PARTIAL } from "./vocabulary.js";
/** @import { AnswerOf } from "./answers.js" */

/** @param {Response} response
 * @param {{isWhole?: boolean}} [how] `isWhole`: it is the page itself, so without the header nothing is missing */
export function notePartial(response, { isWhole = false } = {}) {
  const words = response.headers.get(PARTIAL) ?? "";
  if (!words && !isWhole) return;
  byId("partial").hidden = !words;
  byId("partial-words").textContent = words;
}

const MAX_KEPT_ALIVE = 20_000; // characters, of up to three bytes
const WORDS = new Map([
  ["NaN", NaN],
  ["Infinity", Infinity],
  ["-Infinity", -Infinity],
]);

/** The number that an answer contains: "NaN" and the infinities are words. @param {unknown} value @returns {number} */
export function numberOf(value) {
  return typeof value === "number" ? value : (WORDS.get(String(value)) ?? NaN);
}

/** An error message from the server; `status` is 0 if none answered. */
export class ApiError extends Error {
  /** @param {number} status @param {string} sentence */
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

/** @param {string} path below api/v1
 * @param {Record<string, any>} [query] null is omitted; a list becomes several parameters */
export function urlOf(path, query = {}) {
  const asked = Object.entries(query).flatMap(([name, value]) => [value].flat().map((each) => [name, each]));
  const given = asked.filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `api/v1/${path}${text ? `?${text}` : ""}`;
}

/** The server didn't answer. */
export class NoAnswer extends ApiError {
  constructor() {
    super(0, "The dashboard isn\u2019t responding");
  }
}

/** `fetch` with a readable error. @param {string} address @param {RequestInit} [request] */
export async function reach(address, request) {
  try {
    return await fetch(address, request);
  } catch (error) {
    if (error instanceof TypeError) throw new NoAnswer();
    throw error;
  }
}

/** @template {string} P @param {P} path @param {Record<string, any>} [query] @param {AbortSignal} [signal]
 * @returns {Promise<AnswerOf<P>>} */
export async function get(path, query, signal) {
  return answerOf(await reach(urlOf(path, query), { signal, headers: { Accept: "application/json" } }));
}

/** What the server has in another format than JSON.
 * @param {string} path @param {Record<string, any>} query with the format @param {AbortSignal} [signal] */
export async function getFile(path, query, signal) {
  const response = await reach(urlOf(path, query), { signal });
  if (!response.ok) await answerOf(response); // which throws
  return response;
}

/** All parts of a list. @template {string} P @param {P} path @param {Record<string, any>} query @param {AbortSignal}
 * [signal] @returns {Promise<AnswerOf<P>[]>} */
export async function getAll(path, query, signal) {
  const parts = [];
  for (let after = 0; after !== null; ) {
    const part = await get(path, { ...query, after }, signal);
    parts.push(part);
    after = /** @type {any} */ (part).next;
  }
  return parts;
}

/** The part of a query that asks for one module. @param {string} path "" is the root */
export function only(path) {
  return path ? { module: path } : { match: "is:root" };
}

/** @param {"POST" | "PATCH" | "DELETE" | "PUT"} method @param {string} path @param {any} [body]
 * @param {Record<string, any>} [query] @param {AbortSignal} [signal] @returns {Promise<any>} */
export async function send(method, path, body, query, signal) {
  const headers = { "Content-Type": "application/json", Accept: "application/json" };
  const text = body === undefined ? undefined : JSON.stringify(body);
  // keepalive: a change that is requested while the page closes is still made. Browsers limit the size of such
  // requests.
  const request = { method, headers, keepalive: (text?.length ?? 0) < MAX_KEPT_ALIVE, body: text, signal };
  return answerOf(await reach(urlOf(path, query), request));
}

/** @param {Response} response */
async function answerOf(response) {
  notePartial(response);
  // Errors of a proxy are HTML.
  const isJson = response.headers.get("Content-Type")?.includes("json");
  const said = isJson ? await response.json() : null;
  if (!response.ok) throw new ApiError(response.status, said?.error ?? `the server answered ${response.status}`);
  return said;
}
