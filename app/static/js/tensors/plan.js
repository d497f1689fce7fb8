// @ts-check
/** How a tensor of some shape can be looked at, and which part of it each way asks for. Pure. */

/**
 * @typedef {{name: string, words: string, pickers: {axis: number, words: string, size: number}[], draws: "tiles" |
 * "trace"}} View
 */

/** Whether the last two dimensions are positions by positions, judging by shape and name: images are square too.
 * @param {number[]} shape @param {string} label */
export function isAttention(shape, label = "") {
  const [to, from] = shape.slice(-2);
  return shape.length >= 3 && to === from && to > 1 && /att|softmax/i.test(label) && !isWeight(label);
}

/** @param {string} label */
function isWeight(label) {
  return / (param|param_grad|update)\b/.test(label);
}

/** @param {string} name @param {string} words @param {View["pickers"]} pickers @param {View["draws"]} [draws]
 * @returns {View} */
function view(name, words, pickers, draws = "tiles") {
  return { name, words, pickers, draws };
}

/** The ways to look at a tensor, the best first.
 * @param {number[]} shape @param {string} [label] of the tap @returns {View[]} */
export function viewsOf(shape, label = "") {
  const many = shape.length;
  if (!many) return [view("trace", "value", [], "trace")];
  const weight = isWeight(label);
  const first = weight ? "output channel" : "sample";
  const pick = (/** @type {number} */ count, /** @type {string[]} */ words) =>
    shape.slice(0, count).map((size, axis) => ({ axis, size, words: words[axis] ?? `dimension ${axis}` }));
  const isMap = isAttention(shape, label);
  const row = weight ? "input channel" : many > 3 ? "channel" : "row";
  const picks = [pick(1, [first])[0], { axis: 2, words: "channel", size: shape[2] }];
  const views = [
    view("tiles", wordsOf(shape, label), many > 3 ? pick(many - 3, [first]) : []),
    view("every", weight ? "all filters" : "all samples", []),
    view("matrix", many === 3 && !isMap ? "sequence: positions by channels" : "matrix", pick(many - 2, [first, row])),
    view("trace", "line along the last dimension", pick(many - 1, [first, "row", "row"]), "trace"),
    view("channel", "line of one channel", picks, "trace"),
  ];
  const ofThree = isMap || weight ? ["tiles", "matrix", "trace"] : ["matrix", "channel", "tiles", "trace"];
  const order = [["trace"], ["matrix", "trace"], ofThree][many - 1] ?? ["tiles", "every", "matrix", "trace"];
  return order.flatMap((name) => views.filter((each) => each.name === name));
}

/** @param {number[]} shape @param {string} label */
function wordsOf(shape, label) {
  if (isWeight(label)) return shape.length > 3 ? "filters of one output" : "filters";
  if (isAttention(shape, label)) return shape.length > 3 ? "attention heads" : "attention maps";
  return shape.length > 3 ? "feature maps" : "tiles";
}

/** What of the tensor a view asks for, as NumPy cuts; `part` are rows and columns of the last two dimensions.
 * @param {number[]} shape @param {View} view @param {number[]} picks @param {{rows: [number, number], columns:
 * [number, number]} | null} [part] */
export function sliceOf(shape, view, picks, part = null) {
  const pieces = shape.map(() => ":");
  for (const [place, { axis, size }] of view.pickers.entries())
    pieces[axis] = String(Math.max(0, Math.min(size - 1, picks[place] || 0)));
  if (part && shape.length >= 2 && view.draws === "tiles") {
    pieces[shape.length - 2] = part.rows.join(":");
    pieces[shape.length - 1] = part.columns.join(":");
  }
  while (pieces.length && pieces[pieces.length - 1] === ":") pieces.pop();
  return pieces.join(",");
}

/** The indices in the tensor of a cell of the picture; a range where a cell stands for several.
 * @param {number[]} shape @param {View} view @param {number[]} picks
 * @param {{tile: number, row: number, column: number}} cell @param {[number, number]} factors
 * @param {{rows: [number, number], columns: [number, number]} | null} [part] @returns {string[]} */
export function indicesOf(shape, view, picks, cell, factors, part = null) {
  const found = shape.map(() => "0");
  const fixed = new Map(view.pickers.map(({ axis }, place) => [axis, picks[place] || 0]));
  for (const [axis, pick] of fixed) found[axis] = String(pick);
  const free = shape.map((_, axis) => axis).filter((axis) => !fixed.has(axis));
  const inside = free.slice(-2);
  const range = (
    /** @type {number} */ at,
    /** @type {number} */ factor,
    /** @type {[number, number]} */ [from, to],
  ) => {
    const [low, high] = [from + at * factor, Math.min(to, from + (at + 1) * factor)];
    return high - low > 1 ? `${low}\u2013${high - 1}` : String(low);
  };
  if (inside.length > 1) found[inside[0]] = range(cell.row, factors[0], part?.rows ?? [0, shape[inside[0]]]);
  if (inside.length)
    found[inside[inside.length - 1]] = range(
      cell.column,
      factors[1],
      part?.columns ?? [0, shape[inside[inside.length - 1]]],
    );
  let rest = cell.tile;
  for (const axis of free.slice(0, -2).reverse()) {
    found[axis] = String(rest % shape[axis]);
    rest = Math.floor(rest / shape[axis]);
  }
  return found;
}
