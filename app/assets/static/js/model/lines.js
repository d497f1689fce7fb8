// @ts-check
/** Rows below each other, and the lines between their nodes. Pure. */

const ROW_GAP = 26;
const LANE = 7; // between lines that lead around the others
const MAX_LANES = 8;
const ASIDE = 9; // how far a line leads beside its box before it turns

/** @typedef {import("./level.js").Size} Size @typedef {import("./level.js").Edge} Edge @typedef {import("./level.js").Spot} Spot
 * @typedef {import("./level.js").Row} Row @typedef {import("./level.js").Port} Port */
/** A line: `at` is the number of its edge, `points` are x and y in turn; one with `turns` has corners.
 * @typedef {{at: number, points: number[], turns: boolean}} Line */
/** @typedef {{width: number, height: number, spots: Spot[], lines: Line[]}} Placed */

/** @param {Size[]} sizes @param {Port[]} ports @param {Edge[]} edges @param {boolean[]} calm @param {Row[]} rows @returns {Placed} */
export function finish(sizes, ports, edges, calm, rows) {
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

/** A line that leads along another height. @param {number[]} start @param {number} right @param {number} y @param {number} left @param {number[]} end */
function turned(start, right, y, left, end) {
  return [...start, right, start[1], right, y, left, y, left, end[1], ...end];
}
