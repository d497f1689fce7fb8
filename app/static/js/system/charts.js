/** The charts of the machine, by the sampled values. Names are those of docs/machine.md. */
import { get } from "../api.js";
import { byId } from "../dom.js";
import { stepWords } from "../format.js";
import { MAX_POINTS, MAX_SCALARS } from "../limits.js";
import { CurveFeed, lineIn } from "../live/curve.js";
import { PlannedCharts } from "../plot/plot.js";
import { SYSTEM } from "../vocabulary.js";

/** @import { Range } from "../live/curve.js"
 * @import { Page } from "../page.js"
 * @import { Line } from "../plot/thin.js" */

/** @typedef {{name: string, words: string, color?: string}} Part a line: the scalar, and what the legend calls it
 * @typedef {{id: string, title: string, unit: number, parts: Part[]}} Plan a chart; values are divided by `unit` */

const GB = 1e9;
const MB = 1e6;
const MS = 1e-3;

/** The machine's own: the name of each line, and its words.
 * @type {[string, string, number, [string, string, string?][]][]} */
const MACHINE = [
  ["samples", "Samples per second", 1, [["rate/samples", "samples per second"]]],
  ["tokens", "Tokens per second", 1, [["rate/tokens", "tokens per second"]]],
  [
    "time",
    "Step time, ms",
    MS,
    [
      ["time/loading", "data loading", "#0e97a7"],
      ["time/before", "before the model", "#e07b17"],
      ["time/forward", "forward", "#2f7ed8"],
      ["time/backward", "backward", "#7b61d9"],
      ["time/optimizer", "optimizer", "#1f9d55"],
      ["time/other", "other", "#7a8794"],
      ["time/hookcore", "hookcore", "#d03b3b"],
    ],
  ],
  ["steps", "Steps per second", 1, [["rate/steps", "steps per second"]]],
  [
    "cpu",
    "CPU: busy cores",
    1,
    [
      ["cpu/process", "this process"],
      ["cpu/machine", "all processes"],
    ],
  ],
  [
    "memory",
    "Memory in use, GB",
    GB,
    [
      ["memory/process", "this process"],
      ["memory/machine", "all processes"],
    ],
  ],
  [
    "disk",
    "Disks, MB per second",
    MB,
    [
      ["disk/read", "read"],
      ["disk/written", "written"],
    ],
  ],
  [
    "network",
    "Network, MB per second",
    MB,
    [
      ["network/received", "received"],
      ["network/sent", "sent"],
    ],
  ],
];

/** A line for each GPU. @type {[string, string, number][]} */
const EACH_GPU = [
  ["utilization", "GPU utilization, %", 1],
  ["power", "GPU power, W", 1],
  ["temperature", "GPU temperature, \u00b0C", 1],
];

/** A chart for each GPU. @type {[string, string][]} */
const MEMORY = [
  ["memory", "all processes"],
  ["reserved", "torch: reserved"],
  ["allocated", "torch: in tensors"],
  ["peak", "torch: peak in tensors"],
];

/** The charts that have at least one line. @param {string[]} names of scalars @returns {Plan[]} */
export function plansOf(names) {
  const known = new Set(names);
  const gpus = gpusOf(names);
  const all = [
    ...EACH_GPU.map(([part, title, unit]) => ({
      id: `gpu-${part}`,
      title,
      unit,
      parts: gpus.map((gpu) => ({ name: `${SYSTEM}${gpu}/${part}`, words: wordsOf(gpu) })),
    })),
    ...gpus.map((gpu) => ({
      id: `${gpu}-memory`,
      title: `Memory of ${wordsOf(gpu)}, GB`,
      unit: GB,
      parts: MEMORY.map(([part, words]) => ({ name: `${SYSTEM}${gpu}/${part}`, words })),
    })),
    ...MACHINE.map(([id, title, unit, parts]) => ({
      id,
      title,
      unit,
      parts: parts.map(([name, words, color]) => ({ name: SYSTEM + name, words, color })),
    })),
  ];
  return all
    .map((plan) => ({ ...plan, parts: plan.parts.filter(({ name }) => known.has(name)) }))
    .filter(({ parts }) => parts.length);
}

/** @param {string[]} names @returns {string[]} gpu0, gpu2 in the order of their numbers */
function gpusOf(names) {
  const found = names.flatMap((name) => /^(gpu\d+)\//.exec(name.slice(SYSTEM.length))?.[1] ?? []);
  return [...new Set(found)].sort((a, b) => Number(a.slice(3)) - Number(b.slice(3)));
}

/** @param {string} gpu */
function wordsOf(gpu) {
  return gpu.replace("gpu", "GPU ");
}

/** The line of a scalar in the units of its chart. @param {Line} line @param {string} words
 * @param {number} unit @param {string} [color] @returns {Line} */
export function lineOf(line, words, unit, color) {
  const scaled = (/** @type {ArrayLike<number> | undefined} */ values) => values && Array.from(values, (v) => v / unit);
  const merged = Array.from(line.first).some((first, place) => first !== line.last[place]);
  const [min, max] = merged ? [scaled(line.min), scaled(line.max)] : [];
  return { ...line, ...(color ? { color } : {}), name: words, mean: scaled(line.mean), min, max };
}

/** @extends {PlannedCharts<Plan>} */
export class SystemCharts extends PlannedCharts {
  /** @param {Page} page */
  constructor(page) {
    super(page, byId("charts"), (plan) => {
      const name = plan.parts.map((part) => part.name);
      return {
        y: { title: plan.title, fixed: true, low: 0 },
        query: () => ({ path: "scalars", query: { name, ...page.follow.shown, points: MAX_POINTS } }),
        linesOf: (series) => linesOf(plan, (each) => lineIn(series, each)),
        legend: plan.parts.length > 1,
      };
    });
    this.feed = new SystemFeed(page);
    this.feed.on("data", () => this.#draw());
    this.feed.on("error", (error) => this.fail(error));
  }

  /** @param {string[]} names of all sampled scalars; a GPU may come later */
  show(names) {
    const plans = plansOf(names);
    if (this.plan(plans)) this.feed.show(plans.flatMap(({ parts }) => parts.map(({ name }) => name)));
  }

  #draw() {
    const { span } = this.page.follow;
    const words = span ? `Nothing was sampled in ${stepWords(...span)}: show more steps.` : "No steps.";
    this.draw((plan) => linesOf(plan, (name) => this.feed.find(name)), words);
  }
}

/** @param {Plan} plan @param {(name: string) => Line | null} find */
function linesOf(plan, find) {
  return plan.parts.flatMap(({ name, words, color }) => {
    const found = find(name);
    return found?.first.length ? [lineOf(found, words, plan.unit, color)] : [];
  });
}

const EVERY_MS = 2000; // the machine is sampled no more often

class SystemFeed extends CurveFeed {
  /** @type {string[]} */
  #names = [];

  /** @param {Page} page */
  constructor(page) {
    const request = (/** @type {Range} */ range, /** @type {AbortSignal} */ signal) =>
      this.#parts().map((name) => get("scalars", { run: page.run, name, ...range }, signal));
    super(page, request, ({ name }) => name, { min: EVERY_MS });
    page.follow.on("change", () => this.load());
    // While no step ends, samples are added to the last one, which is news of the run but no newer step.
    page.events.on("run", () => page.follow.paused || this.refresh.soon());
  }

  /** The names, as many as one question takes at a time. */
  #parts() {
    return Array.from({ length: Math.ceil(this.#names.length / MAX_SCALARS) }, (_, place) =>
      this.#names.slice(place * MAX_SCALARS, (place + 1) * MAX_SCALARS),
    );
  }

  /** @param {string[]} names */
  show(names) {
    this.#names = names;
    this.load();
  }

  /** @param {string} name @returns {Line | null} */
  find(name) {
    return this.curves.get(name)?.line(name) ?? null;
  }
}
