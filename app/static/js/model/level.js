// @ts-check
/** The places of the parts of one box. What comes one after the other stands in rows, as text does; what lies between
 * two places through which everything flows is arranged by dagre. Pure. */
import { GAP, partOf } from "./part.js";

const ROOM = 5; // of a line
const MAX_BENDS = 300; // that dagre has to place in one part of a level; it takes seconds for thousands

/** @typedef {[number, number]} Size @typedef {[number, number]} Edge source and target */
/** @typedef {{x: number, y: number, points?: never}} Spot the middle of a part */
/** Where lines enter a part and leave it, below its middle. @typedef {[number, number]} Port */
/** @typedef {{top: number, bottom: number, right: number, nodes: Map<number, Spot>,
 *   bends: Map<number, number[]>}} Row */

/** Places nodes that are given in the order of execution: 0 is where everything enters, and the last one where it
 * leaves.
 * @param {Size[]} sizes @param {Edge[]} edges @param {number} width that rows should have @param {any} dagre
 * @param {Port[]} [ports] of the nodes @returns {Placed} */
export function placeLevel(sizes, edges, width, dagre, ports = sizes.map(() => [0, 0])) {
  const forward = edges.map(([source, target]) => source < target);
  const calm = calmed(sizes.length, edges, forward);
  const guides = guidesOf(
    sizes.length,
    edges.filter((_, at) => forward[at]),
  );
  const cuts = cutsOf(sizes.length, [...edges.filter((_, at) => calm[at]), ...guides]);
  const rows = rowsOf(sizes, ports, edges, calm, guides, cuts, width, dagre);
  return finish(sizes, ports, edges, calm, rows);
}

/** Which edges are laid out: not those that lead back, and not the longest ones where there are very many.
 * @param {number} many @param {Edge[]} edges @param {boolean[]} forward */
function calmed(many, edges, forward) {
  const calm = [...forward];
  const order = edges.map((_, at) => at).filter((at) => forward[at]);
  order.sort((a, b) => edges[b][1] - edges[b][0] - (edges[a][1] - edges[a][0]));
  let bends = order.reduce((sum, at) => sum + edges[at][1] - edges[at][0] - 1, 0);
  for (const at of order) {
    if (bends <= Math.max(MAX_BENDS, many)) break;
    const long = edges[at][1] - edges[at][0] - 1;
    if (!long) break;
    calm[at] = false;
    bends -= long;
  }
  return calm;
}

/** Edges that aren't drawn: what gets nothing from a part, and comes before everything that does, stands at the
 * beginning.
 * @param {number} many @param {Edge[]} edges @returns {Edge[]} */
function guidesOf(many, edges) {
  const fed = new Set(edges.map(([, target]) => target));
  const guides = /** @type {Edge[]} */ ([]);
  for (let node = 1; node < many && !fed.has(node); node += 1) guides.push([0, node]);
  return edges.length ? guides : [];
}

/** The nodes that no edge passes by. @param {number} many @param {Edge[]} edges */
function cutsOf(many, edges) {
  const over = new Int32Array(many + 1);
  for (const [source, target] of edges) {
    over[source + 1] += 1;
    over[target] -= 1;
  }
  const cuts = [];
  for (let node = 0, open = 0; node < many; node += 1) {
    open += over[node];
    if (open === 0) cuts.push(node);
  }
  return cuts;
}

/** @param {Size[]} sizes @param {Port[]} ports @param {Edge[]} edges @param {boolean[]} calm @param {Edge[]} guides
 * @param {number[]} cuts
 * @param {number} width @param {any} dagre @returns {Row[]} */
function rowsOf(sizes, ports, edges, calm, guides, cuts, width, dagre) {
  const within = groupsOf(edges, calm, cuts);
  const used = usedOf(sizes.length, edges);
  const rows = [newRow()];
  put(rows[0], cuts[0], { x: sizes[cuts[0]][0] / 2, y: 0 }, sizes[cuts[0]]);
  for (let place = 1; place < cuts.length; place += 1) {
    const [from, to] = [cuts[place - 1], cuts[place]];
    const row = rows[rows.length - 1];
    const start = /** @type {Spot} */ (row.nodes.get(from));
    if (to === from + 1) {
      const left = start.x + sizes[from][0] / 2 + (used[from] && used[to] ? GAP : 0);
      const fits = left + sizes[to][0] <= width || !sizes[from][0] || !sizes[to][0];
      if (!fits) rows.push(newRow());
      const x = (fits ? left : 0) + sizes[to][0] / 2;
      const y = fits ? start.y + ports[from][0] - ports[to][0] : 0; // all of a row are entered at one height
      put(rows[rows.length - 1], to, { x, y }, sizes[to]);
      continue;
    }
    const part = partOf(sizes, edges, within[place - 1], guides, from, to, dagre);
    for (const [node, { x, y }] of part.nodes)
      if (node !== from) put(row, node, { x: start.x + x, y: start.y + y }, sizes[node]);
    for (const [at, points] of part.bends) bend(row, at, points, start);
  }
  return rows;
}

/** Notes where a line bends. @param {Row} row @param {number} at @param {number[]} points @param {Spot} start */
function bend(row, at, points, start) {
  const moved = points.map((value, axis) => value + (axis % 2 ? start.y : start.x));
  row.bends.set(at, moved);
  const heights = moved.filter((_, axis) => axis % 2);
  row.top = Math.min(row.top, ...heights.map((y) => y - ROOM));
  row.bottom = Math.max(row.bottom, ...heights.map((y) => y + ROOM));
}

/** Whether nodes are seen: the first and the last one stand for the outside. @param {number} many
 * @param {Edge[]} edges */
function usedOf(many, edges) {
  const used = new Array(many).fill(true);
  used[0] = edges.some(([source]) => source === 0);
  used[many - 1] = edges.some(([, target]) => target === many - 1);
  return used;
}

/** @returns {Row} */
function newRow() {
  return { top: 0, bottom: 0, right: 0, nodes: new Map(), bends: new Map() };
}

/** @param {Row} row @param {number} node @param {Spot} spot @param {Size} size */
function put(row, node, spot, [width, height]) {
  row.nodes.set(node, spot);
  row.top = Math.min(row.top, spot.y - height / 2);
  row.bottom = Math.max(row.bottom, spot.y + height / 2);
  row.right = Math.max(row.right, spot.x + width / 2);
}

/** The edges between two neighboring cuts. @param {Edge[]} edges @param {boolean[]} calm @param {number[]} cuts */
function groupsOf(edges, calm, cuts) {
  const groups = /** @type {number[][]} */ (cuts.map(() => []));
  const place = new Int32Array((cuts.at(-1) ?? 0) + 2);
  for (let node = 0, cut = 0; node < place.length; node += 1) {
    if (cut + 1 < cuts.length && cuts[cut + 1] <= node) cut += 1;
    place[node] = cut;
  }
  for (const [at, [source]] of edges.entries()) if (calm[at]) groups[place[source]].push(at);
  return groups;
}

const ROW_GAP = 26;
const LANE = 7; // between lines that lead around the others
const MAX_LANES = 8;
const ASIDE = 9; // how far a line leads beside its box before it turns

/** A line: `at` is the number of its edge, `points` are x and y in turn; one with `turns` has corners.
 * @typedef {{at: number, points: number[], turns: boolean}} Line */
/** @typedef {{width: number, height: number, spots: Spot[], lines: Line[]}} Placed */

/** @param {Size[]} sizes @param {Port[]} ports @param {Edge[]} edges @param {boolean[]} calm @param {Row[]} rows
 * @returns {Placed} */
function finish(sizes, ports, edges, calm, rows) {
  const rowOf = new Int32Array(sizes.length);
  for (const [place, row] of rows.entries()) for (const node of row.nodes.keys()) rowOf[node] = place;
  const lanes = rows.map(() => 0);
  for (const [at, [source]] of edges.entries())
    if (!calm[at]) lanes[rowOf[source]] = Math.min(MAX_LANES, lanes[rowOf[source]] + 1);
  const spots = /** @type {Spot[]} */ (new Array(sizes.length));
  const tops = /** @type {number[]} */ ([]);
  let y = 0;
  for (const [place, row] of rows.entries()) {
    y += lanes[place] * LANE;
    tops.push(y);
    for (const [node, spot] of row.nodes) spots[node] = { x: spot.x, y: y + spot.y - row.top };
    y += row.bottom - row.top + ROW_GAP;
  }
  const width = Math.max(...rows.map(({ right }) => right));
  const used = rows.map(() => 0);
  const lines = edges.map(([source, target], at) => {
    const row = rowOf[source];
    const start = [spots[source].x + sizes[source][0] / 2, spots[source].y + ports[source][1]];
    const end = [spots[target].x - sizes[target][0] / 2, spots[target].y + ports[target][0]];
    if (calm[at] && row === rowOf[target]) {
      const down = tops[row] - rows[row].top;
      const bends = (rows[row].bends.get(at) ?? []).map((value, axis) => (axis % 2 ? value + down : value));
      return { at, points: [...start, ...bends, ...end], turns: false };
    }
    if (calm[at]) {
      const between = tops[row] + rows[row].bottom - rows[row].top + ROW_GAP / 2;
      return { at, points: turned(start, start[0] + ASIDE, between, end[0] - ASIDE, end), turns: true };
    }
    used[row] += 1;
    const lane = tops[row] - LANE * (1 + ((used[row] - 1) % MAX_LANES));
    return { at, points: turned(start, start[0] + ASIDE, lane, end[0] - ASIDE, end), turns: true };
  });
  return { width, height: y - ROW_GAP, spots, lines };
}

/** A line that leads along another height. @param {number[]} start @param {number} right @param {number} y
 * @param {number} left @param {number[]} end */
function turned(start, right, y, left, end) {
  return [...start, right, start[1], right, y, left, y, left, end[1], ...end];
}
