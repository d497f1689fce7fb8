/** From a list of modules to the shown rows of a tree: grown by path, folded, filtered, and sorted. Pure. */

/** @typedef {{path: string, type?: string, parent?: string | null}} Module */

/**
 * One module; or, where blocks that are built alike were folded, one place of them all.
 * @typedef {object} Node
 * @property {string} path
 * @property {string} name the path below the parent's
 * @property {string} type
 * @property {Module[]} members
 * @property {Node | null} parent
 * @property {Node[]} children
 */

/** The roots. A module whose parent is not listed stands below the nearest one that is.
 * @param {readonly Module[]} modules @returns {Node[]} */
export function grow(modules) {
  /** @type {Map<string, Node>} */
  const nodes = new Map();
  /** @type {Node[]} */
  const roots = [];
  for (const module of modules) {
    const parent = parentOf(module, nodes);
    const name = parent === null || parent.path === "" ? module.path : module.path.slice(parent.path.length + 1);
    const node = {
      path: module.path,
      name: name || module.type || "model",
      type: module.type ?? "",
      members: [module],
      parent,
      children: [],
    };
    nodes.set(module.path, node);
    (parent === null ? roots : parent.children).push(node);
  }
  return roots;
}

/** @param {Module} module @param {Map<string, Node>} nodes */
function parentOf(module, nodes) {
  if (typeof module.parent === "string") {
    const known = nodes.get(module.parent);
    if (known) return known;
  }
  for (let at = lastMark(module.path); at > 0; at = lastMark(module.path.slice(0, at))) {
    const known = nodes.get(module.path.slice(0, at));
    if (known) return known;
  }
  return module.path === "" ? null : (nodes.get("") ?? null);
}

/** The position of the separator before the last part of a path: a dot, or a root's slash. @param {string} path */
function lastMark(path) {
  return Math.max(path.lastIndexOf("."), path.lastIndexOf("/"));
}

/** Runs of numbered siblings that are built alike become one: `layers.0` to `layers.31` are `layers.*`.
 * @param {Node[]} roots @returns {Node[]} */
export function fold(roots) {
  const shapes = shapesOf(roots);
  return roots.map((root) => merged([root], null, root.path, root.name, shapes));
}

/** @param {Node[]} alike @param {Node | null} parent @param {string} path @param {string} name
 * @param {Map<Node, number>} shapes @returns {Node} */
function merged(alike, parent, path, name, shapes) {
  const [first] = alike;
  /** @type {Node} */
  const node = { path, name, type: first.type, members: alike.flatMap((each) => each.members), parent, children: [] };
  const { children } = first;
  for (let from = 0, to; from < children.length; from = to) {
    to = from + 1;
    if (isNumber(children[from].name))
      while (
        to < children.length &&
        isNumber(children[to].name) &&
        shapes.get(children[to]) === shapes.get(children[from])
      )
        to += 1;
    const own = to - from > 1 ? "*" : children[from].name;
    const mark = children[from].path.slice(first.path.length, -children[from].name.length || undefined);
    const below = alike.flatMap((each) => each.children.slice(from, to));
    node.children.push(merged(below, node, path + mark + own, own, shapes));
  }
  return node;
}

/** @param {string} name */
function isNumber(name) {
  return /^\d+$/.test(name);
}

/** A number for each node; the same for those that are built alike. @param {Node[]} roots */
function shapesOf(roots) {
  /** @type {Map<string, number>} */
  const known = new Map();
  /** @type {Map<Node, number>} */
  const shapes = new Map();
  for (const node of backwards(roots)) {
    const text = `${node.type}(${node.children.map((child) => `${child.name}:${shapes.get(child)}`).join()})`;
    if (!known.has(text)) known.set(text, known.size);
    shapes.set(node, /** @type {number} */ (known.get(text)));
  }
  return shapes;
}

/** All nodes, each before its children. @param {Node[]} roots @returns {Node[]} */
export function nodesOf(roots) {
  const found = [];
  const waiting = [...roots].reverse();
  for (let node = waiting.pop(); node; node = waiting.pop()) {
    found.push(node);
    for (let place = node.children.length - 1; place >= 0; place -= 1) waiting.push(node.children[place]);
  }
  return found;
}

/** All nodes, each after its children. @param {Node[]} roots */
function backwards(roots) {
  return nodesOf(roots).reverse();
}

/** @typedef {{node: Node, level: number, place: number, siblings: number, expanded: boolean | null, matches: boolean}}
 * Row */

/** What is shown of a tree. Where it is sorted it is a plain list. @typedef {{closed: Set<string>, test: (module:
 * Module) => boolean, sort: {value: (node: Node) => unknown, descending: boolean} | null}} View */

/** The worst member of each node and all below it: that with the largest rank. Where no rank is above -Infinity it is
 * its own first. @param {Node[]} roots @param {(module: Module) => number} rank @returns {Map<Node, {module: Module,
 * rank: number}>} */
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
 * either way. @param {unknown} one @param {unknown} two @param {boolean} descending */
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
