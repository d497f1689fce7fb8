// @ts-check
/** From a tree of modules to the shown rows: filtered, closed, sorted, with the worst values of closed groups. Pure.
 */
import { backwards, nodesOf } from "./nodes.js";

export { fold, grow, nodesOf } from "./nodes.js";

/** @typedef {import("./nodes.js").Module} Module */
/** @typedef {import("./nodes.js").Node} Node */

/**
 * @typedef {{node: Node, level: number, place: number, siblings: number, expanded: boolean | null, matches: boolean}}
 * Row
 */

/** What is shown of a tree. Where it is sorted it is a plain list.
 * @typedef {{closed: Set<string>, test: (module: Module) => boolean, sort: {value: (node: Node) => unknown,
 * descending: boolean} | null}} View */

/** The worst member of each node and all below it: that with the largest rank. Where no rank is above -Infinity it is
 * its own first.
 * @param {Node[]} roots @param {(module: Module) => number} rank @returns {Map<Node, {module: Module, rank: number}>}
 */
export function worstBelow(roots, rank) {
  /** @type {Map<Node, {module: Module, rank: number}>} */
  const worst = new Map();
  for (const node of backwards(roots)) {
    let found = { module: node.members[0], rank: -Infinity };
    for (const module of node.members) {
      const its = rank(module);
      if (its > found.rank) found = { module, rank: its };
    }
    for (const child of node.children) {
      const below = worst.get(child);
      if (below && below.rank > found.rank) found = below;
    }
    worst.set(node, found);
  }
  return worst;
}

/** Which groups are to be closed so that those are seen for which `marked` holds, and as little else as can be.
 * @param {Node[]} roots @param {(module: Module) => boolean} marked @returns {Set<string>} */
export function closedBut(roots, marked) {
  const worst = worstBelow(roots, (module) => (marked(module) ? 1 : 0));
  return new Set(
    nodesOf(roots)
      .filter((node) => node.children.length && !node.children.some((child) => worst.get(child)?.rank))
      .map((node) => node.path),
  );
}

/** The rows that are shown, and how many nodes match.
 * @param {Node[]} roots @param {View} view @returns {{rows: Row[], matching: number}} */
export function rowsOf(roots, { closed, test, sort }) {
  /** @type {Set<Node>} */
  const matching = new Set();
  /** @type {Set<Node>} */
  const shown = new Set();
  for (const node of backwards(roots)) {
    if (node.members.some(test)) matching.add(node);
    if (matching.has(node) || shown.has(node)) {
      shown.add(node);
      if (node.parent) shown.add(node.parent);
    }
  }
  const rows = sort === null ? treeRows(roots, shown, matching, closed) : listRows(roots, matching, sort);
  return { rows, matching: matching.size };
}

/** @param {Node[]} roots @param {Set<Node>} shown @param {Set<Node>} matching @param {Set<string>} closed
 * @returns {Row[]} */
function treeRows(roots, shown, matching, closed) {
  /** @type {Row[]} */
  const rows = [];
  /** @param {Node[]} nodes @param {number} level */
  const walk = (nodes, level) => {
    const there = nodes.filter((node) => shown.has(node));
    for (const [place, node] of there.entries()) {
      const isGroup = node.children.some((child) => shown.has(child));
      const expanded = isGroup ? !closed.has(node.path) : null;
      rows.push({ node, level, place: place + 1, siblings: there.length, expanded, matches: matching.has(node) });
      if (expanded) walk(node.children, level + 1);
    }
  };
  walk(roots, 1);
  return rows;
}

/** @param {Node[]} roots @param {Set<Node>} matching @param {NonNullable<View["sort"]>} sort @returns {Row[]} */
function listRows(roots, matching, { value, descending }) {
  const found = nodesOf(roots)
    .filter((node) => matching.has(node))
    .map((node) => ({ node, value: value(node) }));
  found.sort((one, two) => compare(one.value, two.value, descending));
  return found.map(({ node }, place) => ({
    node,
    level: 1,
    place: place + 1,
    siblings: found.length,
    expanded: null,
    matches: true,
  }));
}

/** Numbers by their size and words by the alphabet; NaN is larger than every number, and what is missing comes last
 * either way.
 * @param {unknown} one @param {unknown} two @param {boolean} descending */
export function compare(one, two, descending = false) {
  const missing = Number(isMissing(one)) - Number(isMissing(two));
  if (missing || isMissing(one)) return missing;
  const order =
    typeof one === "number" && typeof two === "number" ? numbers(one, two) : words.compare(String(one), String(two));
  return descending ? -order : order;
}

const words = new Intl.Collator("en", { numeric: true });

/** @param {unknown} value */
function isMissing(value) {
  return value === null || value === undefined || value === "";
}

/** @param {number} one @param {number} two */
function numbers(one, two) {
  const nan = Number(Number.isNaN(one)) - Number(Number.isNaN(two));
  return nan || Number.isNaN(one) ? nan : one < two ? -1 : Number(one > two);
}
