/** One box: its value at a step, how it is drawn, and how it reads in words. */
import { badness, isBad, MAGNITUDE, MANTISSA, MISSING, worse } from "../canvas/columns.js";
import { bytes, counted, number as format, inUnits, kindWords, moduleName, ofParameters } from "../format.js";
import { cut } from "../paths.js";
import { SANS } from "../theme.js";
import { cellsOf, HEAD, LINE, STRIP, signOf } from "./tree.js";
/** @import { ModelBox as Box } from "../answers.js"
 * @import { Rect } from "./arrange.js"
 * @import { Scene } from "./draw.js"
 * @import { Picture } from "./picture.js"
 * @import { Tree } from "./tree.js" */

export const NONE = 0; // nothing of this kind was captured
export const OWN = 1;
export const INSIDE = 2; // it has none itself: the worst of its parts

/** @typedef {{module: string, kind: string, index: string, call: number, phase: string}} Row */

export class BoxValues {
  /** The worst value of each box, as the bits of a float32. */
  bits;
  /** The worst value that isn't finite in each box or its parts; 0 if all are. */
  bad;
  /** How the value is known: NONE, OWN, INSIDE. */
  known;

  /** @param {Tree} tree @param {readonly Row[]} rows of the columns */
  constructor(tree, rows) {
    this.tree = tree;
    const many = tree.boxes.length;
    this.bits = new Uint32Array(many).fill(MISSING);
    this.bad = new Uint32Array(many);
    this.known = new Uint8Array(many);
    /** The rows of each box. @type {number[][]} */
    this.rows = tree.boxes.map(() => []);
    for (const [row, { module, kind, call, phase }] of rows.entries()) {
      for (const number of tree.byModule.get(module) ?? []) {
        const box = tree.boxes[number];
        if (box.kind === "module" || ofParameters(kind) || (box.call === call && box.phase === phase)) {
          this.rows[number].push(row);
          this.known[number] = OWN;
        }
      }
    }
    for (const number of tree.fromInside)
      if (!this.known[number] && tree.boxes[number].parts.some((part) => this.known[part])) this.known[number] = INSIDE;
  }

  /** Takes the values of a column; null: nothing was captured. @param {Uint32Array | null} column */
  take(column) {
    const { bits, bad, tree } = this;
    for (const number of tree.fromInside) {
      let value = MISSING;
      let worst = 0;
      if (column !== null) for (const row of this.rows[number]) value = worse(value, column[row]);
      if (isBad(value)) worst = value;
      for (const part of tree.boxes[number].parts) {
        if (this.known[number] === INSIDE) value = worse(value, bits[part]);
        if (bad[part] && badness(bad[part]) > badness(worst)) worst = bad[part];
      }
      bits[number] = value;
      bad[number] = worst;
    }
  }
}

/** The bits of values as numbers. @param {Uint32Array} bits */
function numbersIn(bits) {
  return new Float32Array(bits.buffer, bits.byteOffset, bits.length);
}

/** The finite ends of some boxes' values; null if there is none.
 * @param {BoxValues} values @param {readonly number[]} boxes @returns {[number, number] | null} */
export function spreadOf(values, boxes) {
  const numbers = numbersIn(values.bits);
  const finite = boxes.map((box) => numbers[box]).filter(Number.isFinite);
  return finite.length ? [Math.min(...finite), Math.max(...finite)] : null;
}

export const NAMES = 0.42; // the scale from which names can be read
const BORDERS = 0.12;
const RADIUS = 5;
const FADED = 0.22; // what the find box doesn't match
const DIGITS = { digits: 3 };

/** A closed box. @param {CanvasRenderingContext2D} pen @param {Scene} scene @param {Rect} rect @param {number} times */
export function drawBox(pen, scene, rect, times) {
  const { number, x, y, w, h } = rect;
  const { values, ink, page, found, view } = scene;
  const faded = found !== null && !found.has(number);
  if (faded) pen.globalAlpha = FADED;
  const isKnown = values.known[number] !== NONE;
  const bits = values.bits[number];
  const { fill, text } = isKnown && bits !== MISSING ? ink.of(bits) : { fill: page.card, text: page.ink };
  const repeat = times > 1;
  if (view.scale < BORDERS) {
    pen.fillStyle = isKnown ? fill : page.quiet;
    pen.fillRect(x, y, w, h);
    outline(pen, scene, rect);
    pen.globalAlpha = 1;
    return;
  }
  if (repeat) stack(pen, page, rect);
  body(pen, rect);
  pen.fillStyle = fill;
  pen.fill();
  pen.lineWidth = 1;
  pen.strokeStyle = isKnown ? "rgb(0 0 0 / 28%)" : page.quiet;
  pen.stroke();
  if (isKnown && bits !== MISSING && isBad(bits) && view.scale >= NAMES) hatch(pen, rect);
  if (repeat) strip(pen, scene, rect, times);
  if (view.scale >= NAMES) words(pen, scene, rect, text, times);
  if (values.bad[number] && !isBad(bits)) flag(pen, scene, rect);
  outline(pen, scene, rect);
  pen.globalAlpha = 1;
}

/** @param {CanvasRenderingContext2D} pen @param {Rect} rect */
function body(pen, { x, y, w, h }) {
  pen.beginPath();
  pen.roundRect(x, y, w, h, RADIUS);
}

/** Cards below the first one. @param {CanvasRenderingContext2D} pen @param {Record<string, string>} page
 * @param {Rect} rect */
function stack(pen, page, { x, y, w, h }) {
  pen.lineWidth = 1;
  for (const by of [6, 3]) {
    pen.beginPath();
    pen.roundRect(x + by, y + by, w, h, RADIUS);
    pen.fillStyle = page.band;
    pen.fill();
    pen.strokeStyle = page.quiet;
    pen.stroke();
  }
}

/** The units of a repeat, each with its color. @param {CanvasRenderingContext2D} pen @param {Scene} scene
 * @param {Rect} rect @param {number} times */
function strip(pen, { tree, values, ink, page }, { number, x, y, w, h }, times) {
  const { parts, period } = tree.boxes[number];
  const cells = cellsOf(times);
  const [left, top, wide] = [x + 6, y + h - STRIP - 5, (w - 12) / cells];
  for (let cell = 0; cell < cells; cell += 1) {
    const [from, to] = [cell, cell + 1].map((edge) => Math.floor((edge * times) / cells) * period);
    let worst = MISSING;
    for (let part = from; part < to; part += 1) {
      const bits = values.bits[parts[part]];
      if (worst === MISSING || (bits !== MISSING && (bits & MAGNITUDE) > (worst & MAGNITUDE))) worst = bits;
    }
    pen.fillStyle = worst === MISSING ? page.missing : ink.of(worst).fill;
    pen.fillRect(left + cell * wide, top, Math.max(0.5, wide - (wide > 4 ? 1 : 0)), STRIP);
  }
  pen.lineWidth = 1;
  pen.strokeStyle = "rgb(0 0 0 / 35%)";
  pen.strokeRect(left - 0.5, top - 0.5, w - 11, STRIP + 1);
}

/** Not by color alone. @param {CanvasRenderingContext2D} pen @param {Rect} rect */
function hatch(pen, { x, y, w, h }) {
  pen.save();
  body(pen, /** @type {any} */ ({ x, y, w, h }));
  pen.clip();
  pen.beginPath();
  for (let at = x - h; at < x + w; at += 9) {
    pen.moveTo(at, y + h);
    pen.lineTo(at + h, y);
  }
  pen.lineWidth = 1.5;
  pen.strokeStyle = "rgb(255 255 255 / 22%)";
  pen.stroke();
  pen.restore();
}

/** @param {CanvasRenderingContext2D} pen @param {Scene} scene @param {Rect} rect @param {string} color
 * @param {number} times */
function words(pen, { tree, values }, { number, x, y, w }, color, times) {
  const left = x + 8;
  const room = w - 16;
  const box = tree.boxes[number];
  const count = times > 1 ? `\u00d7${times}` : box.parts.length ? "\u25b8" : "";
  pen.fillStyle = color;
  pen.textBaseline = "middle";
  pen.textAlign = "left";
  pen.font = `600 12px ${SANS}`;
  pen.fillText(cut(pen, tree.titleOf(number), room - (count ? count.length * 8 + 6 : 0)), left, y + 12);
  if (count) {
    pen.textAlign = "right";
    pen.fillText(count, x + w - 8, y + 12);
    pen.textAlign = "left";
  }
  pen.font = `11px ${SANS}`;
  pen.fillText(cut(pen, tree.typeOf(number), room), left, y + 12 + LINE);
  pen.fillText(valueWords(values, tree, number), left, y + 12 + 2 * LINE);
}

/** What a box is worth, in words. @param {BoxValues} values @param {Tree} tree @param {number} number */
export function valueWords(values, tree, number) {
  if (values.known[number] === NONE) return "";
  const bits = values.bits[number];
  if (bits === MISSING) return "not captured";
  const value = numbersIn(values.bits)[number];
  if (isBad(bits)) return `\u2715 ${Number.isNaN(value) ? "NaN" : "infinite"}`;
  if (values.known[number] !== INSIDE) return format(value, DIGITS);
  const spread = spreadOf(values, tree.boxes[number].parts);
  if (tree.boxes[number].kind === "repeat" && spread && spread[0] !== spread[1])
    return `${format(spread[0], { digits: 2 })} to ${format(spread[1], { digits: 2 })}`;
  return `\u2264 ${format(value, DIGITS)}`;
}

/** A mark on a box in which something isn't finite, though it is itself. @param {CanvasRenderingContext2D} pen
 * @param {Scene} scene @param {Rect} rect */
function flag(pen, { values, page }, { number, x, y, w }) {
  pen.beginPath();
  pen.arc(x + w - 2, y + 2, 6, 0, 2 * Math.PI);
  pen.fillStyle = values.bad[number] & MANTISSA ? page.nan : page.inf;
  pen.fill();
  pen.lineWidth = 1.5;
  pen.strokeStyle = page.card;
  pen.stroke();
  pen.beginPath();
  for (const side of [-1, 1]) {
    pen.moveTo(x + w - 2 - 2.2, y + 2 - 2.2 * side);
    pen.lineTo(x + w - 2 + 2.2, y + 2 + 2.2 * side);
  }
  pen.strokeStyle = "#fff";
  pen.stroke();
}

/** What is selected, under the pointer, or where what isn't finite begins. @param {CanvasRenderingContext2D} pen
 * @param {Scene} scene @param {Rect} rect */
function outline(pen, { selected, pointed, origins, page, view }, { number, x, y, w, h }) {
  const is = number === selected ? "selected" : number === pointed ? "pointed" : "";
  const thick = Math.max(1, 1 / view.scale);
  if (origins.has(number)) {
    pen.lineWidth = 3 * thick;
    pen.strokeStyle = page.ink;
    pen.strokeRect(x - 1, y - 1, w + 2, h + 2);
  }
  if (!is) return;
  pen.lineWidth = (is === "selected" ? 2.5 : 1.5) * thick;
  pen.strokeStyle = page.accent;
  pen.beginPath();
  pen.roundRect(x - 3, y - 3, w + 6, h + 6, RADIUS + 3);
  pen.stroke();
}

/** An open box, around its parts. @param {CanvasRenderingContext2D} pen @param {Scene} scene @param {Rect} rect */
export function drawFrame(pen, { tree, page, view }, rect) {
  const box = tree.boxes[rect.number];
  body(pen, rect);
  pen.fillStyle = page.band;
  pen.globalAlpha = 0.55;
  pen.fill();
  pen.globalAlpha = 1;
  pen.lineWidth = Math.max(1, 0.6 / view.scale);
  pen.strokeStyle = box.kind === "repeat" ? page.accent : page.line;
  if (box.kind === "repeat") pen.setLineDash([6, 4]);
  pen.stroke();
  pen.setLineDash([]);
}

/** What of a frame depends on the step: its value, and its outline. @param {CanvasRenderingContext2D} pen
 * @param {Scene} scene @param {Rect} rect */
export function markFrame(pen, scene, rect) {
  const { number, x, y } = rect;
  const { tree, values, ink, view } = scene;
  const valued =
    values.known[number] !== NONE && values.bits[number] !== MISSING && tree.boxes[number].kind !== "repeat";
  if (valued) {
    pen.fillStyle = ink.of(values.bits[number]).fill;
    pen.fillRect(x + 8, y + 7, 12, 12);
  }
  if (view.scale >= NAMES) heading(pen, scene, rect, valued ? 26 : 10);
  if (scene.selected === number || scene.pointed === number || scene.origins.has(number)) outline(pen, scene, rect);
}

/** @param {CanvasRenderingContext2D} pen @param {Scene} scene @param {Rect} rect @param {number} left */
function heading(pen, { tree, values, page }, { number, x, y, w }, left) {
  const box = tree.boxes[number];
  const times = box.kind === "repeat" ? ` \u00d7${box.parts.length / box.period}` : "";
  const value = box.kind === "repeat" ? "" : valueWords(values, tree, number);
  const type = box.kind === "repeat" || box.type === tree.titleOf(number) ? "" : box.type; // a root is called by it
  pen.font = `600 12px ${SANS}`;
  pen.textBaseline = "middle";
  pen.textAlign = "left";
  pen.fillStyle = box.kind === "repeat" ? page.accent : page.ink;
  const name = cut(pen, `\u25be ${tree.titleOf(number)}${times}`, w - left - 10);
  pen.fillText(name, x + left, y + HEAD / 2 + 1);
  const used = pen.measureText(name).width;
  pen.font = `11px ${SANS}`;
  pen.fillStyle = page.quiet;
  pen.fillText(
    cut(pen, [type, value].filter(Boolean).join("  "), w - left - used - 20),
    x + left + used + 10,
    y + HEAD / 2 + 1,
  );
}

/** The operator of an open box that computes something itself. @param {CanvasRenderingContext2D} pen
 * @param {Scene} scene @param {Rect} rect */
export function drawCircle(pen, { tree, page, view }, { number, maker }) {
  if (!maker || view.scale < BORDERS) return;
  const sign = signOf(tree.boxes[number].made_by);
  const wide = Math.max(20, sign.length * 6 + 12);
  pen.beginPath();
  pen.roundRect(maker.x - wide / 2, maker.y - 10, wide, 20, 10);
  pen.fillStyle = page.card;
  pen.fill();
  pen.lineWidth = 1.2;
  pen.strokeStyle = page.quiet;
  pen.stroke();
  if (view.scale < NAMES) return;
  pen.fillStyle = page.ink;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.font = `${sign.length > 1 ? "" : "600 "}${sign.length > 1 ? 10 : 13}px ${SANS}`;
  pen.fillText(sign, maker.x, maker.y + 0.5);
}

/** 12.3 GFLOP. @param {number} flops */
export function flopsWords(flops) {
  return inUnits(flops, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"]);
}

/** The operations of a box, as far as they are known. @param {Box} box */
export function flopsOf({ flops, flops_unknown: unknown }) {
  if (flops === null) return `unknown: ${unknown}`;
  return unknown ? `at least ${flopsWords(flops)}: ${unknown}` : flopsWords(flops);
}

/** @param {Box["outputs"]} tensors */
export function formsOf(tensors) {
  return tensors
    .map(
      ({ place, dtype, shape }) =>
        `${place ? `${place} ` : ""}${shape.join(" \u00d7 ") || "one value"}${dtype ? ` ${dtype}` : ""}`,
    )
    .join(", ");
}

/** What the colors are of. @param {Picture} picture */
export function quantityOf({ readings }) {
  const { kind, stat } = readings.asked;
  return `${stat} of ${kindWords(kind)}`;
}

/** Where non-finite values with finite inputs begin. After the first such step, the weights are non-finite, too.
 * @param {{parameters: number}} box */
export function originWords({ parameters }) {
  return `All inputs are finite in this step, so the problem starts here${parameters ? ", or in the weights" : ""}.`;
}

/** @param {Picture} picture @param {number} number */
export function tipOf(picture, number) {
  const { structure, readings } = picture;
  const tree = /** @type {Tree} */ (structure.tree);
  const box = tree.boxes[number];
  const { values } = readings;
  const name =
    box.kind === "repeat"
      ? `${tree.titleOf(number)} \u00d7${box.parts.length / box.period}`
      : box.module || moduleName("");
  const value = values ? valueWords(values, tree, number) : "";
  const lines = [
    `${name}${box.call ? ` call ${box.call}` : ""}`,
    tree.typeOf(number),
    value ? `${quantityOf(picture)}: ${value}` : `${quantityOf(picture)}: not captured for this box`,
    ...(values && readings.origins.has(number) ? [originWords(box)] : []),
    ...(values?.bad[number] && !isBad(values.bits[number]) ? ["This block contains non-finite values."] : []),
    ...(box.parameters ? [counted(box.parameters, "parameter")] : []),
    ...(box.kind === "call" ? [`output ${formsOf(box.outputs) || "unknown"}`, flopsOf(box)] : []),
    ...(box.memory ? [`${bytes(box.memory)} of activations`] : []),
    ...(box.kind === "repeat" && !structure.open.has(number) ? ["Click to unfold"] : []),
  ];
  return lines.join("\n");
}

/** The boxes that are shown, last ones first, as tables show their end first. @param {Picture} picture */
export function tableOf(picture) {
  const { structure, readings } = picture;
  const columns = ["module", "class", quantityOf(picture), "parameters", "FLOPs", "activation memory", "output"];
  const { tree, open } = structure;
  if (!tree || !readings.values) return { columns, rows: [] };
  const { values } = readings;
  const numbers = numbersIn(values.bits);
  const shown = tree
    .shown(open)
    .filter((number) => tree.boxes[number].kind !== "repeat")
    .reverse();
  const rows = shown.map((number) => {
    const box = tree.boxes[number];
    const isKnown = values.known[number] !== NONE && values.bits[number] !== MISSING;
    const name = `${box.module || moduleName("")}${box.call ? ` call ${box.call}` : ""}`;
    return [
      name,
      box.type,
      isKnown ? numbers[number] : null,
      box.parameters,
      box.flops,
      box.memory,
      formsOf(box.outputs),
    ];
  });
  return { columns, rows };
}

/** What is read out of a box. @param {Picture} picture @param {number} number */
export function saidOf(picture, number) {
  const { structure, readings } = picture;
  const tree = /** @type {Tree} */ (structure.tree);
  const box = tree.boxes[number];
  const fold = box.parts.length
    ? structure.open.has(number)
      ? ", unfolded"
      : `, folded, ${counted(box.parts.length, "part")}`
    : "";
  const value = readings.values ? valueWords(readings.values, tree, number) : "";
  return `${tree.titleOf(number)}, ${tree.typeOf(number)}${value ? `, ${value}` : ""}${fold}`;
}

/** @param {number} value */
export function short(value) {
  return format(value, { digits: 2 });
}
