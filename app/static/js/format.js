/** Numbers, times, and kinds of tensors in words. Pure. The reader chooses digits and style (prefs.js). */
import { KIND_WORDS, ROOT } from "./vocabulary.js";

/** @typedef {{digits: number, style: "auto" | "scientific"}} Form */

/** As the server writes numbers (app/analysis/numerals.py). @type {Form} */
const AUTO = { digits: 4, style: "auto" };

/** @type {Form} */
const form = { ...AUTO };

/** From now on numbers are written like this. @param {Partial<Form>} wanted */
export function setForm(wanted) {
  Object.assign(form, wanted);
}

/** 0.01235, 1.235e-5, 12,350; NaN and the infinities by name.
 * @param {number | null | undefined} value @param {Partial<Form>} [how] */
export function number(value, how = form) {
  if (value === null || value === undefined) return "-";
  if (!Number.isFinite(value)) return String(value);
  const { digits, style } = { ...form, ...how };
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (style === "scientific" || size < 1e-3 || size >= 10 ** Math.max(6, digits))
    return trimmed(value.toExponential(digits - 1));
  return withCommas(String(Number(value.toPrecision(digits))));
}

/** 1 layer, 2,000 layers. @param {number} many @param {string} noun of one */
export function counted(many, noun, several = `${noun}s`) {
  return `${count(many)} ${many === 1 ? noun : several}`;
}

/** 12345.678 is 12,345.678. The browser's own formatting takes 20 ms at its first use, before the first chart.
 * @param {string} text a number without an exponent */
function withCommas(text) {
  const [whole, ...rest] = text.split(".");
  return [whole.replace(/\B(?=(\d{3})+$)/g, ","), ...rest].join(".");
}

/** 1.200e-5 is 1.2e-5. @param {string} text */
function trimmed(text) {
  return text.replace(/\.?0*e\+?(-?)/, "e$1");
}

/** 12,345. @param {number | null | undefined} value */
export function count(value) {
  return value === null || value === undefined
    ? "-"
    : Number.isFinite(value)
      ? withCommas(String(Number(value.toFixed(3))))
      : String(value);
}

/** step 7, or steps 7 to 12. @param {number} first @param {number} last */
export function stepWords(first, last) {
  return first === last ? `step ${count(first)}` : `steps ${count(first)} to ${count(last)}`;
}

/** What people read in place of a scalar's name: `loss` for what backward() was called on. @param {string} name */
export function titled(name) {
  if (name === "recent_loss") return "recent loss";
  return name.startsWith("backward/loss") ? name.slice("backward/".length) : name;
}

/** A share; a small one that is not zero does not look like zero. @param {number | null | undefined} share */
export function percent(share) {
  if (share === null || share === undefined) return "-";
  if (!Number.isFinite(share)) return String(share);
  if (share > 0 && share < 0.001) return "< 0.1%";
  return Math.abs(share) >= 1e4 ? `${number(share * 100, AUTO)}%` : `${(share * 100).toFixed(1)}%`;
}

/** Seconds: 3.2 ms, 12 s, 2 min 5 s, 3 h 12 min, 2 d 4 h. @param {number} seconds @returns {string} */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return String(seconds);
  if (seconds < 0) return `-${duration(-seconds)}`;
  if (seconds < 1e-3) return `${Number((seconds * 1e6).toPrecision(3))} \u00b5s`;
  if (seconds < 1) return `${Number((seconds * 1e3).toPrecision(3))} ms`;
  if (seconds < 10) return `${Number(seconds.toPrecision(2))} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return two(whole, 60, "min", 1, "s");
  return whole < 86400 ? two(whole, 3600, "h", 60, "min") : two(whole, 86400, "d", 3600, "h");
}

/** @param {number} whole @param {number} large @param {string} its @param {number} small @param {string} of */
function two(whole, large, its, small, of) {
  const rest = Math.floor((whole % large) / small);
  return `${Math.floor(whole / large)} ${its}${rest ? ` ${rest} ${of}` : ""}`;
}

/** 512 B, 1.5 kB, 12 MB. @param {number} size */
export function bytes(size) {
  return inUnits(size, ["B", "kB", "MB", "GB", "TB"]);
}

/** @param {number} size @param {string[]} units each a thousand times the one before */
export function inUnits(size, units) {
  if (!Number.isFinite(size)) return String(size);
  let place = 0;
  while (Math.abs(size) >= 999.5 && place < units.length - 1) {
    size /= 1000;
    place += 1;
  }
  return `${Number(size.toPrecision(3))} ${units[place]}`;
}

/** Steps a second: 18/s, 1.2/s, or seconds per step if it is slow: 3.5 s a step. @param {number | null} perSecond */
export function pace(perSecond) {
  if (perSecond === null || !Number.isFinite(perSecond) || perSecond <= 0) return "";
  if (perSecond < 0.2) return `${duration(1 / perSecond)} a step`;
  return `${perSecond >= 10 ? count(Math.round(perSecond)) : Number(perSecond.toPrecision(2))}/s`;
}

/** A text that is cut in its middle, because names often differ at their ends. @param {string} text
 * @param {number} [most] */
export function shorten(text, most = 18) {
  const end = Math.floor((most - 1) * 0.6);
  return text.length > most ? `${text.slice(0, most - 1 - end)}\u2026${text.slice(-end)}` : text;
}

/** Whether values of a kind are of each rank's own loss, before the all-reduce. @param {string} kind */
export function isLocal(kind) {
  const local = globalThis.document?.body?.dataset.local ?? "";
  return local.split(" ").includes(kind) && kind !== "";
}

/** Whether a kind is about the parameters of a module, whichever of its calls. @param {string} kind */
export function ofParameters(kind) {
  return kind !== "" && !kind.startsWith("output") && !kind.startsWith("input") && kind !== "probe";
}

/** How the server names the modules of the page's run: see `ModuleNames` in app/pages/frame.py.
 * @type {{shared: string, spelled: Record<string, string>, root?: string} | null} */
let names = null;

/** The name of a module in an axis, a table, or a label: without what all paths begin with, and with its class and
 * shape if it would be a number. @param {string} path */
export function moduleName(path) {
  names ??= JSON.parse(globalThis.document?.body?.dataset?.names || '{"shared":"","spelled":{},"root":""}');
  const { shared, spelled, root = "" } = /** @type {NonNullable<typeof names>} */ (names);
  if (!path) return root || ROOT;
  return spelled[path] ?? (shared && path.startsWith(shared) ? path.slice(shared.length) : path);
}

/** What a tensor is within its module, as `stream` in templates.
 * @param {{module: string, kind: string, label: string}} tap */
export function streamWords({ module, kind, label }) {
  return kindWords(kind) + label.slice(`${module || ROOT} ${kind}`.length);
}

/** The same with its module, as `Tap.words` of the server.
 * @param {{module: string, kind: string, label: string}} tap */
export function tapWords(tap) {
  return `${moduleName(tap.module)} ${streamWords(tap)}`;
}

/** @param {string} kind */
export function kindWords(kind) {
  return `${KIND_WORDS[kind] ?? kind}${isLocal(kind) ? " (local)" : ""}`;
}
