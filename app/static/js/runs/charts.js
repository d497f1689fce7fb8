/** The charts of the list of runs: values over steps, settings against results, and what differs. */
import { get, numberOf } from "../api.js";
import { byId, h, tell, write } from "../dom.js";
import { count, counted, shorten, titled } from "../format.js";
import { MAX_LISTED_RUNS, MAX_OVERLAID_RUNS } from "../limits.js";
import { Refresh } from "../live/refresh.js";
import { LineChart } from "../plot/plot.js";
import { load } from "../popup.js";
import { RunsClock } from "../timeline/runsclock.js";
import { GRADIENT_NORM } from "../vocabulary.js";
/** @import { Overlay, OverlayLine, Run } from "../answers.js"
 * @import { Page } from "../page.js"
 * @import { Line } from "../plot/thin.js"
 */

/** @typedef {boolean | number | string | null | undefined} Value */

/** A setting that differs, with its values by run. @typedef {{name: string, values: Record<string, Value>}} Setting */

/** The settings that tell runs apart in a picture: at least two of the runs have different ones, besides those that
 * have none. @param {Setting[]} settings @returns {Setting[]} */
export function telling(settings) {
  return settings.filter(
    ({ values }) =>
      new Set(
        Object.values(values)
          .filter((value) => value !== null && value !== undefined)
          .map(String),
      ).size > 1,
  );
}

/** The names of results, those that most runs have first. @param {Run[]} runs @returns {string[]} */
export function resultsOf(runs) {
  /** @type {Map<string, number>} */
  const many = new Map();
  for (const run of runs) for (const name of Object.keys(run.results)) many.set(name, (many.get(name) ?? 0) + 1);
  return [...many.keys()].sort((a, b) => (many.get(b) ?? 0) - (many.get(a) ?? 0) || rank(a) - rank(b));
}

/** @param {string} name */
function rank(name) {
  return name === "recent_loss" ? 0 : /acc|score|metric/i.test(name) ? 1 : /loss/i.test(name) ? 2 : 3;
}

/** Ten hues that are distinguishable on light and dark backgrounds, also for most color-blind readers. */
export const HUES = "#2f7ed8 #e07b17 #1f9d55 #b0479c #d03b3b #16a2b8 #8d6e1f #7b61d9 #7a8794 #c2558a".split(" ");
const [LOW, MIDDLE, HIGH, GRAY] = ["#6062d6", "#1c9b87", "#e27a16", "#808080"];

/** A color for each key: that which it had before unless an earlier key has it too, else a rare one.
 * @param {string[]} keys @param {Map<string, string>} [before] @returns {Map<string, string>} */
export function huesOf(keys, before = new Map()) {
  const hues = /** @type {Map<string, string>} */ (new Map());
  const used = new Map(HUES.map((hue) => [hue, 0]));
  const times = (/** @type {string} */ hue) => used.get(hue) ?? 0;
  for (const key of new Set([...keys].sort((a, b) => Number(before.has(b)) - Number(before.has(a))))) {
    const rare = HUES.reduce((one, other) => (times(other) < times(one) ? other : one));
    const own = before.get(key) ?? rare;
    const hue = times(own) > times(rare) ? rare : own;
    hues.set(key, hue);
    used.set(hue, times(hue) + 1);
  }
  return hues;
}

/** Colors of groups: a scale for numbers, else hues. Numbers keep theirs: a new one gets a color between those of its
 * neighbors, or a grayer one than the last. @param {string[]} groups @param {Map<string, string>} [before] of the same
 * setting @returns {Map<string, string>} */
export function colorsOfGroups(groups, before = new Map()) {
  const named = groups.filter(Boolean);
  const numbers = named.map(Number);
  if (named.length < 3 || numbers.some((value) => !Number.isFinite(value))) return huesOf(groups, before);
  const order = [...named].sort((a, b) => Number(a) - Number(b));
  const kept = [...before].filter(([group, color]) => order.includes(group) && !HUES.includes(color));
  const colors = new Map(kept.length < 2 ? [] : kept);
  for (const [place, group] of order.entries()) {
    if (colors.has(group)) continue;
    const least = order.slice(place).find((other) => colors.has(other));
    const ends = [order[place - 1], least].flatMap((other) => colors.get(other ?? "") ?? []);
    const isNew = kept.length > 1;
    colors.set(group, isNew ? mixed(ends[0], ends[1] ?? GRAY, 0.5) : onScale(place / (order.length - 1)));
  }
  return colors.set("", HUES[8]);
}

/** @param {number} share from 0 to 1 */
function onScale(share) {
  return share < 0.5 ? mixed(LOW, MIDDLE, share * 2) : mixed(MIDDLE, HIGH, share * 2 - 1);
}

/** @param {string} one #rrggbb @param {string} other @param {number} share of the other */
function mixed(one, other, share) {
  const [from, to] = [one, other].map((color) => [1, 3, 5].map((at) => Number.parseInt(color.slice(at, at + 2), 16)));
  const parts = from.map((value, place) => Math.round(value + (to[place] - value) * share));
  return `#${parts.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}

const POINTS = 400;
const MOST_POINTS = 2000; // of whole runs, of which a part is shown
const UNASKED = 64; // runs that are shown without being selected; lines of more have fewer points
const LAYER = "(layer)";
const BAND_WORDS = "Means of a group are taken over steps, so the x-axis shows steps.";
const MAX_MS = 10_000;

/** @typedef {{run: string, name: string, group: string}} Listed */

export class RunCharts {
  /** @type {Listed[]} */
  #wanted = [];
  /** Whether the reader selected them, so that the filter says nothing about them. */
  #areSelected = false;
  /** Which the listed runs answer. */
  #query = "";
  /** @type {Run[]} */
  #runs = [];
  /** Of runs by their id, and of groups by their value. */
  #colors = { by: "", runs: new Map(), groups: new Map() };
  /** The color that each run had last. @type {Map<string, string>} */
  #hues = new Map();
  #tapsOf = "";
  /** Which runs are shown, in words. */
  #words = "";
  /** Those of which only the values over steps are known. */
  #older = 0;
  /** What differs between the runs; null until the server has said so. @type {Setting[] | null} */
  #settings = null;
  #askedAs = "";
  /** @type {{title: string}} */
  axis = { title: "" };

  /** @param {Page} page @param {(run: string) => void} onPick of a run in a chart
   * @param {{known: (runs: readonly Run[]) => void, chosen: () => void}} hear called with runs of the server, and when
   * other runs or another result are shown, so that other settings may differ */
  constructor(page, onPick, hear) {
    this.page = page;
    this.hear = hear;
    this.differences = /** @type {HTMLElement} */ (byId("config-differences"));
    this.differences.addEventListener("renewed", () => this.#readDifferences());
    this.clock = new RunsClock(page);
    this.clock.on("learned", () => tell(byId("overlay-axis"), this.clock.why)); // why the axis isn't the chosen one
    this.overlay = new LineChart({ ...page, clock: this.clock }, byId("overlay"), {
      title: "Runs over steps",
      several: true,
      y: this.axis,
      query: () => ({ path: "overlay", query: this.#asked() }),
    });
    this.pictures = page.schedule.whenSeen(byId("parallel")).then(async () => {
      const part = await load(() => import("./coordinates.js"));
      return part && new part.SettingCharts(page, onPick);
    });
    const failed = (/** @type {unknown} */ error) => this.overlay.fail(error, this.#about);
    this.refresh = new Refresh((signal) => this.#load(signal), { max: MAX_MS, failed });
    for (const [id, name] of Object.entries({ metric: "metric", result: "result", setting: "setting" })) {
      /** @type {HTMLSelectElement} */ (byId(id)).addEventListener("change", (event) =>
        page.state.set({ [name]: /** @type {HTMLSelectElement} */ (event.target).value }),
      );
    }
    for (const name of ["metric", "tap", "stat", "band", "group", "by"])
      page.state.on(name, () => void this.refresh.now());
    page.follow.on("change", () => void this.refresh.now());
    page.state.on("setting", () => this.#drawSettings());
    page.state.on("result", () => {
      this.#drawSettings();
      this.#askDifferences();
    });
  }

  /** The color of a run, or of its group; "" if it isn't shown. @param {string} run @returns {string} */
  colorOf(run) {
    return this.#colors.runs.get(run) ?? "";
  }

  /** @param {string} group @returns {string} */
  colorOfGroup(group) {
    return this.#colors.groups.get(group) ?? "";
  }

  /** Which runs are shown: those that are selected, else all that are listed.
   * @param {Listed[]} listed @param {Listed[]} selected @param {string} query which the listed runs answer */
  choose(listed, selected, query) {
    this.#query = query;
    const wanted = selected.length ? selected : listed;
    this.#areSelected = selected.length > 0;
    const shown = new Set(listed.map(({ run }) => run));
    const hidden = selected.filter(({ run }) => !shown.has(run)).length;
    const about = selected.length
      ? `of ${counted(selected.length, "selected run")}${hidden ? `, ${count(hidden)} hidden by the filter` : ""}`
      : listed.length === 1
        ? "of the only listed run"
        : `of all ${counted(listed.length, "listed run")}: select some to see only these`;
    const most = this.#areSelected ? MAX_OVERLAID_RUNS : UNASKED;
    this.#words = about + (wanted.length > most ? `; showing the first ${most}` : "");
    this.#say();
    byId("charts").hidden = !wanted.length;
    const before = JSON.stringify(this.#wanted);
    this.#wanted = wanted.slice(0, most).map(({ run, name, group }) => ({ run, name, group }));
    if (JSON.stringify(this.#wanted) === before) return;
    this.#color();
    void this.refresh.now();
  }

  #say() {
    const why = `because only the newest ${count(MAX_LISTED_RUNS)} are read`;
    const older = this.#older
      ? `; settings and results of ${counted(this.#older, "older run")} are missing, ${why}`
      : "";
    write(byId("charts-about"), this.#words + older);
  }

  /** A color for each run or group, which stays while others come and go. */
  #color() {
    const shown = this.#colors;
    const by = this.page.state.get("group");
    if (by) {
      const before = shown.by === by ? shown.groups : undefined;
      const groups = colorsOfGroups([...new Set(this.#wanted.map(({ group }) => group))], before);
      this.#colors = { by, runs: new Map(this.#wanted.map(({ run, group }) => [run, groups.get(group)])), groups };
      return;
    }
    const ids = this.#wanted.map(({ run }) => run).sort();
    const runs = huesOf([...ids.filter((run) => shown.runs.has(run)), ...ids], this.#hues);
    this.#hues = new Map([...this.#hues, ...runs]);
    this.#colors = { by, runs, groups: new Map() };
  }

  #asked() {
    const { metric, tap, stat, group, band } = this.page.state.values;
    const layer = metric === LAYER;
    const { by } = this.clock;
    const { follow } = this.page;
    const points = by === "step" || follow.range === null ? POINTS : MOST_POINTS;
    return {
      // The steps shown are those of one run; the others took others in the same time.
      ...(by === "step" ? follow.values : {}),
      runs: this.#wanted.map(({ run }) => run).join(),
      scalar: layer ? null : metric || "loss",
      tap: layer ? tap : null,
      stat: layer ? stat : null,
      group_by: group || null,
      band: group && band === "1" ? true : null,
      points: Math.floor(points * Math.min(1, UNASKED / this.#wanted.length)),
    };
  }

  /** Whether a value is shown that scripts log. */
  get #isLogged() {
    const { scalar } = this.#asked();
    return scalar !== null && scalar !== GRADIENT_NORM;
  }

  /** What the overlaid lines are of. */
  get #about() {
    const { scalar, tap, stat } = this.#asked();
    return JSON.stringify([scalar, tap, stat]);
  }

  /** @param {AbortSignal} signal */
  async #load(signal) {
    if (!this.#wanted.length) return;
    const query = this.#areSelected ? "" : this.#query;
    const { runs, next } = await get("runs", { query, limit: MAX_LISTED_RUNS }, signal);
    this.hear.known(runs);
    const listed = new Map(runs.map((run) => [run.id, run]));
    this.#runs = this.#wanted.flatMap(({ run }) => listed.get(run) ?? []);
    this.#older = next === null ? 0 : this.#wanted.length - this.#runs.length;
    this.#say();
    this.#offer();
    this.#drawSettings();
    this.#askDifferences();
    await this.#drawOverlay(signal);
  }

  /** @param {AbortSignal} signal */
  async #drawOverlay(signal) {
    const { scalar, tap } = this.#asked();
    if (scalar === null && !tap) return this.overlay.say("Name a layer and its kind, such as: layers.0 output");
    await this.#readFromDisk(signal);
    await this.#learnPaces(signal);
    const answer = await get("overlay", this.#asked(), signal);
    for (const { last_step: last } of answer.lines) this.page.follow.saw(last[last.length - 1] ?? 0);
    const lines = answer.lines.flatMap((line) => {
      const own = this.#lineOf(line);
      return (line.run === null ? own : this.clock.moved(own, line.run)) ?? [];
    });
    this.axis.title = titled(answer.what);
    this.overlay.figure.options.captured = !this.#isLogged;
    if (lines.length) this.overlay.show(lines, this.#about);
    else this.overlay.say(emptyWords(answer, this.#isLogged, this.page.follow.range !== null));
  }

  /** Has the server read one run on disk after the other, so that an empty chart says how far it is.
   * @param {AbortSignal} signal */
  async #readFromDisk(signal) {
    const unread = this.overlay.figure.lines.length ? [] : this.#runs.filter((run) => !run.in_memory);
    for (const [done, run] of unread.entries()) {
      this.overlay.say(`Reading runs from disk: ${count(done)} of ${count(unread.length)}.`);
      await get("overlay", { runs: run.id, scalar: "loss", points: 1 }, signal);
    }
  }

  /** What the axis needs to know of the runs. The mean of a group is one over steps. @param {AbortSignal} signal */
  async #learnPaces(signal) {
    if (!this.#asked().band) await this.clock.learn(this.#runs, signal);
    else this.clock.stay(BAND_WORDS);
  }

  /** @param {OverlayLine} line @returns {Line} */
  #lineOf(line) {
    const numbers = (/** @type {"mean" | "min" | "max"} */ part) => line[part].map(numberOf);
    const isBand = line.run === null;
    const merged = isBand || line.first_step.some((first, place) => first !== line.last_step[place]);
    const { group } = this.page.state.values;
    const words = isBand
      ? `${group} ${line.name || "unknown"} (${counted(Math.max(...line.runs), "run")})`
      : shorten(line.name, 40);
    return {
      name: words,
      first: line.first_step,
      last: line.last_step,
      mean: numbers("mean"),
      min: merged ? numbers("min") : undefined,
      max: merged ? numbers("max") : undefined,
      nonfinite: line.nonfinite,
      color: (line.run === null ? this.colorOfGroup(line.group) : this.colorOf(line.run)) || HUES[8],
    };
  }

  /** Fills the choices of what can be shown. */
  #offer() {
    const { values } = this.page.state;
    const scalars = resultsOf(this.#runs).filter((name) => name !== "recent_loss");
    const metric = values.metric || "loss";
    const options = [
      ["loss", "loss"],
      [GRADIENT_NORM, GRADIENT_NORM],
      ...scalars.filter((name) => name !== "loss").map((name) => [name, shorten(name, 32)]),
      ["hookcore/elapsed_s", "seconds per step"],
      ["hookcore/system/rate/samples", "samples per second"],
      [LAYER, "a layer's statistic\u2026"],
    ];
    offer(byId("metric"), options, metric);
    for (const id of ["metric-tap", "metric-stat"]) byId(id).hidden = metric !== LAYER;
    byId("band-choice").hidden = !values.group;
    if (metric === LAYER) void this.#offerTaps();
    const results = resultsOf(this.#runs);
    offer(
      byId("result"),
      results.map((name) => [name, shorten(titled(name), 32)]),
      this.result,
    );
    const settings = telling(this.#settings ?? []);
    offer(
      byId("setting"),
      settings.map(({ name }) => [name, shorten(name, 32)]),
      this.#settingIn(settings)?.name ?? "",
    );
  }

  /** The result that settings are shown against. */
  get result() {
    const { result } = this.page.state.values;
    return result || (resultsOf(this.#runs)[0] ?? "");
  }

  /** @param {Setting[]} settings */
  #settingIn(settings) {
    const { setting } = this.page.state.values;
    return settings.find(({ name }) => name === setting) ?? settings[0];
  }

  /** Lists the taps of the first run, for who types a layer. If that fails, the next values ask again. */
  async #offerTaps() {
    const [run] = this.#runs;
    if (!run || this.#tapsOf === run.id) return;
    this.#tapsOf = run.id;
    const answer = await get("taps", { run: run.id, limit: 2000 }).catch(() => null);
    if (answer === null) this.#tapsOf = "";
    else byId("metric-taps").replaceChildren(...answer.taps.map(({ label }) => h("option", { value: label })));
  }

  /** What the server's table of what differs is about. @returns {Record<string, string>} */
  get asked() {
    return { shown: this.#wanted.map(({ run }) => run).join(), result: this.result };
  }

  #askDifferences() {
    const before = this.#askedAs;
    this.#askedAs = JSON.stringify(this.asked);
    if (this.#askedAs !== before) this.hear.chosen();
    this.#colorHeadings();
  }

  /** Reads what differs from the server's table. */
  #readDifferences() {
    this.#settings = JSON.parse(this.differences.querySelector("script")?.textContent ?? "[]");
    this.#colorHeadings();
    this.#offer();
    this.#drawSettings();
  }

  #colorHeadings() {
    for (const sign of /** @type {NodeListOf<HTMLElement>} */ (this.differences.querySelectorAll(".swatch")))
      sign.style.background = this.colorOf(sign.dataset.run ?? "");
  }

  #drawSettings() {
    if (this.#settings === null) return;
    const settings = telling(this.#settings);
    const { result } = this;
    const shown = {
      runs: this.#runs,
      settings,
      result,
      colorOf: (/** @type {Run} */ run) => this.colorOf(run.id) || HUES[8],
    };
    const isOne = this.#runs.length < 2;
    for (const each of document.querySelectorAll("#parallel, #scatter, #open-group")) // they compare runs
      each.toggleAttribute("hidden", isOne);
    if (isOne) return;
    const why = settings.length
      ? ""
      : "The runs have the same configuration. Give each its own: hookcore.watch(model, config={...}).";
    const setting = this.#settingIn(settings);
    void this.pictures.then((pictures) => pictures?.show(shown, setting, why));
  }
}

/** @param {Overlay} answer @param {boolean} isLogged @param {boolean} isPart of the steps */
function emptyWords({ what, without }, isLogged, isPart) {
  const where = isPart ? " in these steps" : "";
  return without.length === 1
    ? `This run ${isLogged ? "logged" : "captured"} no ${what}${where}.`
    : `None of the ${count(without.length)} runs has ${what}${where}.`;
}

/** Fills a select, unless it is the same already. @param {HTMLSelectElement} select @param {string[][]} options value
 * and words @param {string} chosen */
function offer(select, options, chosen) {
  const offered = options.some(([value]) => value === chosen) || !chosen ? options : [...options, [chosen, chosen]];
  const text = JSON.stringify(offered);
  if (select.dataset.offered !== text) {
    select.dataset.offered = text;
    select.replaceChildren(
      ...offered.map(([value, words]) => h("option", { value, title: titled(value) }, titled(words))),
    );
  }
  select.value = chosen;
}
