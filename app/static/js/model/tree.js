/** The boxes of a model: how they are nested, their names and sizes, and which are open. Pure. */
import { moduleName } from "../format.js";
/** @import { Model, ModelBox as Box } from "../answers.js" */

export const OUTSIDE = -1; // the place around all boxes
const ROOT_ID = "."; // the root module in an address: its path is empty
const MAX_OPEN = 60; // boxes that are shown at first
const MAX_LISTED = 200; // matching boxes that are opened

/** The number of parts that a box has per unit. @param {Box} box */
export function timesOf(box) {
  return box.kind === "repeat" ? box.parts.length / box.period : 1;
}

export class Tree {
  /** @param {Model} model */
  constructor(model) {
    this.model = model;
    this.boxes = model.boxes;
    /** @type {Map<string, number>} */
    this.numbers = new Map(model.boxes.map((box) => [this.idOf(box.number), box.number]));
    /** The boxes of each module. @type {Map<string, number[]>} */
    this.byModule = new Map();
    for (const { kind, module, number } of model.boxes)
      if (kind !== "repeat") this.byModule.set(module, [...(this.byModule.get(module) ?? []), number]);
    /** All boxes, parts before the boxes around them. */
    this.fromInside = this.#order();
  }

  #order() {
    const order = [];
    const waiting = [...this.model.parts];
    for (let number = waiting.pop(); number !== undefined; number = waiting.pop()) {
      order.push(number);
      waiting.push(...this.boxes[number].parts);
    }
    return order.reverse();
  }

  /** @param {number} number a box, or OUTSIDE */
  partsOf(number) {
    return number === OUTSIDE ? this.model.parts : this.boxes[number].parts;
  }

  /** @param {number} number a box, or OUTSIDE */
  edgesOf(number) {
    return number === OUTSIDE ? this.model.edges : this.boxes[number].edges;
  }

  /** What it is called in an address: it holds in a link to another run of the same model. @param {number} number
   * @returns {string} */
  idOf(number) {
    const { kind, module, call, phase, parts } = this.boxes[number];
    if (kind === "repeat") return `${this.idOf(parts[0])};r`;
    return `${encodeURIComponent(module) || ROOT_ID}${call ? `;${call}` : ""}${phase === "eval" ? ";e" : ""}`;
  }

  /** The boxes around one, the innermost first. @param {number} number */
  around(number) {
    const boxes = [];
    for (let box = this.boxes[number].inside; box !== null; box = this.boxes[box].inside) boxes.push(box);
    return boxes;
  }

  /** The path of a module as it stands in the box around it. @param {number} number @returns {string} */
  shortOf(number) {
    const { module, inside } = this.boxes[number];
    if (!module) return moduleName("");
    const outer = inside === null ? "" : this.#moduleAround(inside);
    const rest = outer && module.startsWith(outer) ? module.slice(outer.length).replace(/^[./]/, "") : module;
    return rest || module;
  }

  /** @param {number} number @returns {string} */
  #moduleAround(number) {
    const box = this.boxes[number];
    if (box.kind !== "repeat") return box.module;
    return box.inside === null ? "" : this.#moduleAround(box.inside);
  }

  /** What stands in the box. @param {number} number @returns {string} */
  titleOf(number) {
    this.#titles[number] ??= this.#makeTitle(number);
    return this.#titles[number];
  }

  /** @type {string[]} */
  #titles = [];

  /** @param {number} number */
  #makeTitle(number) {
    const box = this.boxes[number];
    if (box.kind !== "repeat") {
      const call = box.call ? ` call ${box.call}` : "";
      return `${this.shortOf(number)}${call}${box.phase === "eval" ? " (eval)" : ""}`;
    }
    const [first, last] = [box.parts[0], box.parts[box.parts.length - box.period]];
    const same = box.period > 1 || this.boxes[first].module === this.boxes[last].module;
    if (same)
      return box.parts
        .slice(0, box.period)
        .map((part) => this.shortOf(part))
        .join(" \u00b7 ");
    return `${this.shortOf(first)} \u2026 ${this.shortOf(last)}`;
  }

  /** The class, or the contents. @param {number} number @returns {string} */
  typeOf(number) {
    this.#types[number] ??= this.#makeType(number);
    return this.#types[number];
  }

  /** @type {string[]} */
  #types = [];

  /** @param {number} number */
  #makeType(number) {
    const box = this.boxes[number];
    if (box.kind !== "repeat") return box.type;
    return box.parts
      .slice(0, box.period)
      .map((part) => this.boxes[part].type)
      .join(" \u00b7 ");
  }

  /** Boxes that are open at first: all on one level, from the outside, as long as few are shown. Repeats stay
   * folded. */
  openAtFirst() {
    const open = /** @type {Set<number>} */ (new Set());
    let shown = this.model.parts.length;
    let level = [...this.model.parts];
    while (level.length) {
      const opened = level.filter((number) => this.boxes[number].kind !== "repeat" && this.boxes[number].parts.length);
      level = opened.flatMap((number) => this.boxes[number].parts);
      shown += level.length;
      if (shown > MAX_OPEN) break;
      for (const number of opened) open.add(number);
    }
    return open;
  }

  /** The boxes that are shown, outer ones before their parts. @param {Set<number>} open @returns {number[]} */
  shown(open) {
    const boxes = [];
    const waiting = [...this.model.parts].reverse();
    for (let number = waiting.pop(); number !== undefined; number = waiting.pop()) {
      boxes.push(number);
      if (open.has(number)) waiting.push(...[...this.boxes[number].parts].reverse());
    }
    return boxes;
  }

  /** The box that shows another: itself, or the outermost closed one around it.
   * @param {number} number @param {Set<number>} open */
  shownFor(number, open) {
    const closed = this.around(number).filter((box) => !open.has(box));
    return closed.at(-1) ?? number;
  }

  /** Opens the boxes around some boxes, unless these are too many. @param {number[]} numbers
   * @param {Set<number>} open */
  reveal(numbers, open) {
    const next = new Set(open);
    for (const number of numbers.slice(0, MAX_LISTED)) for (const box of this.around(number)) next.add(box);
    return next;
  }
}

/** Which boxes are open, as the address has it: what differs from those that are open at first.
 * @param {Tree} tree @param {Set<number>} open */
export function writeFolds(tree, open) {
  const usual = tree.openAtFirst();
  const opened = [...open].filter((number) => !usual.has(number)).map((number) => tree.idOf(number));
  const closed = [...usual].filter((number) => !open.has(number)).map((number) => `-${tree.idOf(number)}`);
  return [...opened, ...closed].join(",");
}

/** @param {Tree} tree @param {string} text */
export function readFolds(tree, text) {
  const open = tree.openAtFirst();
  for (const fold of text.split(",").filter(Boolean)) {
    const closes = fold.startsWith("-") && !tree.numbers.has(fold);
    const number = tree.numbers.get(closes ? fold.slice(1) : fold);
    if (number === undefined || !tree.boxes[number].parts.length) continue;
    if (closes) open.delete(number);
    else open.add(number);
  }
  return open;
}

/** The sources of each box. For a box with parts, these are the sources of its outputs. @param {Tree} tree
 * @returns {number[][]} */
export function sourcesOf(tree) {
  return tree.boxes.map((box) => {
    const edges = box.parts.length ? box.edges : tree.edgesOf(box.inside ?? -1);
    const target = box.parts.length ? null : box.number;
    const carried = edges.filter((edge) => edge.target === target).flatMap(({ carries }) => carries);
    return [...new Set(carried)].filter((source) => source !== box.number);
  });
}

/** The other way round: for each box, those that got its output. @param {number[][]} sources @returns {number[][]} */
export function reversed(sources) {
  const targets = /** @type {number[][]} */ (sources.map(() => []));
  for (const [box, inputs] of sources.entries()) for (const source of inputs) targets[source].push(box);
  return targets;
}

/** The bad boxes that got nothing bad. @param {number[][]} sources @param {(box: number) => boolean} isBad
 * @returns {number[]} */
export function originsOf(sources, isBad) {
  return sources.flatMap((inputs, box) => (isBad(box) && !inputs.some(isBad) ? [box] : []));
}

/** The boxes of modules that match, in the order of execution. @param {Tree} tree
 * @param {(module: string) => boolean} fits @returns {number[]} */
export function matchesOf(tree, fits) {
  return tree.fromInside.filter((number) => tree.boxes[number].kind !== "repeat" && fits(tree.boxes[number].module));
}

/** The boxes that stay bright: matching boxes, and the boxes around them. @param {Tree} tree
 * @param {readonly number[]} matches */
export function brightOf(tree, matches) {
  return new Set(matches.flatMap((number) => [number, ...tree.around(number)]));
}

export const HEAD = 24; // above the parts of an open box
export const PAD = 12; // around them
export const LINE = 15;
export const STRIP = 10; // the cells of a repeat
const LETTER = 7.5; // about, of the title
const SMALL = 6.7; // and of the class
const MIN_WIDTH = 84;
const MAX_WIDTH = 200;
const MAX_CELLS = 48;

/** Of a closed box. @param {Tree} tree @param {number} number @returns {[number, number]} */
export function sizeOf(tree, number) {
  const box = tree.boxes[number];
  const badge = box.kind === "repeat" ? 34 + 7 * String(timesOf(box)).length : box.parts.length ? 32 : 16;
  const wide = Math.max(tree.titleOf(number).length * LETTER + badge, tree.typeOf(number).length * SMALL + 18);
  const width = Math.round(Math.min(MAX_WIDTH, Math.max(MIN_WIDTH, wide)));
  return [width, 3 * LINE + 6 + (box.kind === "repeat" ? STRIP + 4 : 0)];
}

/** How many cells the strip of a repeat has: one for each unit, or for several. @param {number} times */
export function cellsOf(times) {
  return Math.min(times, MAX_CELLS);
}

/** The sign in the circle of a box that computes something itself: `+` for sums, else the operator's name.
 * @param {string} maker */
export function signOf(maker) {
  const signs = /** @type {Record<string, string>} */ ({
    Add: "+",
    Mul: "\u00d7",
    Sub: "\u2212",
    Div: "\u00f7",
    Cat: "cat",
  });
  return (
    signs[maker] ??
    (maker
      .replace(/^Unsafe/, "")
      .toLowerCase()
      .slice(0, 7) ||
      "\u0192")
  );
}

/** Of that circle. @param {string} maker @returns {[number, number]} */
export function makerSize(maker) {
  return [Math.max(20, signOf(maker).length * 6 + 12), 20];
}
