/** Paths of modules that fit into little room, and still differ where the paths do. Pure. */
import { shorten } from "./format.js";

const READABLE = 5; // characters of a shortened part; fewer are useless,
const LEAST = 3; // but tell it from others
const LETTERS = /[^. \u2026\d]+/g; // what stands between the numbers of a path
const MAX_FITTED = 20_000;

/** Texts as they fit, by font, room, and text. @type {Map<string, string>} */
const kept = new Map();

/** How many names all paths begin with; each keeps at least one of its own.
 * @param {readonly {module: string}[]} rows */
export function sharedBy(rows) {
  /** @type {string[] | null} */
  let names = null;
  let begin = "";
  for (const { module } of rows) {
    if (!module) continue; // the root
    names ??= module.split(".").slice(0, -1);
    begin ||= names.map((name) => `${name}.`).join("");
    while (names.length && !module.startsWith(begin)) begin = begin.slice(0, -1 - (names.pop() ?? "").length);
    if (!names.length) return 0;
  }
  return names?.length ?? 0;
}

/** A path that fits: without the first names, if all others have them too, then with its longest names cut. The numbers
 * that tell layers apart go last. @param {string} path @param {(text: string) => boolean} fits @param {number} [shared]
 * how many names all paths begin with */
export function shortPath(path, fits, shared = 0) {
  if (fits(path)) return path;
  const names = path.split(".");
  const without = (/** @type {number} */ many) => (many ? `\u2026${names.slice(many).join(".")}` : path);
  const common = Math.min(shared, names.length - 1);
  for (let from = 1; from <= common; from += 1) if (fits(without(from))) return without(from);
  const numbered = names.findIndex((name, place) => place >= common && /\d/.test(name));
  const last = numbered < 0 ? names.length - 1 : numbered;
  for (let from = common; from <= last; from += 1) {
    const cut = withNamesCut(without(from), from < last ? READABLE : LEAST, fits);
    if (cut) return cut;
  }
  return shortened(numbered < 0 ? path : without(last).replace(LETTERS, "\u2026"), fits);
}

/** A path whose longest runs of letters are cut as little as it takes; "" if it doesn't fit.
 * @param {string} path @param {number} least letters of a run @param {(text: string) => boolean} fits */
function withNamesCut(path, least, fits) {
  const cut = (/** @type {number} */ most) => path.replace(LETTERS, (run) => shorten(run, most));
  return fits(cut(least)) ? longest(cut, least, path.length, fits) : "";
}

/** What is made with the most letters that fit. @param {(letters: number) => string} made @param {number} low
 * @param {number} high @param {(text: string) => boolean} fits */
function longest(made, low, high, fits) {
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (fits(made(middle))) low = middle;
    else high = middle - 1;
  }
  return made(low);
}

/** A text with an ellipsis in its middle if it is too long, as names differ at their ends.
 * @param {string} text @param {(text: string) => boolean} fits */
export function shortened(text, fits) {
  if (!text || fits(text)) return text;
  const made = (/** @type {number} */ letters) => {
    const end = Math.floor((letters * 3) / 5);
    return letters < 1 ? "" : `${text.slice(0, letters - end)}\u2026${end ? text.slice(-end) : ""}`;
  };
  return longest(made, 0, text.length - 1, fits);
}

/** A path as it fits into so many pixels, in the font of a pen.
 * @param {CanvasRenderingContext2D} pen @param {string} path @param {number} room @param {number} [shared] */
export function cut(pen, path, room, shared = 0) {
  const key = `${pen.font} ${Math.round(room)} ${shared} ${path}`;
  let found = kept.get(key);
  if (found === undefined) {
    if (kept.size > MAX_FITTED) kept.clear();
    found = shortPath(path, (text) => pen.measureText(text).width <= room, shared);
    kept.set(key, found);
  }
  return found;
}

/** A text that isn't a path, as it fits into so many pixels.
 * @param {CanvasRenderingContext2D} pen @param {string} text @param {number} room */
export function fitted(pen, text, room) {
  return shortened(text, (part) => pen.measureText(part).width <= room);
}
