/** Charts on the board: what a chart asks, without its run and its steps. */
import { get, send } from "../api.js";
import { shorten } from "../format.js";
import { MAX_CHART_NAME, MAX_CHART_QUERY } from "../limits.js";
import { attempt, toast } from "../popup.js";
import { SYSTEM } from "../vocabulary.js";

/** @import { Query } from "../card.js" */

const PATHS = ["series", "scalars"];
const OF_RUN = ["run", "from", "to", "points", "limit", "after"];

/** @typedef {{name: string, path: string, query: string}} Pin */

/** What the board keeps of a chart; null if it can't show such a chart. Pure.
 * @param {Query[]} queries @param {string} title @returns {Pin | null} */
export function pinOf(queries, title) {
  const [only] = queries;
  if (queries.length !== 1 || !PATHS.includes(only.path)) return null;
  const about = [only.query[only.path === "series" ? "tap" : "name"] ?? []].flat().filter(Boolean).map(String);
  if (!about.length) return null;
  const parameters = Object.entries(only.query).flatMap(([name, value]) =>
    OF_RUN.includes(name) || value === undefined || value === null || value === ""
      ? []
      : [value].flat().map((part) => [name, String(part)]),
  );
  const query = new URLSearchParams(parameters).toString();
  return query.length > MAX_CHART_QUERY ? null : { name: nameOf(only.path, about, title), path: only.path, query };
}

/** A logged value has its own name; a chart of the machine has its title; others begin with their layers.
 * @param {string} path @param {string[]} about @param {string} title */
function nameOf(path, about, title) {
  if (path === "scalars")
    return shorten(about.length === 1 && !about[0].startsWith(SYSTEM) ? about[0] : title, MAX_CHART_NAME);
  const [layer, ...others] = new Set(about.map((label) => label.split(" ", 1)[0]));
  const more = others.length ? ` and ${others.length} more` : "";
  return shorten(`${layer}${more}: ${title}`, MAX_CHART_NAME);
}

/** A query string as an object; a repeated parameter becomes a list. Pure. @param {string} text
 * @returns {Record<string, string[]>} */
export function queryOf(text) {
  const parameters = new URLSearchParams(text);
  return Object.fromEntries([...new Set(parameters.keys())].map((name) => [name, parameters.getAll(name)]));
}

/** A name that no other chart has; null if the chart is there already. Pure.
 * @param {Pin} wanted @param {readonly Pin[]} charts @returns {string | null} */
export function freeName({ name, path, query }, charts) {
  if (charts.some((chart) => chart.path === path && chart.query === query)) return null;
  const taken = new Set(charts.map((chart) => chart.name));
  for (let number = 1; ; number += 1) {
    const free = number === 1 ? name : `${shorten(name, MAX_CHART_NAME - 6)} (${number})`;
    if (!taken.has(free)) return free;
  }
}

/** Keeps a chart. @param {Pin | null} wanted @returns {Promise<boolean>} whether it worked */
export async function pin(wanted) {
  if (!wanted) return false;
  return attempt("Pinning failed", async () => {
    const name = freeName(wanted, (await get("board")).charts);
    if (name === null) return toast("This chart is on the board already.");
    await send("PUT", "board", { ...wanted, name });
    toast(`Pinned to the board: ${name}`, { undo: () => void unpin(name) });
  });
}

/** Takes a chart off. @param {string} name @returns {Promise<boolean>} whether it worked */
export function unpin(name) {
  return attempt("Unpinning failed", () => send("DELETE", "board", undefined, { name }));
}
