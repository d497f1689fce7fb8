// @ts-check
/** Switching single modules on and off, in the words that hookcore has for it: patterns that include and exclude. Pure. */
import { choose, describe, excludedBy, linesOf } from "./dryRun.js";

/** @typedef {import("./dryRun.js").Module} Module @typedef {{include: string, exclude: string}} Patterns */

/** A path as a glob that means this path alone. @param {string} path */
export function literal(path) {
  return path.replace(/[[*?]/g, "[$&]");
}

/** The patterns that mean a row of the tree: one module, all below it where the group is closed, or all that were folded.
 * @param {{node: {path: string, members: readonly Module[]}, expanded: boolean | null}} row @param {readonly Module[]} modules @returns {string[]} */
export function patternsOf({ node, expanded }, modules) {
  const whole = expanded === false;
  const meant = new Set(node.members.map(({ path }) => path));
  const locals = describe(modules)
    .filter(({ path }) => meant.has(path))
    .map(({ local }) => local);
  if (locals.length > 1) {
    const one = expressionFor(locals);
    // One expression in place of many paths, where it means these and no others.
    if (choose(modules, { include: one, exclude: "" }).paths.size === meant.size)
      return [whole ? `${one}(\\..*)?` : one];
  }
  return locals.flatMap((local) => patternsOfOne(local, whole));
}

/** @param {string} local @param {boolean} whole */
function patternsOfOne(local, whole) {
  if (local === "") return [whole ? "*" : "is:root"];
  return whole ? [literal(local), `${literal(local)}.*`] : [literal(local)];
}

/** Where all paths have a number, any number. @param {string[]} paths */
function expressionFor(paths) {
  const parts = paths.map((path) => path.split("."));
  const any = parts[0].map((part, place) =>
    parts.every((each) => each[place] === part) ? part.replace(/[\\^$.|+?*(){}[\]]/g, "\\$&") : "\\d+",
  );
  return `re:${any.join("\\.")}`;
}

/** The patterns after a row was switched; `blocked` is the pattern that still keeps it off, which only a person may take away.
 * @param {readonly Module[]} modules @param {Patterns} wanted @param {string[]} patterns @param {boolean} on @param {string} path of one of them
 * @returns {Patterns & {blocked: string}} */
export function switched(modules, wanted, patterns, on, path) {
  const [include, exclude] = [linesOf(wanted.include), linesOf(wanted.exclude)];
  return on
    ? switchOn(modules, include, exclude, patterns, path)
    : switchOff(modules, include, exclude, patterns, path);
}

/** @param {readonly Module[]} modules @param {string[]} include @param {string[]} exclude @param {string[]} patterns @param {string} path */
function switchOn(modules, include, exclude, patterns, path) {
  const left = exclude.filter((pattern) => !patterns.includes(pattern));
  const blocked = excludedBy(modules, path, left.join("\n"));
  if (blocked) return { include: include.join("\n"), exclude: exclude.join("\n"), blocked };
  const now = { include: include.join("\n"), exclude: left.join("\n") };
  if (!choose(modules, now).paths.has(path)) now.include = [...include, ...patterns].join("\n");
  return { ...now, blocked: "" };
}

/** @param {readonly Module[]} modules @param {string[]} include @param {string[]} exclude @param {string[]} patterns @param {string} path */
function switchOff(modules, include, exclude, patterns, path) {
  const left = include.filter((pattern) => !patterns.includes(pattern));
  // Without any pattern every module is included: the last one stays, and is excluded.
  const now = { include: (left.length ? left : include).join("\n"), exclude: exclude.join("\n") };
  if (choose(modules, now).paths.has(path))
    now.exclude = [...exclude, ...patterns.filter((pattern) => !exclude.includes(pattern))].join("\n");
  return { ...now, blocked: "" };
}
