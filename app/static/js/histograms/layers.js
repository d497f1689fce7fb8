// @ts-check
/** The layers of the Histograms page: their types, newest values, and drift. */
import { get, getAll, numberOf } from "../api.js";
import { MAX_LATEST, MAX_PAGE } from "../limits.js";
import { ROOT } from "../vocabulary.js";
import { driftOf } from "./order.js";

const COLUMNS = 12; // of the heatmap from which drift is computed
const ROWS = 5000;

/** @typedef {import("./order.js").Layer} Layer */
/** @typedef {{type: string, place: number}} Placed */

/** All modules of a run, by path.
 * @param {string} run @param {AbortSignal} signal @returns {Promise<Map<string, Placed>>} */
export async function modulesOf(run, signal) {
  const parts = await getAll(`runs/${encodeURIComponent(run)}/modules`, { limit: MAX_PAGE }, signal);
  const modules = parts.flatMap((part) => part.modules);
  return new Map(modules.map(({ path, type }, place) => [path, { type, place }]));
}

/** The layers of a kind with their newest values in some steps.
 * @param {string} run @param {string} kind @param {Map<string, Placed>} modules
 * @param {{from?: number, to?: number}} steps @param {AbortSignal} signal @returns {Promise<Layer[]>} */
export async function layersOf(run, kind, modules, steps, signal) {
  const query = { run, kind, limit: MAX_LATEST };
  const said = await get("latest", query, signal);
  const shown = steps.to === undefined ? said : await get("latest", { ...query, ...steps }, signal);
  const values = new Map(shown.taps.map((tap) => [tap.number, tap.values]));
  const column = (/** @type {string} */ name) => said.stats.indexOf(name);
  const [zero, spread, bad] = ["zero_fraction", "std", "nonfinite"].map(column);
  return said.taps.map((tap) => {
    const at = values.get(tap.number) ?? []; // nothing if it wasn't captured in these steps
    return {
      tap: Number(tap.number),
      module: tap.module,
      label: tap.label.slice((tap.module || ROOT).length).trim(),
      type: modules.get(tap.module)?.type ?? "",
      place: modules.get(tap.module)?.place ?? modules.size,
      zero: numberOf(at[zero]),
      spread: numberOf(at[spread]),
      bad: numberOf(at[bad]),
      drift: NaN,
    };
  });
}

/** Sets each layer's drift over the shown steps.
 * @param {string} run @param {string} kind @param {[number, number] | null} span @param {Layer[]} layers @param
 * {AbortSignal} signal */
export async function addDrift(run, kind, span, layers, signal) {
  const [from, to] = span ?? [];
  const said = await get("heatmap", { run, kind, stat: "rms", columns: COLUMNS, rows: ROWS, from, to }, signal);
  const drifts = driftOf(
    said.worst.map((row) => row.map(numberOf)),
    said.state,
  );
  const found = new Map(said.rows.map((row, place) => [row.number, drifts[place]]));
  for (const layer of layers) layer.drift = found.get(layer.tap) ?? NaN;
}
