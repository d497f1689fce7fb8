// @ts-check
/** The places of what lies between two parts through which everything flows: by dagre, or in columns. Pure. */

export const GAP = 30; // between a part and the next one
const BETWEEN = 12; // parts one below the other
const MAX_PARTS = 250; // that dagre gets at once
const COLUMN = 12; // parts one below the other, where there are too many for dagre

/** @typedef {import("./level.js").Size} Size @typedef {import("./level.js").Edge} Edge
 * @typedef {import("./level.js").Spot} Spot */

/** What lies between two cuts, around the middle of the first one.
 * @param {Size[]} sizes @param {Edge[]} edges @param {number[]} group @param {Edge[]} guides @param {number} from
 * @param {number} to @param {any} dagre @returns {{nodes: Map<number, Spot>, bends: Map<number, number[]>}} */
export function partOf(sizes, edges, group, guides, from, to, dagre) {
  const fed = new Set(group.map((at) => edges[at][1]));
  const hidden = guides.filter(([source, target]) => source >= from && target <= to);
  for (let node = from + 1; node < to; node += 1)
    if (!fed.has(node) && !hidden.some(([, target]) => target === node)) hidden.push([from, node]);
  if (to - from > MAX_PARTS) return inColumns(sizes, edges, group, hidden, from, to);
  try {
    return byDagre(sizes, edges, group, hidden, from, to, dagre);
  } catch {
    return inColumns(sizes, edges, group, hidden, from, to);
  }
}

/** @param {Size[]} sizes @param {Edge[]} edges @param {number[]} group @param {Edge[]} hidden @param {number} from
 * @param {number} to @param {any} dagre */
function byDagre(sizes, edges, group, hidden, from, to, dagre) {
  const graph = new dagre.graphlib.Graph({ multigraph: true });
  graph.setGraph({ rankdir: "LR", nodesep: BETWEEN, edgesep: 10, ranksep: GAP });
  for (let node = from; node <= to; node += 1)
    graph.setNode(String(node), { width: sizes[node][0], height: sizes[node][1] });
  for (const at of group) graph.setEdge(String(edges[at][0]), String(edges[at][1]), { weight: 2 }, String(at));
  for (const [source, target] of hidden)
    if (target > from) graph.setEdge(String(source), String(target), { weight: 0 }, "hidden");
  dagre.layout(graph);
  const { x: left, y: top } = graph.node(String(from));
  const nodes = /** @type {Map<number, Spot>} */ (new Map());
  for (let node = from; node <= to; node += 1) {
    const { x, y } = graph.node(String(node));
    nodes.set(node, { x: x - left, y: y - top });
  }
  const bends = /** @type {Map<number, number[]>} */ (new Map());
  for (const at of group) {
    const { points } = graph.edge(String(edges[at][0]), String(edges[at][1]), String(at));
    const inner = points.slice(1, -1).flatMap((/** @type {Spot} */ { x, y }) => [x - left, y - top]);
    bends.set(at, inner);
  }
  return { nodes, bends };
}

/** Columns by depth, for graphs that are too large for dagre, such as a thousand experts side by side.
 * @param {Size[]} sizes @param {Edge[]} edges @param {number[]} group @param {Edge[]} hidden @param {number} from
 * @param {number} to */
function inColumns(sizes, edges, group, hidden, from, to) {
  const rank = new Map([[from, 0]]);
  const ways = [...group.map((at) => edges[at]), ...hidden].sort((a, b) => a[0] - b[0]);
  for (const [source, target] of ways) rank.set(target, Math.max(rank.get(target) ?? 0, (rank.get(source) ?? 0) + 1));
  rank.set(to, Math.max(...rank.values()) + 1);
  const columns = /** @type {Map<number, number[]>} */ (new Map());
  for (let node = from; node <= to; node += 1)
    columns.set(rank.get(node) ?? 1, [...(columns.get(rank.get(node) ?? 1) ?? []), node]);
  const nodes = /** @type {Map<number, Spot>} */ (new Map());
  let x = -sizes[from][0] / 2;
  for (const at of [...columns.keys()].sort((a, b) => a - b)) {
    const column = /** @type {number[]} */ (columns.get(at));
    const high = Math.max(COLUMN, Math.ceil(Math.sqrt(column.length)));
    for (let start = 0; start < column.length; start += high) {
      const some = column.slice(start, start + high);
      const wide = Math.max(...some.map((node) => sizes[node][0]));
      let y = -some.reduce((sum, node) => sum + sizes[node][1] + BETWEEN, -BETWEEN) / 2;
      for (const node of some) {
        nodes.set(node, { x: x + wide / 2, y: y + sizes[node][1] / 2 });
        y += sizes[node][1] + BETWEEN;
      }
      x += wide + GAP;
    }
  }
  return { nodes, bends: new Map(group.map((at) => /** @type {[number, number[]]} */ ([at, []]))) };
}
