// @ts-check
/** The Runs page. The server renders its parts, also when something has changed. */
import { byId } from "../dom.js";
import { Parts } from "../live/parts.js";
import { open } from "../page.js";
import { edit, remove, restore } from "../runs/actions.js";
import { toast } from "../toast.js";

const MAX_MS = 10_000;

const page = open({ sort: "started" });
const list = /** @type {HTMLElement | null} */ (document.querySelector("[data-part=list]"));
const parts = new Parts(page, "", { max: MAX_MS });
const refresh = () => void parts.now();
/** The selected runs and when they started, the last one last. They stay selected if a filter hides them.
 * @type {{run: string, started: number}[]} */
let ticked = [];
/** Deleted runs that can still be restored. @type {Set<string>} */
const gone = new Set();
/** The removed runs that are listed. */
let removed = listedAsGone();
let known = "";

page.stream.subscribe({ view: "runs", hz: 2 }, { json: hear });
if (list) start(list);
byId("gone").addEventListener("renewed", announceGone);
document.addEventListener("click", (event) => {
  const run = /** @type {HTMLElement} */ (event.target).closest("[data-restore]")?.getAttribute("data-restore");
  if (run) restore(run, gone, refresh);
});

/** @param {import("../answers.js").Message} said */
function hear(said) {
  if (said.type !== "runs") return;
  // Without runs, the page shows how to begin instead of the list.
  if ((list === null) === said.runs.length > 0) return location.reload();
  const now = JSON.stringify(said.runs);
  if (now !== known) parts.soon();
  known = now;
}

/** @param {Element} body */
function start(body) {
  const compare = /** @type {HTMLButtonElement} */ (byId("compare"));
  compare.hidden = false;
  compare.addEventListener("click", () => {
    const [a, b] = ticked.toSorted((one, other) => one.started - other.started).map(({ run }) => run);
    location.assign(new URL(`compare?${new URLSearchParams({ a, b })}`, document.baseURI));
  });
  body.addEventListener("change", (event) => tick(/** @type {HTMLInputElement} */ (event.target)));
  body.addEventListener("click", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    const button = target.closest("[data-do]");
    const row = /** @type {HTMLElement | null} */ (button?.closest("tr") ?? null);
    if (row && button?.getAttribute("data-do") === "edit") edit(row, refresh);
    if (row && button?.getAttribute("data-do") === "delete") remove(row, gone, show, refresh);
    const link = /** @type {HTMLElement | null} */ (target.closest("[data-sort]"));
    if (!link) return;
    event.preventDefault();
    page.state.set({ sort: link.dataset.sort ?? "" }, { push: true });
  });
  body.addEventListener("renewed", show);
  page.state.on("change", refresh);
}

function listedAsGone() {
  const lines = /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-gone-run]"));
  return new Map([...lines].map((each) => [each.dataset.goneRun ?? "", each]));
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

/** @param {HTMLInputElement} box */
function tick(box) {
  const { run, started } = box.closest("tr")?.dataset ?? {};
  if (!run) return;
  ticked = ticked.filter((each) => each.run !== run);
  if (box.checked) ticked = [...ticked.slice(-1), { run, started: Number(started) }];
  show();
}

/** Shows which runs are selected, and which are about to be deleted. */
function show() {
  const rows = /** @type {NodeListOf<HTMLElement>} */ (list?.querySelectorAll("tr[data-run]"));
  for (const row of rows) {
    const run = row.dataset.run ?? "";
    row.toggleAttribute("data-gone", gone.has(run));
    const box = /** @type {HTMLInputElement | null} */ (row.querySelector("[data-do=tick]"));
    if (box) box.checked = ticked.some((each) => each.run === run);
  }
  const both = /** @type {HTMLButtonElement} */ (byId("compare"));
  both.disabled = ticked.length !== 2;
  both.textContent = ticked.length ? `Compare ${ticked.length} of 2` : "Compare";
  if (ticked.length === 2) both.textContent = "Compare both";
}
