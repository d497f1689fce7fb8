// @ts-check
/** What is typed into the find box, as a question about a module. Pure: the pages, the tree and Node's tests share it. */

/**
 * What a question may look at; what a page does not know it leaves out, and such a module then is not found by it.
 * @typedef {{path: string, type?: string, parameters?: number, trainable?: number, captured?: boolean,
 *   aliases?: readonly string[], coverage?: {captured: boolean} | null, nan?: boolean, dead?: boolean}} Module
 * @typedef {(module: Module) => boolean} Test
 * @typedef {{test: Test, problem: string, words: string}} Found
 * @typedef {{test: Test, words: string}} Term
 */

const MAX_LETTERS = 1000;

/** @type {Record<string, Term>} */
const STATES = {
  nan: { test: (module) => module.nan === true, words: "holds NaN or infinities" },
  dead: { test: (module) => module.dead === true, words: "is dead" },
  frozen: { test: (module) => (module.parameters ?? 0) > 0 && module.trainable === 0, words: "is frozen" },
  trainable: { test: (module) => (module.trainable ?? 0) > 0, words: "is trainable" },
  captured: { test: (module) => isCaptured(module) === true, words: "is captured" },
  uncaptured: { test: (module) => isCaptured(module) === false, words: "is not captured" },
};

/** Nothing was typed: every module. @type {Found} */
export const EVERYTHING = { test: () => true, problem: "", words: "" };

/** Reads what was typed. Several terms must all hold; `!` before one turns it round. Where it cannot be read `problem`
 * says why, and `test` is that of `before`: the last result stays.
 * @param {string} text @param {Found} [before] @returns {Found} */
export function parse(text, before = EVERYTHING) {
  try {
    const terms = split(text).map(read);
    if (!terms.length) return EVERYTHING;
    const [only] = terms;
    const test =
      terms.length === 1 ? only.test : (/** @type {Module} */ module) => terms.every((term) => term.test(module));
    return { test, problem: "", words: terms.map((term) => term.words).join(", ") };
  } catch (error) {
    if (!(error instanceof Unreadable)) throw error;
    return { ...before, problem: error.message };
  }
}

/** A glob for a whole text: `*` any letters, dots included, `?` one. @param {string} pattern @returns {RegExp} */
export function glob(pattern) {
  const body = pattern
    .replace(/\*+/g, "*")
    .replace(/[\\^$.|+(){}[\]/]/g, "\\$&")
    .replace(/\*/g, ".*")
    .replace(/\?/g, ".");
  return new RegExp(`^${body}$`, "isu");
}

/** How deep a module stands; the root at 0. @param {string} path */
export function depthOf(path) {
  if (path === "") return 0;
  let depth = 1;
  for (let at = path.indexOf("."); at >= 0; at = path.indexOf(".", at + 1)) depth += 1;
  return depth;
}

class Unreadable extends Error {}

/** @param {Module} module */
function isCaptured(module) {
  return module.captured ?? module.coverage?.captured;
}

/** The terms: parted by spaces, but for those inside of an expression. @param {string} text @returns {string[]} */
function split(text) {
  if (text.length > MAX_LETTERS)
    throw new Unreadable(`the search is longer than ${MAX_LETTERS} characters: shorten it`);
  return text.match(/!?\/(?:\\.|[^\\/])*\/[a-z]*(?=\s|$)|\S+/gu) ?? [];
}

/** @param {string} term @returns {Term} */
function read(term) {
  if (term.startsWith("!") && term.length > 1) {
    const { test, words } = read(term.slice(1));
    return { test: (module) => !test(module), words: `not: ${words}` };
  }
  if (term.startsWith("/")) return readExpression(term);
  const [, name, value] = /^(type|is|depth):(.*)$/su.exec(term) ?? [];
  if (name === "type") return readType(value);
  if (name === "is") return readState(value);
  if (name === "depth") return readDepth(value);
  return readName(term);
}

/** @param {string} term @returns {Term} */
function readName(term) {
  if (/[*?]/.test(term)) {
    const pattern = glob(term);
    return onNames((name) => pattern.test(name), `named ${term}`);
  }
  const part = term.toLowerCase();
  return onNames((name) => name.toLowerCase().includes(part), `named …${term}…`);
}

/** @param {string} term @returns {Term} */
function readExpression(term) {
  const end = term.lastIndexOf("/");
  if (end === 0) throw new Unreadable("a regular expression also ends with a slash: /layers\\.[0-3]\\./");
  const [source, flags] = [term.slice(1, end), term.slice(end + 1)];
  if (canHang(source))
    throw new Unreadable(
      `${term}: a repeated group must not contain repetitions or alternatives: matching could take too long`,
    );
  try {
    const pattern = new RegExp(source, flags.includes("i") ? "iu" : "u");
    return onNames((name) => pattern.test(name), `fits ${term}`);
  } catch (error) {
    const reason = error instanceof Error ? error.message.replace(/^.*:\s*/s, "") : "";
    throw new Unreadable(`${term} is not a regular expression: ${reason.charAt(0).toLowerCase()}${reason.slice(1)}`);
  }
}

/** Whether a group that is repeated holds a repetition or a choice: then the time may double with each letter. @param {string} source */
function canHang(source) {
  const plain = source.replace(/\\./gsu, "_").replace(/\[[^\]]*\]/gsu, "_");
  /** @type {boolean[]} */
  const risky = [false];
  for (const [, sign, repeats] of plain.matchAll(/([()|*+{])(?=([*+{])?)/g)) {
    if (sign === "(") risky.push(false);
    else if (sign === ")") {
      const inside = risky.pop() ?? false;
      if (inside && repeats) return true;
      risky[risky.length - 1] ||= inside;
    } else risky[risky.length - 1] = true;
  }
  return false;
}

/** @param {(name: string) => boolean} fits @param {string} words @returns {Term} */
function onNames(fits, words) {
  return { test: (module) => fits(module.path) || (module.aliases?.some(fits) ?? false), words };
}

/** @param {string} value @returns {Term} */
function readType(value) {
  if (!value) throw new Unreadable("type: needs the name of a class: type:Linear, type:*Norm*");
  const pattern = glob(value);
  return { test: (module) => pattern.test(module.type ?? ""), words: `of type ${value}` };
}

/** @param {string} value @returns {Term} */
function readState(value) {
  if (Object.hasOwn(STATES, value)) return STATES[value];
  throw new Unreadable(
    `is:${value} is unknown: use ${Object.keys(STATES)
      .map((name) => `is:${name}`)
      .join(", ")}`,
  );
}

/** @param {string} value @returns {Term} */
function readDepth(value) {
  const [, sign, digits] = /^(<|>)?(\d{1,4})$/.exec(value) ?? [];
  if (digits === undefined) throw new Unreadable(`depth:${value} is not a depth: use depth:2, depth:<3, or depth:>1`);
  const depth = Number(digits);
  const words = { "<": `less than ${depth} deep`, ">": `more than ${depth} deep` }[sign] ?? `${depth} deep`;
  if (sign === "<") return { test: (module) => depthOf(module.path) < depth, words };
  if (sign === ">") return { test: (module) => depthOf(module.path) > depth, words };
  return { test: (module) => depthOf(module.path) === depth, words };
}
