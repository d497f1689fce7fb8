// @ts-check
/** From a list of modules to a tree: grown by path, and folded where blocks are built alike. Pure. */

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
export function backwards(roots) {
  return nodesOf(roots).reverse();
}
