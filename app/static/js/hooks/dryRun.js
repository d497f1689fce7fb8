// @ts-check
/** Which modules some patterns would choose, before the trainer is asked: read as hookcore reads them. Pure. */

/** @typedef {{path: string, type?: string, parent?: string | null}} Module */
/** `unsure`: a pattern asks for a class, and which base classes a class has is known in the trainer alone.
 * @typedef {{paths: Set<string>, unmatched: string[], problem: string, unsure: boolean}} Chosen */

/** @typedef {Module & {local: string, leaf: boolean}} Known */

/** @param {string} text a pattern a line @returns {string[]} */
export function linesOf(text) {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
}

/** @param {readonly Module[]} modules @param {{include: string, exclude: string}} wanted @returns {Chosen} */
export function choose(modules, { include, exclude }) {
  const known = describe(modules);
  const unmatched = [];
  try {
    const [wanted, unwanted] = [include, exclude].map((text) =>
      linesOf(text).map((pattern) => ({ pattern, test: testOf(pattern) })),
    );
    const all = [...wanted, ...unwanted];
    for (const { pattern, test } of all) if (!known.some(test)) unmatched.push(pattern);
    const chosen = known.filter(
      (module) =>
        (!wanted.length || wanted.some(({ test }) => test(module))) && !unwanted.some(({ test }) => test(module)),
    );
    return {
      paths: new Set(chosen.map(({ path }) => path)),
      unmatched,
      problem: "",
      unsure: all.some(({ pattern }) => pattern.startsWith("type:")),
    };
  } catch (error) {
    return { paths: new Set(), unmatched, problem: /** @type {Error} */ (error).message, unsure: false };
  }
}

/** The excluding pattern that matches a module, "" where there is none. @param {readonly Module[]} modules @param {string} path @param {string} exclude */
export function excludedBy(modules, path, exclude) {
  const module = describe(modules).find((each) => each.path === path);
  return (module && linesOf(exclude).find((pattern) => testOf(pattern)(module))) ?? "";
}

/** Each module with its path below its root, by which patterns go, and whether it has no child.
 * @param {readonly Module[]} modules @returns {Known[]} */
export function describe(modules) {
  const parents = new Set(modules.map(({ parent }) => parent));
  const roots = modules
    .filter(({ parent, path }) => (parent === null || parent === undefined) && path !== "")
    .map(({ path }) => path);
  const one = modules.some(({ path }) => path === "");
  return modules.map((module) => ({
    ...module,
    local: one ? module.path : localOf(module.path, roots),
    leaf: !parents.has(module.path),
  }));
}

/** @param {string} path @param {string[]} roots */
function localOf(path, roots) {
  const root = roots.find((each) => path === each || path.startsWith(`${each}/`) || path.startsWith(`${each}.`));
  return root === undefined ? path : path.slice(root.length + 1);
}

/** @param {string} pattern @returns {(module: Known) => boolean} */
function testOf(pattern) {
  const [, prefix, rest] = /^(re|type|is):(.*)$/s.exec(pattern) ?? [];
  if (prefix === "is") return stateTest(pattern, rest);
  const whole = prefix === "re" ? expressionOf(rest) : globOf(prefix === "type" ? rest : pattern);
  if (prefix === "type") return ({ type = "" }) => whole.test(type);
  return ({ local }) => whole.test(local);
}

/** @param {string} pattern @param {string} rest @returns {(module: Known) => boolean} */
function stateTest(pattern, rest) {
  if (rest === "leaf") return ({ leaf }) => leaf;
  if (rest === "root") return ({ local }) => local === "";
  throw new Error(`${pattern} is not a pattern: use is:leaf or is:root`);
}

/** @param {string} source */
function expressionOf(source) {
  try {
    return new RegExp(`^(?:${source})$`, "u");
  } catch (error) {
    throw new Error(
      `re:${source} is not a regular expression: ${/** @type {Error} */ (error).message.replace(/^.*:\s*/s, "")}`,
    );
  }
}

/** A glob as Python's fnmatch has it: `*`, `?`, `[a-z]`, `[!a-z]`; `*` crosses dots. @param {string} pattern */
export function globOf(pattern) {
  const body = pattern.replace(/\*+|\?|\[!?\]?[^\]]*\]|[\\^$.|+(){}[\]/-]/gu, (part) => {
    if (part.startsWith("*")) return ".*";
    if (part === "?") return ".";
    if (part.length === 1) return `\\${part}`;
    const negated = part[1] === "!";
    const inside = part.slice(negated ? 2 : 1, -1).replace(/[\\^\][&~|]/g, "\\$&");
    return `[${negated ? "^" : ""}${inside}]`;
  });
  return new RegExp(`^${body}$`, "s");
}
