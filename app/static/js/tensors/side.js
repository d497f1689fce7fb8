/** The view of one snapshot: its picture, the value under the pointer, its statistics, its files. */
import { get, getAll, getFile, numberOf, urlOf } from "../api.js";
import { h, tell } from "../dom.js";
import { bytes, count, moduleName, number, ofParameters, percent, tapWords } from "../format.js";
import { MAX_PAGE } from "../limits.js";
import { besides, NONE, showScale, Tiles, wordsAt } from "./tiles.js";
import { Trace } from "./trace.js";
/** @import { Snapshot } from "../answers.js"
 * @import { Page } from "../page.js"
 * @import { Names } from "./tiles.js" */

/** @typedef {{name: string, words: string, pickers: {axis: number, words: string, size: number}[], draws: "tiles" |
 * "trace"}} View */

/** Whether the last two dimensions are positions by positions, judging by shape and name: images are square too.
 * @param {number[]} shape @param {{kind: string, label: string}} tap */
export function isAttention(shape, { kind, label } = NO_TAP) {
  const [to, from] = shape.slice(-2);
  return shape.length >= 3 && to === from && to > 1 && /att|softmax/i.test(label) && !ofParameters(kind);
}

const NO_TAP = { kind: "", label: "" };

/** @param {string} name @param {string} words @param {View["pickers"]} pickers @param {View["draws"]} [draws]
 * @returns {View} */
function view(name, words, pickers, draws = "tiles") {
  return { name, words, pickers, draws };
}

/** The ways to look at a tensor, the best first.
 * @param {number[]} shape @param {{kind: string, label: string}} [tap] @returns {View[]} */
export function viewsOf(shape, tap = NO_TAP) {
  const many = shape.length;
  if (!many) return [view("trace", "value", [], "trace")];
  const weight = ofParameters(tap.kind);
  const first = weight ? "output channel" : "sample";
  const pick = (/** @type {number} */ count, /** @type {string[]} */ words) =>
    shape.slice(0, count).map((size, axis) => ({ axis, size, words: words[axis] ?? `dimension ${axis}` }));
  const isMap = isAttention(shape, tap);
  const row = weight ? "input channel" : many > 3 ? "channel" : "row";
  const everyLayer = isMap && many === 4 ? [view("layers", "all layers by heads", pick(1, [first]))] : [];
  const picks = [pick(1, [first])[0], { axis: 2, words: "channel", size: shape[2] }];
  const views = [
    view("tiles", wordsOf(shape, tap), many > 3 ? pick(many - 3, [first]) : []),
    view("every", weight ? "all filters" : "all samples", []),
    view("matrix", many === 3 && !isMap ? "sequence: positions by channels" : "matrix", pick(many - 2, [first, row])),
    view("trace", "line along the last dimension", pick(many - 1, [first, "row", "row"]), "trace"),
    view("channel", "line of one channel", picks, "trace"),
  ];
  const ofThree = isMap || weight ? ["tiles", "matrix", "trace"] : ["matrix", "channel", "tiles", "trace"];
  const order = [["trace"], ["matrix", "trace"], ofThree][many - 1] ?? ["tiles", "every", "matrix", "trace"];
  const found = order.flatMap((name) => views.filter((view) => view.name === name));
  return [...found.slice(0, 1), ...everyLayer, ...found.slice(1)];
}

/** What the dimensions of a tensor are. @param {number[]} shape @param {{kind: string, label: string}} tap
 * @returns {string[]} */
export function dimensionsOf(shape, tap) {
  const many = shape.length;
  if (isAttention(shape, tap)) return [...["sample", "head", "group"].slice(0, many - 2), "query", "key"];
  if (ofParameters(tap.kind)) return ["output", "input", "row", "column"].slice(0, many);
  if (many === 2) return ["row", "column"];
  return many === 3
    ? ["sample", "position", "channel"]
    : ["sample", "channel", ...Array(many - 3).fill("row"), "column"];
}

/** The names of the tiles of a view: "head 3". @param {number[]} shape @param {View} view
 * @param {{kind: string, label: string}} tap @param {number} many tiles @param {number} after the first one */
export function tileNames(shape, view, tap, many, after) {
  const words = dimensionsOf(shape, tap);
  const free = shape.map((_, axis) => axis).filter((axis) => !view.pickers.some((picked) => picked.axis === axis));
  return Array.from({ length: many }, (_, place) => {
    let rest = place + after;
    const names = [];
    for (const axis of free.slice(0, -2).reverse()) {
      names.unshift(`${words[axis]} ${rest % shape[axis]}`);
      rest = Math.floor(rest / shape[axis]);
    }
    return names.join(", ");
  });
}

/** @param {number[]} shape @param {{kind: string, label: string}} tap */
function wordsOf(shape, tap) {
  if (ofParameters(tap.kind)) return shape.length > 3 ? "filters of one output" : "filters";
  if (isAttention(shape, tap)) return shape.length > 3 ? "attention heads" : "attention maps";
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

/** The indices in the tensor of a cell of the picture; a range where a cell stands for several. @param {number[]} shape
 * @param {View} view @param {number[]} picks @param {{tile: number, row: number, column: number}} cell @param {[number,
 * number]} factors @param {{rows: [number, number], columns: [number, number]} | null} [part] @returns {string[]} */
export function indicesOf(shape, view, picks, cell, factors, part = null) {
  const indices = shape.map(() => "0");
  const fixed = new Map(view.pickers.map(({ axis }, place) => [axis, picks[place] || 0]));
  for (const [axis, pick] of fixed) indices[axis] = String(pick);
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
  if (inside.length > 1) indices[inside[0]] = range(cell.row, factors[0], part?.rows ?? [0, shape[inside[0]]]);
  if (inside.length)
    indices[inside[inside.length - 1]] = range(
      cell.column,
      factors[1],
      part?.columns ?? [0, shape[inside[inside.length - 1]]],
    );
  let rest = cell.tile;
  for (const axis of free.slice(0, -2).reverse()) {
    indices[axis] = String(rest % shape[axis]);
    rest = Math.floor(rest / shape[axis]);
  }
  return indices;
}

/** @param {ArrayBuffer} buffer @returns {{shape: number[], values: Float32Array | Float64Array}} */
export function readNpy(buffer) {
  const bytes = new Uint8Array(buffer);
  if (String.fromCharCode(...bytes.subarray(1, 6)) !== "NUMPY") throw new Error("the server did not send a NumPy file");
  const view = new DataView(buffer);
  const [length, start] = bytes[6] === 1 ? [view.getUint16(8, true), 10] : [view.getUint32(8, true), 12];
  const header = new TextDecoder("latin1").decode(bytes.subarray(start, start + length));
  const type = /'descr': '([^']+)'/.exec(header)?.[1];
  const shape = (/'shape': \(([^)]*)\)/.exec(header)?.[1] ?? "")
    .split(",")
    .filter((part) => part.trim())
    .map(Number);
  const body = buffer.slice(start + length);
  if (type === "<f4") return { shape, values: new Float32Array(body) };
  if (type === "<f8") return { shape, values: new Float64Array(body) };
  throw new Error(`the server sent numbers of the unknown type ${type}`);
}

const MAX_LAYERS = 48; // rows of heads
const MAX_CELLS = 384; // of a tile, across and down: more is squeezed
const MAX_VALUES = 1_500_000; // of all tiles of a picture
export const TILES = 64; // on a page of them
const TRACE = 800;

/** @typedef {{rows: [number, number], columns: [number, number]}} Part */
/** @typedef {{view: View, picks: number[], part: Part | null, pool: string, scale: string, ends: string, after:
 * number}} Look */

export class Side {
  /** @type {Tiles | Trace | null} */
  picture = null;
  /** @type {{values: Float32Array | Float64Array, shape: [number, number, number], factors: [number, number]} | null}
   */
  data = null;
  total = 0;
  /** @type {Record<string, number>} */
  statistics = {};
  slice = "";
  /** The snapshots of all layers, if all are shown. @type {Snapshot[]} */
  layers = [];
  /** @type {Names} */
  names = NONE;

  /** @param {Page} page @param {Snapshot} entry @param {number} [height] of its tiles, at most */
  constructor(page, entry, height) {
    this.page = page;
    this.entry = entry;
    this.height = height;
    this.about = h("p", { class: "quiet small" }, aboutOf(entry));
    this.plot = h("div", { class: "plot" });
    this.words = h("p", { class: "inspector", "aria-live": "off" }, "\u00a0");
    this.bar = h("div", { class: "scale-bar" });
    this.facts = h("dl", { class: "facts" });
    this.files = h("p", { class: "row" });
    this.why = h("p", { class: "quiet small", hidden: true });
    this.element = h(
      "div",
      { class: "pane" },
      this.about,
      this.why,
      this.plot,
      this.words,
      this.bar,
      this.facts,
      this.files,
    );
  }

  /** Requests what a look needs. @param {Look} look @param {AbortSignal} signal */
  async load(look, signal) {
    const { run } = this.page;
    const shape = this.entry.kept_shape;
    this.look = look;
    this.slice = sliceOf(shape, look.view, look.picks, look.part);
    const query = { run, slice: this.slice, after: look.after, limit: TILES };
    const path = /** @type {const} */ (`snapshots/${this.entry.number}`);
    this.layers = look.view.name === "layers" ? await this.#layersOf(signal) : [];
    const trace = look.view.draws === "trace";
    const tiles = Math.max(
      1,
      Math.min(
        TILES,
        shape
          .slice(look.view.pickers.length, -2)
          .reduce((/** @type {number} */ a, /** @type {number} */ b) => a * b, 1),
      ),
    );
    const most = Math.min(MAX_CELLS, Math.floor(Math.sqrt(MAX_VALUES / tiles)));
    const [names, answer, low, high] = await Promise.all([
      this.entry.named ? get(`${path}/names`, { run }, signal) : NONE,
      get(`${path}/statistics`, { run, slice: this.slice }, signal),
      trace
        ? tilesOf(path, { ...query, columns: TRACE, pool: "min" }, signal)
        : tilesOf(path, { ...query, rows: most, columns: most, pool: look.pool }, signal),
      trace ? tilesOf(path, { ...query, columns: TRACE, pool: "max" }, signal) : null,
    ]);
    this.statistics = Object.fromEntries(
      Object.entries(answer.statistics).map(([name, value]) => [name, numberOf(value)]),
    );
    const inside = answer.shape.slice(-2);
    const whole = [...Array(2 - inside.length).fill(1), ...inside];
    const factors = /** @type {[number, number]} */ (
      [0, 1].map((at) => Math.max(1, Math.ceil(whole[at] / (trace && at ? TRACE : most))))
    );
    this.total = answer.shape.slice(0, -2).reduce((a, b) => a * b, 1);
    this.data = { values: low.values, shape: /** @type {any} */ (low.shape), factors };
    if (this.layers.length > 1) await this.#addLayers(query, most, look.pool, signal);
    this.high = high?.values ?? null;
    this.names = names;
    tell(this.why, [names.origin && `Tokens: ${names.origin}.`, names.why].filter(Boolean).join(" "));
  }

  /** The attention maps of all layers in the step, as far as they have the same shape. @param {AbortSignal} signal */
  async #layersOf(signal) {
    const { step, kept_shape: shape } = this.entry;
    const parts = await getAll("snapshots", { run: this.page.run, limit: MAX_PAGE }, signal);
    return parts
      .flatMap(({ snapshots }) => snapshots)
      .filter((other) => other.step === step && isAttention(other.kept_shape, other.tap))
      .filter((other) => other.kept_shape.join() === shape.join() && other.tap.kind === this.entry.tap.kind)
      .slice(0, MAX_LAYERS);
  }

  /** Reads the heads of all layers, a row of tiles for each. @param {Record<string, any>} query @param {number} most
   * cells of a tile @param {string} pool @param {AbortSignal} signal */
  async #addLayers(query, most, pool, signal) {
    const { data } = this;
    if (!data) return;
    const cells = { rows: most, columns: most, pool };
    const all = await Promise.all(
      this.layers.map(({ number: at }) => tilesOf(`snapshots/${at}`, { ...query, ...cells }, signal)),
    );
    const values = Float32Array.from(all.flatMap((each) => Array.from(each.values)));
    const [, rows, columns] = data.shape;
    this.data = { values, shape: [values.length / (rows * columns), rows, columns], factors: data.factors };
    this.total = this.data.shape[0];
  }

  /** What the tiles are. @returns {string[]} */
  get #tiles() {
    const { look, data, entry, layers } = this;
    if (!look || !data) return [];
    const [many] = data.shape;
    const each = many / Math.max(1, layers.length);
    const names = tileNames(entry.kept_shape, look.view, entry.tap, each, look.after);
    if (layers.length < 2) return names;
    return layers.flatMap(({ tap }) => names.map((name) => `${moduleName(tap.module)} ${name}`));
  }

  /** Shows words in place of the picture, which was not of this look. @param {string} words */
  say(words) {
    this.picture?.close();
    this.picture = null;
    this.data = null;
    this.total = 0;
    for (const element of [this.plot, this.bar, this.facts, this.files]) element.replaceChildren();
    this.words.textContent = "\u00a0";
    tell(this.why, words);
  }

  /** @param {ReturnType<typeof import("./tiles.js").rangeOf> | undefined} range shared with another side */
  draw(range) {
    const { look, data } = this;
    if (!look || !data) return;
    const trace = look.view.draws === "trace";
    if (!this.picture || this.picture instanceof Trace !== trace) {
      this.picture?.close();
      const title = `${tapWords(this.entry.tap)}, step ${this.entry.step}`;
      this.picture = trace
        ? new Trace(this.page, this.plot, {
            title,
            onPoint: (place) => this.#say(place === null ? null : { tile: 0, row: 0, column: place }),
          })
        : new Tiles(this.page, this.plot, { title, height: this.height, onPoint: (cell) => this.#say(cell) });
    }
    if (this.picture instanceof Trace)
      this.picture.show(data.values, this.high ?? data.values, data.factors[1], this.statistics.count);
    else
      this.picture.show({
        values: data.values,
        shape: data.shape,
        shared: look.scale === "shared",
        whole: look.ends === "all",
        range: look.scale === "shared" ? range : undefined,
        tiles: this.#tiles,
        across: this.layers.length > 1 ? data.shape[0] / this.layers.length : 0,
        axes: this.#axes(look, data.factors),
        names: besides(this.names, {
          dimensions: this.entry.kept_shape.length,
          sample: look.picks[look.view.pickers.findIndex(({ axis }) => axis === 0)] ?? 0,
          cells: [data.shape[1], data.shape[2]],
          factors: data.factors,
          part: look.part,
        }),
      });
    showScale(this.bar, this.picture instanceof Tiles ? this.picture : null);
    this.about.textContent = aboutOf(this.entry) + this.#directions(look, data.shape[0]);
    if (this.layers.length > 1) this.facts.replaceChildren();
    else this.#facts();
    this.#files();
  }

  /** What the rows and columns of several tiles are: a single one has axes. @param {Look} look @param {number} tiles */
  #directions(look, tiles) {
    if (tiles < 2 || look.view.draws === "trace") return "";
    const [down, right] = this.#axes(look, [1, 1]).words;
    return down && right ? ` \u00b7 in each tile: ${down} \u2193, ${right} \u2192` : "";
  }

  /** What rows and columns are, and where they begin. @param {Look} look @param {[number, number]} factors */
  #axes({ view, part }, factors) {
    const { kept_shape: shape, tap } = this.entry;
    const free = shape.map((_, axis) => axis).filter((axis) => !view.pickers.some((picked) => picked.axis === axis));
    const words = ["", "", ...free.map((axis) => dimensionsOf(shape, tap)[axis])].slice(-2);
    return {
      words: /** @type {[string, string]} */ (words),
      first: /** @type {[number, number]} */ ([part?.rows[0] ?? 0, part?.columns[0] ?? 0]),
      factors,
    };
  }

  /** Shows and returns what a cell is. @param {{tile: number, row: number, column: number} | null} cell */
  #say(cell) {
    const { look, data } = this;
    if (!cell || !look || !data) {
      this.words.textContent = "\u00a0";
      return "";
    }
    const place = (cell.tile * data.shape[1] + cell.row) * data.shape[2] + cell.column;
    const value = data.values[place];
    const squeezed = data.factors[0] * data.factors[1] > 1;
    const indices = indicesOf(
      this.entry.kept_shape,
      look.view,
      look.picks,
      { ...cell, tile: (cell.tile % (data.shape[0] / Math.max(1, this.layers.length))) + look.after },
      data.factors,
      look.part,
    );
    const reading =
      look.view.draws === "trace" && squeezed
        ? `${number(value)} to ${number(this.high?.[place] ?? value)}`
        : number(value);
    const pooled = { max: "largest", min: "least" }[look.pool] ?? look.pool;
    const of = squeezed && look.view.draws !== "trace" ? `  (the ${pooled} of ${data.factors.join(" \u00d7 ")})` : "";
    const tile = this.layers.length > 1 ? `${this.#tiles[cell.tile]}  ` : "";
    const called = wordsAt(this.names, indices);
    const words = `${tile}[${indices.join(", ")}]  ${reading}${of}${called && `  ${called}`}`;
    this.words.textContent = words;
    return words;
  }

  #facts() {
    const { count: all, nan, inf, zero, ...others } = this.statistics;
    const counts = { values: count(all), zero: percent(all ? zero / all : 0), NaN: count(nan), infinite: count(inf) };
    const facts = [...Object.entries(counts), ...Object.entries(others).map(([name, value]) => [name, number(value)])];
    this.facts.replaceChildren(
      ...facts.map(([name, value]) =>
        h(
          "div",
          { class: (name === "NaN" && nan) || (name === "infinite" && inf) ? name.slice(0, 3).toLowerCase() : null },
          h("dt", {}, name),
          h("dd", {}, value),
        ),
      ),
    );
  }

  #files() {
    const link = (/** @type {string} */ format, /** @type {string} */ words, /** @type {string} */ slice) =>
      h(
        "a",
        {
          class: "button small",
          download: `${this.entry.tap.label.replace(/[^A-Za-z0-9._-]+/g, "-")}_step${this.entry.step}.${format}`,
          href: urlOf(`snapshots/${this.entry.number}`, { run: this.page.run, format, slice }),
        },
        words,
      );
    const flat = (this.data?.shape[0] ?? 0) === 1;
    this.files.replaceChildren(
      h("span", { class: "quiet small" }, "Download"),
      link("npy", "npy", ""),
      link("safetensors", "safetensors", ""),
      ...(this.slice ? [link("npy", "this slice as npy", this.slice)] : []),
      ...(flat ? [link("csv", "CSV", this.slice), link("png", "PNG, one pixel per value", this.slice)] : []),
    );
  }

  close() {
    this.picture?.close();
    this.element.remove();
  }
}

/** @param {Snapshot} entry */
function aboutOf(entry) {
  const cut = entry.truncated
    ? ` \u00b7 only the first ${entry.kept_shape.join(" \u00d7 ")}: all of it is too large`
    : "";
  const shape = entry.shape.join(" \u00d7 ") || "one value";
  return `${[`step ${count(entry.step)}`, shape, entry.dtype, bytes(entry.nbytes)].join(" \u00b7 ")}${cut}`;
}

/** @param {string} path @param {Record<string, any>} query @param {AbortSignal} signal */
async function tilesOf(path, query, signal) {
  const answer = await getFile(`${path}/tiles`, { ...query, format: "npy" }, signal);
  return readNpy(await answer.arrayBuffer());
}
