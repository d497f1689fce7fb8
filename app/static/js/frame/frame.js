/** The live frame around every page: follow, link, theme, keys, banner, and the ways from page to page. */
import { ApiError, reach } from "../api.js";
import { byId, copyText } from "../dom.js";
import { count, stepWords } from "../format.js";
import { Parts } from "../live/parts.js";
import { Refresh } from "../live/refresh.js";
import { loadOpened, toast } from "../popup.js";
import { setTheme, theme } from "../theme.js";
import { keepSteps, visit } from "../timeline/links.js";
import { Timeline } from "../timeline/timeline.js";
import { THEMES } from "../vocabulary.js";
import { Status } from "./status.js";

/** @import { Page } from "../page.js" */

const FAR = 10;

/** @param {Page} page */
function addNavigation(page) {
  for (const link of /** @type {NodeListOf<HTMLAnchorElement>} */ (document.querySelectorAll("nav.side a[data-key]"))) {
    page.keys.add(`g ${link.dataset.key}`, link.dataset.title ?? "", () => link.click(), { group: "Go to" });
  }
  // On a phone, the entries and the tabs are in scrolling rows. Browsers that lack scroll-initial-target need this.
  for (const row of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("nav.side, .tabs"))) {
    const current = /** @type {HTMLElement | null} */ (row.querySelector("[aria-current]"));
    if (current) row.scrollLeft = current.offsetLeft - row.offsetLeft - (row.clientWidth - current.offsetWidth) / 2;
  }
  keepSteps(page);
  startFind(page);
}

/** @param {Page} page */
function startFind(page) {
  const find = /** @type {HTMLInputElement | null} */ (
    document.getElementById("find") ?? document.querySelector("main input[type=search]")
  );
  const clear = () => {
    if (find && document.activeElement === find) {
      if (find.value) {
        find.value = "";
        find.dispatchEvent(new Event("input", { bubbles: true }));
      } else find.blur();
      return;
    }
    page.cursor.clear();
  };
  page.keys.add("Escape", "clear the selection or the find box", clear, { group: "Everywhere" });
  if (!find) return;
  page.keys.add(
    "/",
    "find",
    () => {
      find.focus();
      find.select();
    },
    { group: "Everywhere" },
  );
}

/** @param {Page} page */
function addStepping(page) {
  const { follow, keys } = page;
  /** Keys that are held down wait for each other. */
  let moving = Promise.resolve();
  /** @param {number} by */
  const move = (by) => {
    moving = moving.then(async () => {
      if (follow.step === null) return;
      follow.hold(await page.captured.further(follow.step, by));
      page.announce(`Step ${count(follow.step)}`);
    });
  };
  /** @param {number} factor */
  const zoom = (factor) => {
    const span = follow.span;
    if (!span || follow.newest === null) return;
    const length = Math.max(2, Math.round((span[1] - span[0] + 1) * factor));
    if (page.runState === "live" && !follow.paused)
      return page.state.set({ steps: length > follow.newest - follow.first ? "all" : `live:${length}` });
    const middle = follow.held ?? (span[0] + span[1]) / 2;
    const from = Math.max(0, Math.round(middle - length / 2));
    follow.zoom(from, Math.min(follow.newest, from + length - 1));
  };
  const group = { group: "Steps" };
  keys.add("ArrowLeft", "one captured step back", () => move(-1), group);
  keys.add("ArrowRight", "one captured step forward", () => move(1), group);
  keys.add("Shift+ArrowLeft", "ten captured steps back", () => move(-FAR), group);
  keys.add("Shift+ArrowRight", "ten captured steps forward", () => move(FAR), group);
  keys.add("[", "more steps (zoom out)", () => zoom(2), group);
  keys.add("]", "fewer steps (zoom in)", () => zoom(0.5), group);
}

/** Every page has a badge, so at most a twentieth of the time is spent on it. */
const BADGE = { min: 4000, max: 60_000, share: 20 };
const PAUSE_MS = 5000; // between requests for the whole page, until it has a timeline

/** @param {Page} page */
export function startFrame(page) {
  startTheme(page);
  addNavigation(page);
  startPalette(page);
  if (page.run !== null) {
    addStepping(page);
    startTour(page);
    startLink(page);
    startFollow(page);
    startBadge(page);
    startTimeline(page);
  }
  new Status(page).start();
}

const palette = () => loadOpened(() => import("../palette.js"));

/** @param {Page} page */
function startPalette(page) {
  const group = { group: "Everywhere" };
  const find = async () => (await palette())?.openPalette(page);
  const list = async () => (await palette())?.showKeys(page.keys);
  for (const [id, open] of Object.entries({ palette: find, keys: list })) {
    byId(id).addEventListener("click", open);
  }
  page.keys.add("Ctrl+k", "find an action, a page, a layer, or a run", find, group);
  page.keys.add("?", "keyboard shortcuts", list, group);
}

/** @param {Page} page */
function startTour(page) {
  page.keys.add("y", "take the tour of five steps", () => visit(page, "overview", { tour: 1 }), {
    group: "Everywhere",
  });
  const card = document.getElementById("tour");
  if (!card) return;
  document.getElementById(card.dataset.target ?? "")?.scrollIntoView({ block: "nearest" });
  /** @type {HTMLElement | null} */ (card.querySelector(".main"))?.focus({ preventScroll: true });
  const end = (/** @type {Event} */ event) => {
    event.preventDefault();
    event.stopPropagation();
    page.state.set({ tour: "" });
    card.remove();
    byId("main").focus({ preventScroll: true });
  };
  byId("tour-end").addEventListener("click", end);
  card.addEventListener("keydown", (event) => event.key === "Escape" && end(event));
}

/** @param {Page} page */
function startTheme(page) {
  const button = byId("theme");
  const show = () => {
    button.setAttribute("aria-label", `Theme: ${theme()}`);
    button.title = `Theme: ${theme()}`;
  };
  const next = () => {
    const place = THEMES.indexOf(theme());
    setTheme(THEMES[(place + 1) % THEMES.length]);
    show();
    page.announce(`Theme: ${theme()}`);
  };
  show();
  button.addEventListener("click", next);
  page.keys.add("t", "theme: system, light, dark", next, { group: "Everywhere" });
}

/** The address of this view, held at its step or range. For a live run it includes the steps shown right now.
 * @param {Page} page */
async function linkOf(page) {
  const { held, step, span, range } = page.follow;
  const url = new URL(location.href);
  const shown = held ?? (range || step === null ? null : await page.captured.upTo(step));
  if (shown !== null) url.searchParams.set("step", String(shown));
  if (span && page.runState === "live") url.searchParams.set("steps", `${span[0]}-${span[1]}`);
  const words = shown !== null ? `step ${count(shown)}` : range ? stepWords(...range) : "";
  return { link: url.href, held: words ? `, held at ${words}` : "" };
}

/** Who can open a link to this server. @param {string} host */
function opensFor(host) {
  return /^(localhost|127\..*|\[::1\])$/.test(host)
    ? "It opens only on this machine: send others the report."
    : "It opens for those who are logged in here: hookcore link makes a login link.";
}

/** @param {Page} page */
function reportOf(page) {
  return { words: "Save report", href: `api/v1/report?${new URLSearchParams({ run: page.run ?? "" })}` };
}

/** @param {Page} page */
function startLink(page) {
  const button = byId("link");
  const copy = async () => {
    const { link, held } = await linkOf(page);
    if (await copyText(link)) toast(`Link copied${held}. ${opensFor(location.hostname)}`, { link: reportOf(page) });
    else toast(`Your browser blocked copying. The link is ${link}`, { kind: "error" });
  };
  button.addEventListener("click", copy);
  page.keys.add("c", "copy a link to this view", copy, { group: "Everywhere" });
}

/** @param {Page} page */
function startFollow(page) {
  const { follow } = page;
  if (follow.fixed) return;
  const button = byId("follow");
  const turn = async () => {
    if (follow.paused) return follow.live();
    const { step } = follow;
    if (step === null) return;
    const shown = await page.captured.upTo(step); // a newer step may have only logged values
    if (!follow.paused) follow.hold(shown);
  };
  const show = () => {
    button.hidden = follow.newest === null || page.runState !== "live";
    button.dataset.does = follow.paused ? "live" : "pause";
    byId("follow-words").textContent = follow.paused ? "Jump to live" : "Pause";
  };
  button.addEventListener("click", turn);
  page.keys.add("Space", "pause, or follow the newest step", turn, { group: "Steps" });
  follow.on("change", show);
  follow.on("newest", show);
  page.events.on("run", show);
  show();
}

/** The badge of the Events entry: unacknowledged warnings and errors. @param {Page} page */
function startBadge(page) {
  const root = /** @type {HTMLElement} */ (document.querySelector("nav.side"));
  const badge = new Parts(page, "events", { root, query: () => "", ...BADGE });
  page.events.on("run", () => badge.soon());
  page.events.on("acknowledged", () => badge.now());
}

/** The timeline; if the page was opened before the first step, as soon as there is one. @param {Page} page */
function startTimeline(page) {
  if (document.getElementById("timeline")) {
    new Timeline(page);
    return;
  }
  const refresh = new Refresh(
    async (signal) => {
      const answer = await reach(location.href, { headers: { Accept: "text/html" }, signal });
      if (!answer.ok) throw new ApiError(answer.status, "");
      const newer = new DOMParser().parseFromString(await answer.text(), "text/html");
      const bar = newer.getElementById("timeline");
      if (!bar || document.getElementById("timeline")) return;
      end();
      page.follow.first = Number(newer.body.dataset.first);
      document.querySelector("header.top")?.after(document.adoptNode(bar));
      page.state.bind(bar);
      page.notes.read();
      new Timeline(page);
    },
    { min: PAUSE_MS },
  );
  const end = page.follow.on("newest", () => refresh.soon());
}
