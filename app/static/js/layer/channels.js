/** The channels of a module: what probes with several numbers computed, or how to get that. */
import { get, numberOf, send } from "../api.js";
import { bitsOf } from "../canvas/columns.js";
import { byId, coded, copyText, h, tell } from "../dom.js";
import { count, counted, stepWords } from "../format.js";
import { Heat } from "../heat/heat.js";
import { rowOf } from "../heat/rows.js";
import { MAX_CHANNEL_ROWS } from "../limits.js";
import { applied } from "../live/news.js";
import { failedWords, Refresh } from "../live/refresh.js";
import { toast } from "../popup.js";
import { percentiles } from "../scale.js";
import { shortOf } from "./plan.js";

/** @import { Channels, Tap } from "../answers.js"
 * @import { Page } from "../page.js"
 * @import { Kind } from "../scale.js" */

/** How many channels a row stands for. @param {Channels} said */
function groupOf({ channel, channels }) {
  return channel.length > 1 ? channel[1] - channel[0] : Math.max(1, channels);
}

/** Channels as the rows of a heatmap: `channel 17`, or `channels 16 to 23`. @param {Channels} answer */
export function rowsOf(answer) {
  return answer.channel.map((first) => {
    const last = Math.min(answer.channels, first + groupOf(answer)) - 1;
    return rowOf(first, first === last ? `channel ${count(first)}` : `channels ${count(first)} to ${count(last)}`);
  });
}

/** The column of a step, or else the newest one. @param {Channels} said @param {number | null} step */
export function columnOf({ first_step: first }, step) {
  const column = step === null ? -1 : first.findLastIndex((begin) => begin <= step);
  return column < 0 ? first.length - 1 : column;
}

/** The rows from top to bottom: by channel, or by the values of a column; then NaN is on top.
 * @param {Channels} said @param {string} sort "" by channel, "largest", "smallest" @param {number} column */
export function orderOf({ values }, sort, column) {
  const rows = [...values.keys()];
  if (!sort || column < 0) return rows;
  const sign = sort === "smallest" ? 1 : -1;
  const keys = values.map((row) => sign * numberOf(row[column])).map((key) => (Number.isNaN(key) ? -Infinity : key));
  return rows.sort((a, b) => (keys[a] === keys[b] ? 0 : keys[a] - keys[b]));
}

const WIDE = 20; // times: then the colors follow the logarithm

/** The scale of the colors. @param {Channels} said @param {string} chosen "" is automatic @returns {Kind} */
export function kindOf({ values }, chosen) {
  if (chosen) return /** @type {Kind} */ (chosen);
  const numbers = values.flat().map(numberOf);
  const [low, high] = percentiles(numbers, "log");
  return high / low > WIDE && !numbers.some((value) => value < 0) ? "log" : "linear";
}

/** What the rows are. @param {Channels} answer @param {string} sort @param {number} column that they are sorted by */
export function captionOf(answer, sort, column) {
  const [group, channels] = [groupOf(answer), counted(answer.channels, "channel")];
  const rows =
    group > 1
      ? `${channels} in ${counted(answer.channel.length, "row")}: ` +
        `each row shows the largest value of ${count(group)} neighboring channels, or NaN.`
      : `${channels}.`;
  if (!sort) return `${rows} Channel 0 is on top.`;
  const steps = stepWords(answer.first_step[column], answer.last_step[column]);
  return `${rows} Sorted by the values of ${steps}, ${sort} first.`;
}

const MIN_MS = 2000;
const [COLUMNS, ROWS] = [240, 256];
const FULL_COLUMNS = 500;
const [ROW_PX, AROUND_PX] = [7, 52]; // of a row; of the axis and the legend
const [MIN_PX, MAX_PX] = [160, 440];

export class ChannelView {
  /** @type {Tap[]} */
  #taps = [];
  /** The probe that the picture is of. */
  #drawn = "";

  /** @param {Page} page */
  constructor(page) {
    this.page = page;
    this.card = byId("channels");
    this.pattern = /** @type {string} */ (this.card.dataset.pattern);
    this.picker = /** @type {HTMLSelectElement} */ (byId("channel-probe"));
    this.words = byId("channel-words");
    this.caption = byId("channel-caption");
    this.guide = byId("channel-guide");
    this.heat = new Heat(page, this.card, {
      title: "Channels",
      noun: "channel",
      merged: "largest value",
      query: () => this.#query(FULL_COLUMNS, MAX_CHANNEL_ROWS),
    });
    const ready = () => page.follow.span !== null && page.schedule.isSeen(this.card);
    const failed = (/** @type {unknown} */ error) => {
      if (this.heat.plot.hidden || this.#drawn !== this.tap?.label) this.#say(failedWords(error));
    };
    this.refresh = new Refresh((signal) => this.#load(signal), { min: MIN_MS, ready, failed });
    page.schedule.watch(this.card, () => this.refresh.soon());
    page.follow.on("change", () => this.refresh.now());
    page.follow.on("newest", () => page.follow.paused || this.refresh.soon());
    this.picker.addEventListener("change", () => page.state.set({ channels: this.picker.value }));
    for (const name of ["channels", "order", "y"]) page.state.on(name, () => this.refresh.now());
    void new Refresh(startSwitch(page, this.pattern)).now();
    byId("copy-probe").addEventListener("click", () => void this.#copy());
  }

  /** Looks again which probes there are. */
  look() {
    this.refresh.now();
  }

  /** The probe that is looked at. @returns {Tap | undefined} */
  get tap() {
    const wanted = this.page.state.get("channels");
    return this.#taps.find((tap) => tap.label === wanted) ?? this.#taps[0];
  }

  /** @param {number} columns @param {number} rows @returns {any} */
  #query(columns, rows) {
    const { shown } = this.page.follow;
    return this.tap ? { path: "channels", query: { tap: this.tap.label, ...shown, columns, rows } } : [];
  }

  /** @param {AbortSignal} signal */
  async #load(signal) {
    const listed = await get("channels", { run: this.page.run, match: this.pattern }, signal);
    if ("taps" in listed) this.#list(listed.taps);
    if (!this.tap) return;
    const { path, query } = this.#query(COLUMNS, ROWS);
    const answer = await get(path, { run: this.page.run, ...query }, signal);
    if ("values" in /** @type {any} */ (answer)) this.#show(/** @type {any} */ (answer));
  }

  /** @param {Tap[]} taps */
  #list(taps) {
    this.#taps = taps;
    this.guide.hidden = byId("channel-none").hidden = taps.length > 0;
    this.card.classList.toggle("without", !taps.length);
    byId("channel-tools").hidden = !taps.length;
    const labels = taps.map((tap) => tap.label);
    if ([...this.picker.options].map((option) => option.value).join("\n") !== labels.join("\n"))
      this.picker.replaceChildren(...taps.map((tap) => h("option", { value: tap.label }, nameOf(tap))));
    this.picker.value = this.tap?.label ?? "";
  }

  /** @param {Channels} answer */
  #show(answer) {
    const { heat } = this;
    const { first_step: first, last_step: last, values } = answer;
    const [k, n] = [first.length, values.length];
    this.#drawn = this.tap?.label ?? "";
    this.#say(k ? "" : "No channels were captured in these steps.");
    if (!k) return;
    const [sort, chosen] = [this.page.state.get("order"), this.page.state.get("y")];
    const { paused, step } = this.page.follow;
    const column = columnOf(answer, paused ? step : null);
    this.caption.textContent = captionOf(answer, sort, column);
    const height = Math.min(MAX_PX, Math.max(MIN_PX, n * ROW_PX + AROUND_PX));
    heat.plot.style.setProperty("--heat-height", `${height}px`);
    heat.options.stat = groupOf(answer) > 1 ? "largest value" : "";
    heat.setScale(kindOf(answer, chosen));
    heat.setRows(rowsOf(answer), [COLUMNS + 1, 1], this.#drawn);
    heat.take({ kind: "snapshot", k, n, bits: bitsOf(values, () => null), first, last });
    heat.setOrder(orderOf(answer, sort, column));
  }

  /** Words in the place of the picture. @param {string} words "" shows the picture */
  #say(words) {
    tell(this.words, words);
    this.heat.plot.hidden = Boolean(words);
    if (words) this.caption.textContent = "";
  }

  async #copy() {
    const code = byId("channel-code").textContent ?? "";
    if (await copyText(code)) toast("Copied the lines");
    else toast(`Your browser blocked copying. The lines are: ${code}`, { kind: "error" });
  }
}

/** @param {Tap} tap */
function nameOf(tap) {
  return `${shortOf(tap)}${tap.call ? ` call ${tap.call}` : ""}`;
}

/** The button that turns the capture of a module's channels on and off while the training runs. @param {Page} page
 * @param {string} pattern that matches the module alone @returns {() => Promise<void>} looks at the setting */
function startSwitch(page, pattern) {
  const [place, button, outcome] = [byId("channel-switch"), byId("capture-channels"), byId("channel-told")];
  const run = /** @type {string} */ (page.run);
  const chosen = async () => {
    const { settings, state } = await get("settings", { run });
    place.hidden = state !== "live" || !page.mayChange || !("channels" in settings);
    return /** @type {string[]} */ (settings.channels ?? []);
  };
  const look = async () => {
    const on = (await chosen()).includes(pattern);
    button.textContent = on ? "Stop capturing channels" : "Capture channels of this layer";
  };
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      const before = await chosen();
      const channels = before.includes(pattern) ? before.filter((other) => other !== pattern) : [...before, pattern];
      const { number } = await send("PATCH", "settings", { channels }, { run });
      outcome.textContent = "Waiting for the next step \u2026";
      await applied(page, number, (why) => {
        outcome.textContent = why;
      });
      outcome.textContent = "Applied.";
      await look();
    } catch (error) {
      outcome.replaceChildren(...coded(/** @type {Error} */ (error).message));
    } finally {
      button.disabled = false;
    }
  });
  return look;
}
