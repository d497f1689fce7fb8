/** The places of all boxes that are shown. The parts of a box that follow each other stand in rows, as text does; what
 * lies between two places through which everything flows is arranged by dagre. Pure. */
import { HEAD, PAD } from "./tree.js";

const GAP = 30; // between a part and the next one
const BETWEEN = 12; // parts one below the other
const MAX_PARTS = 250; // that dagre gets at once
const COLUMN = 12; // parts one below the other, where there are too many for dagre

/** What lies between two cuts, around the middle of the first one.
 * @param {Size[]} sizes @param {Edge[]} edges @param {number[]} group @param {Edge[]} guides @param {number} from
 * @param {number} to @param {any} dagre @returns {{nodes: Map<number, Spot>, bends: Map<number, number[]>}} */
function partOf(sizes, edges, group, guides, from, to, dagre) {
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

/** Columns by depth, for graphs that are too large for dagre, such as a thousand experts side by side. @param {Size[]}
 * sizes @param {Edge[]} edges @param {number[]} group @param {Edge[]} hidden @param {number} from @param {number} to */
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

const ROOM = 5; // of a line
const MAX_BENDS = 300; // that dagre has to place in one part of a level; it takes seconds for thousands

/** @typedef {[number, number]} Size @typedef {[number, number]} Edge source and target */
/** @typedef {{x: number, y: number, points?: never}} Spot the middle of a part */
/** Where lines enter a part and leave it, below its middle. @typedef {[number, number]} Port */
/** @typedef {{top: number, bottom: number, right: number, nodes: Map<number, Spot>,
 *   bends: Map<number, number[]>}} Row */

/** Places nodes that are given in the order of execution: 0 is where everything enters, and the last one where it
 * leaves. @param {Size[]} sizes @param {Edge[]} edges @param {number} width that rows should have @param {any} dagre
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
 * beginning. @param {number} many @param {Edge[]} edges @returns {Edge[]} */
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
 * @param {number[]} cuts @param {number} width @param {any} dagre @returns {Row[]} */
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
 * @typedef {{at: number, points: number[], turns: boolean}} Path */
/** @typedef {{width: number, height: number, spots: Spot[], lines: Path[]}} Placed */

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

/** What the worker gets. A level is an open box, or OUTSIDE; -1 in an edge is what enters, or leaves. @typedef {{parts:
 * number[], edges: [number, number][], maker: [number, number] | null}} Level @typedef {{levels: [number, Level][],
 * sizes: [number, [number, number]][], width: number}} Wanted */

/** What it answers. A line belongs to an edge of a level; one with `at` -1 leads from what an open box computes itself
 * to its border, and `maker` is where that is. @typedef {{level: number, at: number, points: number[], turns: boolean,
 * around: number[]}} Line @typedef {{number: number, x: number, y: number, w: number, h: number, maker: {x: number, y:
 * number} | null}} Rect @typedef {{width: number, height: number, rects: Rect[], lines: Line[]}} Arranged */

/** @typedef {{w: number, h: number, enters: number, leaves: number, placed: Placed | null}} Shape */

const OUTSIDE = -1;
const ASPECT = 2.2; // of a box whose parts don't fit the window
const NARROWEST = 260;

/** @param {Wanted} wanted @param {any} dagre @returns {Arranged} */
export function arrange({ levels, sizes, width }, dagre) {
  const byNumber = new Map(levels);
  const closed = new Map(sizes);
  /** Equal levels are placed once. @type {Map<string, Shape>} */
  const placed = new Map();
  /** @type {Map<number, Shape>} */
  const shapes = new Map();
  const rooms = new Map([[OUTSIDE, width]]);
  for (const [number, { parts }] of levels)
    for (const part of parts) rooms.set(part, Math.max(NARROWEST, (rooms.get(number) ?? 0) - 2 * PAD));
  for (const [number, level] of [...levels].reverse()) {
    const parts = level.parts.map((part) => shapeOf(part, closed, shapes));
    shapes.set(number, placeParts(level, parts, rooms.get(number) ?? width, placed, dagre));
  }
  const out = /** @type {Arranged} */ ({ width: 0, height: 0, rects: [], lines: [] });
  const outer = /** @type {Shape} */ (shapes.get(OUTSIDE));
  Object.assign(out, { width: outer.w, height: outer.h });
  spread(OUTSIDE, 0, 0, byNumber, closed, shapes, out);
  return out;
}

/** @param {number} part @param {Map<number, [number, number]>} closed @param {Map<number, Shape>} shapes
 * @returns {Shape} */
function shapeOf(part, closed, shapes) {
  const open = shapes.get(part);
  if (open)
    return {
      ...open,
      w: open.w + 2 * PAD,
      h: open.h + HEAD + PAD,
      enters: open.enters + HEAD,
      leaves: open.leaves + HEAD,
    };
  const [w, h] = closed.get(part) ?? [0, 0];
  return { w, h, enters: h / 2, leaves: h / 2, placed: null };
}

/** @param {Level} level @param {Shape[]} parts @param {number} room @param {Map<string, Shape>} known
 * @param {any} dagre */
function placeParts({ parts: numbers, edges, maker }, parts, room, known, dagre) {
  const last = parts.length + 1;
  const places = new Map(numbers.map((number, place) => [number, place + 1]));
  const ends = /** @type {[number, number][]} */ (
    edges.map(([source, target]) => [places.get(source) ?? 0, places.get(target) ?? last])
  );
  const sizes = /** @type {[number, number][]} */ ([[0, 0], ...parts.map(({ w, h }) => [w, h]), maker ?? [0, 0]]);
  const key = JSON.stringify([sizes, ends, room, parts.map(({ enters, leaves }) => [enters, leaves])]);
  const again = known.get(key);
  if (again) return again;
  const area = parts.reduce((sum, { w, h }) => sum + (w + 30) * (h + 22), 0);
  const width = Math.max(room, Math.sqrt(area * ASPECT), ...parts.map(({ w }) => w));
  const ports = parts.map(
    ({ h, enters, leaves }) => /** @type {[number, number]} */ ([enters - h / 2, leaves - h / 2]),
  );
  const placed = placeLevel(sizes, ends, width, dagre, [[0, 0], ...ports, [0, 0]]);
  const shape = { w: placed.width, h: placed.height, enters: placed.spots[0].y, leaves: placed.spots[last].y, placed };
  known.set(key, shape);
  return shape;
}

/** @param {number} number @param {number} left @param {number} top of its parts @param {Map<number, Level>} levels
 * @param {Map<number, [number, number]>} closed @param {Map<number, Shape>} shapes @param {Arranged} out */
function spread(number, left, top, levels, closed, shapes, out) {
  const level = /** @type {Level} */ (levels.get(number));
  const { placed, w } = /** @type {Shape} */ (shapes.get(number));
  if (!placed) return;
  for (const { at, points, turns } of placed.lines) {
    const moved = points.map((value, axis) => value + (axis % 2 ? top : left));
    if (number !== OUTSIDE && level.edges[at][0] === OUTSIDE) moved[0] = left - PAD;
    if (number !== OUTSIDE && level.edges[at][1] === OUTSIDE && !level.maker) moved[moved.length - 2] = left + w + PAD;
    out.lines.push({ level: number, at, points: moved, turns, around: aroundOf(moved) });
  }
  const made = placed.spots[level.parts.length + 1];
  if (level.maker && number !== OUTSIDE) {
    const points = [left + made.x + level.maker[0] / 2, top + made.y, left + w + PAD, top + made.y];
    out.lines.push({ level: number, at: -1, points, turns: false, around: aroundOf(points) });
  }
  for (const [place, part] of level.parts.entries()) {
    const spot = placed.spots[place + 1];
    const { w: wide, h: high } = shapeOf(part, closed, shapes);
    const [x, y] = [left + spot.x - wide / 2, top + spot.y - high / 2];
    const inner = levels.get(part);
    const own = inner?.maker ? /** @type {Shape} */ (shapes.get(part)).placed?.spots[inner.parts.length + 1] : null;
    const maker = own ? { x: x + PAD + own.x, y: y + HEAD + own.y } : null;
    out.rects.push({ number: part, x, y, w: wide, h: high, maker });
    if (inner) spread(part, x + PAD, y + HEAD, levels, closed, shapes, out);
  }
}

/** The left, top, right, and bottom of a line. @param {number[]} points */
function aroundOf(points) {
  const [across, down] = [0, 1].map((axis) => points.filter((_, at) => at % 2 === axis));
  return [Math.min(...across), Math.min(...down), Math.max(...across), Math.max(...down)];
}
