// @ts-check
/** The page of all runs. The server renders it, at first and whenever something is new; this script requests and applies it. */
import { byId, reveal } from "../dom.js";
import { morph } from "../overview/morph.js";
import { open } from "../page.js";
import { edit, remove, restore } from "../runs/actions.js";
import { toast } from "../toast.js";

const MIN_MS = 1000;
const MAX_MS = 10_000;
const SHARE = 10; // at most a tenth of the time is spent on requests

const page = open({ sort: "started" });
const list = document.getElementById("runs");
/** The selected runs, the last one last. They stay selected while the filter hides their rows.
 * @type {{run: string, started: number}[]} */
let ticked = [];
/** Deleted runs that can still be restored. @type {Set<string>} */
const gone = new Set();
let looking = false;
let asked = false;
let urgent = false;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;
let notBefore = 0;
let told = "";

reveal(document);
page.stream.subscribe({ view: "runs", hz: 2 }, { json: hear });
if (list) start(list);
document.addEventListener("click", (event) => {
  const run = /** @type {HTMLElement} */ (event.target).closest("[data-restore]")?.getAttribute("data-restore");
  if (run) restore(run, gone, () => (list ? refresh(true) : location.reload()));
});

/** @param {import("../answers.js").Message} said */
function hear(said) {
  if (said.type !== "runs") return;
  if (!list && said.runs.length) return location.reload();
  const now = JSON.stringify(said.runs);
  if (list && now !== told) refresh();
  told = now;
}

/** @param {HTMLElement} body */
function start(body) {
  const compare = /** @type {HTMLButtonElement} */ (byId("compare"));
  compare.hidden = false;
  compare.addEventListener("click", () => {
    const [a, b] = ticked.toSorted((one, other) => one.started - other.started).map(({ run }) => run);
    location.assign(new URL(`compare?${new URLSearchParams({ a, b })}`, document.baseURI));
  });
  body.addEventListener("change", (event) => tick(/** @type {HTMLInputElement} */ (event.target)));
  body.addEventListener("click", (event) => {
    const button = /** @type {HTMLElement} */ (event.target).closest("[data-do]");
    const row = /** @type {HTMLElement | null} */ (button?.closest("tr") ?? null);
    if (row && button?.getAttribute("data-do") === "edit") edit(row, () => refresh(true));
    if (row && button?.getAttribute("data-do") === "delete") remove(row, gone, show, () => refresh(true));
  });
  document.querySelector("table.runs thead")?.addEventListener("click", (event) => {
    const link = /** @type {HTMLElement | null} */ (/** @type {HTMLElement} */ (event.target).closest("[data-sort]"));
    if (!link) return;
    event.preventDefault();
    page.state.set({ sort: link.dataset.sort ?? "" }, { push: true });
  });
  page.state.on("change", () => refresh(true));
}

/** Requests the current page, no more often than the server can render it. @param {boolean} [atOnce] a reader waits for it */
function refresh(atOnce = false) {
  asked = true;
  urgent ||= atOnce;
  if (looking) return;
  clearTimeout(timer);
  timer = setTimeout(look, urgent ? 0 : Math.max(0, notBefore - performance.now()));
}

async function look() {
  looking = true;
  asked = urgent = false;
  const began = performance.now();
  try {
    const answer = await fetch(`${document.baseURI}${location.search}`, { headers: { Accept: "text/html" } });
    if (answer.ok) take(new DOMParser().parseFromString(await answer.text(), "text/html"));
  } catch {
    // The server is away: the banner says so, and the stream resumes when it is back.
  }
  notBefore = performance.now() + Math.min(MAX_MS, Math.max(MIN_MS, SHARE * (performance.now() - began)));
  looking = false;
  if (asked) refresh();
}

/** @param {Document} newer */
function take(newer) {
  const rows = newer.getElementById("runs");
  if (!list || !rows) return location.reload();
  reveal(newer);
  morph(list, rows);
  const [heads, newHeads] = [document, newer].map((each) => [...each.querySelectorAll("table.runs thead th")]);
  heads.forEach((head, place) => {
    head.setAttribute("aria-sort", newHeads[place].getAttribute("aria-sort") ?? "none");
    const [link, newLink] = [head, newHeads[place]].map((each) => each.querySelector("a"));
    if (link && newLink) [link.href, link.dataset.sort] = [newLink.href, newLink.dataset.sort];
  });
  byId("total").textContent = newer.getElementById("total")?.textContent ?? "";
  takeGone(newer);
  show();
}

/** Shows the removed runs, and announces those that were removed while the page is open. @param {Document} newer */
function takeGone(newer) {
  const [before, now] = [document, newer].map(
    (each) => /** @type {HTMLElement | null} */ (each.getElementById("gone")),
  );
  if (!before || !now) return;
  const known = new Set([...before.querySelectorAll("li")].map((each) => each.dataset.goneRun));
  for (const each of now.querySelectorAll("li")) {
    if (known.has(each.dataset.goneRun) || each.dataset.why === "deleted") continue;
    const run = each.dataset.goneRun ?? "";
    const undo = each.querySelector("[data-restore]") ? () => restore(run, gone, () => refresh(true)) : undefined;
    toast(`Removed ${each.dataset.name} to make room.`, { undo });
  }
  before.replaceWith(now);
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
