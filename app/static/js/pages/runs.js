/** The Runs page. The server renders its parts, also when something has changed. */
import { byId, onClick } from "../dom.js";
import { newsInPage } from "../live/news.js";
import { listenToLinks, Parts } from "../live/parts.js";
import { open } from "../page.js";
import { drawFigures } from "../plot/figures.js";
import { toast } from "../popup.js";
import { RunCharts } from "../runs/charts.js";
import {
  archive,
  edit,
  rememberColumns,
  remove,
  restore,
  Selection,
  startViews,
  stretch,
  tag,
  tagsOf,
} from "../runs/list.js";

/** @import { Message } from "../answers.js" */

const MAX_MS = 10_000;

const LISTS = ["f", "sort", "columns", "group"]; // what of the address the server's list depends on
const page = open({
  sort: "started",
  columns: "",
  runs: "",
  group: "",
  metric: "loss",
  tap: "",
  stat: "rms",
  band: "",
  result: "",
  better: "",
  setting: "",
  row: "0",
  smooth: "0",
  y: "",
  steps: "live:999999999",
});
rememberColumns(page);
const list = /** @type {HTMLElement | null} */ (document.querySelector("[data-part=list]"));
const parts = new Parts(page, page.name === "group" ? "group" : "", { max: MAX_MS, query });
const refresh = () => void parts.now();
const selection = new Selection(page.state, () => list && show());
/** The selected runs; a deleted one is selected again when it is restored. */
const selected = () => selection.runs.filter(({ run }) => !gone.has(run));
/** The run that was ticked last, and whether Shift selects all from it on. */
const hand = { last: "", stretches: false };
/** Deleted runs that can still be restored. @type {Set<string>} */
const gone = new Set();
/** The removed runs that are listed. */
let removed = listedAsGone();
let heard = JSON.stringify(newsInPage());
/** @type {RunCharts | null} */
let charts = null;

page.stream.subscribe({ view: "runs", hz: 2 }, { json: hear });
if (list) start(list);
byId("gone").addEventListener("renewed", announceGone);
onClick("[data-restore]", ({ dataset }) => restore(dataset.restore, gone, refresh));

function query() {
  return new URLSearchParams([
    ...new URLSearchParams(location.search),
    ...Object.entries(charts?.asked ?? {}),
  ]).toString();
}

/** @param {Message} message */
function hear(message) {
  if (message.type !== "runs") return;
  // Without runs, the page shows how to begin instead of the list.
  if ((list === null) === message.runs.length > 0) return location.reload();
  const now = JSON.stringify(message.runs);
  // Removed runs are no longer selected, even if another browser removed them.
  if (selection.keep(new Set(message.runs.map(({ run }) => run))) && list) show();
  if (now !== heard) {
    parts.soon();
    charts?.refresh.soon();
  }
  heard = now;
}

/** @param {Element} body */
function start(body) {
  charts = new RunCharts(page, pick, {
    known: (runs) => selection.know(runs),
    chosen: () => void parts.now(["sweep", "picture", "differences"]),
  });
  startViews(refresh);
  listenToLinks(page);
  const picture = document.getElementById("picture");
  picture?.addEventListener("renewed", () => void drawFigures(picture));
  if (picture) void drawFigures(picture);
  page.state.on("better", () => void parts.now(["sweep"]));
  document.addEventListener("change", ({ target }) => {
    const select = /** @type {HTMLSelectElement} */ (target);
    if (select.closest("#sweep")) page.state.set({ [select.name]: select.value });
  });
  page.state.on("row", () => void parts.now(["differences"]));
  const compare = /** @type {HTMLButtonElement} */ (byId("compare"));
  compare.hidden = false;
  compare.addEventListener("click", () => {
    const [a, b] = selected()
      .toSorted((one, other) => one.started - other.started)
      .map(({ run }) => run);
    const by = page.state.get("by");
    const query = new URLSearchParams({ a, b, ...(by === page.state.defaults.by ? {} : { by }) });
    location.assign(new URL(`compare?${query}`, document.baseURI));
  });
  byId("bulk-clear").addEventListener("click", () => select(idsOf(selection.runs), false));
  document.getElementById("bulk-archive")?.addEventListener("click", () => {
    const chosen = selected();
    archive(chosen, !chosen.every((run) => run.archived), refresh);
    select(idsOf(selection.runs), false);
  });
  document.getElementById("bulk-delete")?.addEventListener("click", () => {
    const finished = selected().filter((run) => !run.live);
    remove(finished, gone, show, refresh);
  });
  startTags();
  for (const name of ["pointerdown", "keydown"])
    body.addEventListener(name, (event) => {
      hand.stretches = /** @type {MouseEvent | KeyboardEvent} */ (event).shiftKey;
    });
  body.addEventListener("change", (event) => tick(/** @type {HTMLInputElement} */ (event.target)));
  body.addEventListener("click", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    const button = target.closest("[data-do]");
    const row = /** @type {HTMLElement | null} */ (button?.closest("tr") ?? null);
    const menu = target.closest(".row-menu");
    for (const other of /** @type {NodeListOf<HTMLDetailsElement>} */ (body.querySelectorAll(".row-menu[open]")))
      if (other !== menu || button) other.open = false;
    if (row && button?.getAttribute("data-do") === "edit") edit(row, refresh);
    if (row && button?.getAttribute("data-do") === "archive") {
      const { run = "", name = "" } = row.dataset;
      archive([{ run, name }], !("archived" in row.dataset), refresh);
    }
    if (row && button?.getAttribute("data-do") === "delete") {
      const next = row.nextElementSibling ?? row.previousElementSibling;
      remove([{ run: row.dataset.run ?? "", name: row.dataset.name ?? "" }], gone, show, refresh);
      /** @type {HTMLElement | null | undefined} */ (next?.querySelector("a"))?.focus();
    }
    const link = /** @type {HTMLElement | null} */ (target.closest("[data-sort]"));
    if (!link) return;
    event.preventDefault();
    page.state.set({ sort: link.dataset.sort ?? "" }, { push: true });
  });
  body.addEventListener("renewed", show);
  page.state.on("change", (/** @type {string[]} */ names) => names.some((name) => LISTS.includes(name)) && refresh());
  document.addEventListener("change", (event) => {
    const select = /** @type {HTMLSelectElement} */ (event.target);
    if (select.id === "grouping") page.state.set({ group: select.value }, { push: true });
  });
  show();
}

function listedAsGone() {
  const lines = /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-gone-run]"));
  return new Map([...lines].map((line) => [line.dataset.goneRun ?? "", line]));
}

/** Announces the runs that were removed while the page is open. */
function announceGone() {
  const now = listedAsGone();
  for (const [run, { dataset }] of now) {
    if (removed.has(run) || dataset.why === "deleted") continue;
    const undo = now.get(run)?.querySelector("[data-restore]") ? () => restore(run, gone, refresh) : undefined;
    toast(`Removed ${dataset.name} to make room.`, { undo });
  }
  removed = now;
}

/** The form that gives tags to all selected runs. */
function startTags() {
  const [button, form] = [document.getElementById("bulk-tag"), document.getElementById("bulk-tags")];
  if (!button || !(form instanceof HTMLFormElement)) return;
  const field = /** @type {HTMLInputElement} */ (form.elements.namedItem("tags"));
  const turn = (/** @type {boolean} */ isOpen) => {
    form.hidden = !isOpen;
    button.setAttribute("aria-expanded", String(isOpen));
    (isOpen ? field : button).focus();
  };
  button.addEventListener("click", () => turn(Boolean(form.hidden)));
  form.addEventListener("keydown", ({ key }) => key === "Escape" && turn(false));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const tags = tagsOf(field.value);
    if (!tags.length) return;
    void tag(selected(), tags, refresh);
    field.value = "";
    turn(false);
  });
}

/** @param {{run: string}[]} runs */
function idsOf(runs) {
  return runs.map(({ run }) => run);
}

/** The runs in the list, as it is sorted. */
function listed() {
  const rows = /** @type {NodeListOf<HTMLElement> | undefined} */ (list?.querySelectorAll("tr[data-run]"));
  return [...(rows ?? [])].map((row) => row.dataset.run ?? "").filter((run) => !gone.has(run));
}

/** @param {string[]} runs @param {boolean} on */
function select(runs, on) {
  selection.set(runs, on);
  show();
}

/** @param {HTMLInputElement} box */
function tick(box) {
  if (box.dataset.do === "tick-all") return select(listed(), box.checked);
  const { run } = box.closest("tr")?.dataset ?? {};
  if (!run || box.dataset.do !== "tick") return;
  select(hand.stretches ? stretch(listed(), hand.last, run) : [run], box.checked);
  hand.last = run;
}

/** Selects a run that was picked in a chart, or no longer. @param {string} run */
function pick(run) {
  const row = document.getElementById(`run-${run}`);
  const box = /** @type {HTMLInputElement | null} */ (row?.querySelector("[data-do=tick]") ?? null);
  if (!box) return;
  box.checked = !box.checked;
  hand.stretches = false;
  tick(box);
}

/** Shows which runs are selected, and which are about to be deleted. */
function show() {
  const rows = /** @type {NodeListOf<HTMLElement>} */ (list?.querySelectorAll("tr[data-run]"));
  for (const row of rows) {
    const run = row.dataset.run ?? "";
    row.toggleAttribute("data-gone", gone.has(run));
    const its = gone.has(run) ? undefined : selection.find(run);
    const box = /** @type {HTMLInputElement | null} */ (row.querySelector("[data-do=tick]"));
    if (box) box.checked = its !== undefined;
    const { how, group = "", name = run, started } = row.dataset;
    const archived = "archived" in row.dataset;
    if (its) Object.assign(its, { live: how === "live", archived, group, name, started: Number(started) });
  }
  showCharts([...rows].filter((row) => !gone.has(row.dataset.run ?? "")));
  const many = selected().length;
  const both = /** @type {HTMLButtonElement} */ (byId("compare"));
  both.disabled = many !== 2;
  both.textContent = many === 1 ? "Compare 1 of 2" : many === 2 ? "Compare both" : "Compare";
  const all = /** @type {HTMLInputElement | null | undefined} */ (list?.querySelector("[data-do=tick-all]"));
  const here = listed();
  const some = here.filter((run) => selection.find(run)).length;
  if (all) [all.checked, all.indeterminate] = [some > 0 && some === here.length, some > 0 && some < here.length];
  showBulk();
}

/** Shows the runs of these rows, or the selected ones, in the charts, and their colors in the rows.
 * @param {HTMLElement[]} rows */
function showCharts(rows) {
  if (!charts || !list) return;
  const listed = rows.map(({ dataset: { run = "", name = "", group = "" } }) => ({ run, name, group }));
  // Which query the listed runs answer: not the one in the box, which may be unfinished.
  const { query = "" } = /** @type {HTMLElement | null} */ (list.querySelector("table"))?.dataset ?? {};
  charts.choose(listed, selected(), query);
  document.getElementById("open-group")?.setAttribute("href", `group${location.search}`);
  for (const sign of /** @type {NodeListOf<HTMLElement>} */ (list.querySelectorAll(".swatch"))) {
    const run = sign.closest("tr")?.dataset.run;
    sign.style.background = run ? charts.colorOf(run) : charts.colorOfGroup(sign.dataset.group ?? "");
  }
}

/** Shows what can be done with all selected runs. */
function showBulk() {
  const bulk = document.getElementById("bulk");
  if (!bulk) return;
  const runs = selected();
  bulk.hidden = runs.length === 0;
  const deleting = /** @type {HTMLButtonElement | null} */ (document.getElementById("bulk-delete"));
  if (!deleting) return; // who may only look
  const finished = runs.filter((run) => !run.live).length;
  const word = runs.every((run) => run.archived) ? "Unarchive" : "Archive";
  byId("bulk-archive").textContent = `${word} ${runs.length}`;
  byId("bulk-tag").textContent = `Tag ${runs.length}`;
  deleting.textContent = `Delete ${finished}`;
  deleting.disabled = finished === 0;
  deleting.title = finished < runs.length ? "Live runs stay: stop their training before you delete them." : "";
}
