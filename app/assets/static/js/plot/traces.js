// @ts-check
/** Lines as what is drawn of them: bands, strokes, and the marks of non-finite values. Pure; the axis places the
 * values. */

/** @typedef {import("./thin.js").Drawn} Drawn */
/** @typedef {import("./thin.js").Line} Line */
/** @typedef {import("./axis.js").Axis} Axis */

/**
 * @typedef {object} Trace
 * @property {"band" | "stroke" | "marks"} kind
 * @property {number[]} x
 * @property {(number | null)[]} y
 * @property {string} color
 * @property {number} [opacity]
 * @property {number} [width] of a stroke
 * @property {boolean} [dashed]
 * @property {"nan" | "inf" | "-inf"} [sign] of marks
 */

const RAW_BEHIND = 0.35;
const BAND = 0.18;
const [WIDTH, DOT] = [1.75, 4]; // of a stroke, and of a value that stands alone
const ROUND = 0.02; // of the axis' length: the marks stand so far above its foot

/** The marks of non-finite values: sign, color name, label. @type {Record<string, [string, string, string]>} */
export const SIGNS = {
  nan: ["\u2715", "nan", "NaN"],
  inf: ["\u25b2", "inf", "Infinity"],
  "-inf": ["\u25bc", "inf", "-Infinity"],
};

/** @param {Line} line @param {number} place of it among the lines @param {Record<string, string>} colors */
export function colorOf(line, place, colors) {
  return line.color ? (colors[line.color] ?? line.color) : colors[`line${(place % 4) + 1}`];
}

/** @param {Line[]} lines @param {Drawn[]} drawn @param {Axis} axis @param {Record<string, string>} colors
 * @returns {Trace[]} */
export function tracesOf(lines, drawn, axis, colors) {
  const bands = lines.flatMap((line, place) => bandsOf(line, drawn[place], axis, colorOf(line, place, colors)));
  const strokes = lines.flatMap((line, place) => strokesOf(line, drawn[place], axis, colorOf(line, place, colors)));
  return [...bands, ...strokes, ...marksOf(drawn, axis, colors)];
}

/** The band from min to max: a closed shape for each stretch without a hole.
 * @param {Line} line @param {Drawn} points @param {Axis} axis @param {string} color @returns {Trace[]} */
function bandsOf(line, points, axis, color) {
  return stretches(points.min).map(([from, to]) => {
    const [xs, tops, bottoms] = [points.x, points.max, points.min].map((each) => each.slice(from, to));
    const y = placed([...tops, ...bottoms.reverse()], axis);
    return { kind: "band", x: [...xs, ...xs.toReversed()], y, color, opacity: line.opacity ?? BAND };
  });
}

/** From where to where values are finite. @param {number[]} values @returns {[number, number][]} */
export function stretches(values) {
  /** @type {[number, number][]} */
  const found = [];
  let from = -1;
  for (let i = 0; i <= values.length; i += 1) {
    const there = i < values.length && Number.isFinite(values[i]);
    if (there && from < 0) from = i;
    if (there || from < 0) continue;
    found.push([from, i]);
    from = -1;
  }
  return found;
}

/** The line, with the raw one behind it if it is smoothed. A stroke needs two points: one between holes is a dot.
 * @param {Line} line @param {Drawn} points @param {Axis} axis @param {string} color @returns {Trace[]} */
function strokesOf(line, points, axis, color) {
  if (!line.mean) return [];
  const { x, raw, smooth } = points;
  /** @param {number[]} values @param {number} width @param {number} [opacity] @returns {Trace[]} */
  const strokes = (values, width, opacity) => {
    const y = placed(values, axis);
    const alone = stretches(values).filter(([from, to]) => to - from === 1);
    const dots = alone.map(([at]) => ({ x: [x[at], x[at]], y: [y[at], y[at]], width: DOT }));
    return [{ x, y, width, dashed: line.dashed }, ...dots].map((each) => ({ kind: "stroke", color, opacity, ...each }));
  };
  return smooth.length ? [...strokes(raw, 1, RAW_BEHIND), ...strokes(smooth, WIDTH)] : strokes(raw, WIDTH);
}

/** @param {number[]} values @param {Axis} axis */
function placed(values, axis) {
  return values.map((value) => (Number.isFinite(value) ? axis.place(value) : null));
}

/** What was not finite, at the foot of the axis, by sign and color.
 * @param {Drawn[]} drawn @param {Axis} axis @param {Record<string, string>} colors @returns {Trace[]} */
function marksOf(drawn, axis, colors) {
  const foot = axis.range[0] + (axis.range[1] - axis.range[0]) * ROUND;
  return /** @type {const} */ (["nan", "inf", "-inf"]).flatMap((sign) => {
    const found = drawn.flatMap(({ marks }) => marks.filter((mark) => mark.sign === sign).map(({ x }) => x));
    const x = [...new Set(found)].sort((a, b) => a - b);
    return x.length ? [{ kind: "marks", sign, x, y: x.map(() => foot), color: colors[SIGNS[sign][1]] }] : [];
  });
}
