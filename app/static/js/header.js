// @ts-check
/** The live frame around every page: status, follow, link, theme, keys, banner. Its words are in status.js. */

import { copyText } from "./copy.js";
import { byId } from "./dom.js";
import { showKeys } from "./keylist.js";
import { startBadge } from "./live/badge.js";
import { addNavigation, addStepping } from "./navigation.js";
import { Status } from "./statusline.js";
import { setTheme, THEMES, theme } from "./theme.js";
import { toast } from "./toast.js";

/** @param {import("./page.js").Page} page */
export function startFrame(page) {
  startTheme(page);
  addNavigation(page);
  const keys = byId("keys");
  keys.hidden = false;
  keys.addEventListener("click", () => showKeys(page.keys));
  page.keys.add("?", "this list", () => showKeys(page.keys), { group: "Everywhere" });
  if (page.run !== null) {
    addStepping(page);
    startLink(page);
    startFollow(page);
    startBadge(page);
  }
  new Status(page).start();
}

/** @param {import("./page.js").Page} page */
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
  button.hidden = false;
  button.addEventListener("click", next);
  page.keys.add("t", "theme: system, light, dark", next, { group: "Everywhere" });
}

/**
 * The address of this view, held at its step. For a live run it includes the steps shown right now.
 * @param {import("./page.js").Page} page
 */
function linkOf(page) {
  const url = new URL(location.href);
  const { step, span } = page.follow;
  if (step !== null) url.searchParams.set("step", String(step));
  if (span && page.runState === "live") url.searchParams.set("steps", `${span[0]}-${span[1]}`);
  return url.href;
}

/** @param {import("./page.js").Page} page */
function startLink(page) {
  const button = byId("link");
  const copy = async () => {
    const link = linkOf(page);
    const held = page.follow.step === null ? "" : `, held at step ${page.follow.step.toLocaleString("en")}`;
    if (await copyText(link)) toast(`Link copied${held}`);
    else toast(`Your browser blocked copying. The link is ${link}`, { kind: "error" });
  };
  button.hidden = false;
  button.addEventListener("click", copy);
  page.keys.add("c", "copy a link to this view", copy, { group: "Everywhere" });
}

/** @param {import("./page.js").Page} page */
function startFollow(page) {
  const { follow } = page;
  if (follow.fixed) return;
  const button = byId("follow");
  const turn = () => {
    if (follow.paused) follow.live();
    else follow.hold();
  };
  const show = () => {
    button.hidden = follow.newest === null || (page.runState !== "live" && !follow.paused);
    button.dataset.does = follow.paused ? "live" : "pause";
    byId("follow-words").textContent = follow.paused
      ? page.runState === "live"
        ? "Jump to live"
        : "To the end"
      : "Pause";
  };
  button.addEventListener("click", turn);
  page.keys.add("Space", "pause, or follow the newest step", turn, { group: "Steps" });
  follow.on("change", show);
  follow.on("newest", show);
  page.events.on("run", show);
  show();
}
