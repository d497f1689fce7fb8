// @ts-check
/** The badge of the Events entry: the number of unacknowledged warnings and errors among findings and events. */
import { get } from "./api.js";
import { count } from "./format.js";

const MIN_MS = 4000;
const SHARE = 20; // at most a twentieth of the time is spent on requests
const MAX = 1000;

/** The severities of unacknowledged warnings and errors. @param {{acknowledged: boolean, severity: string}[]} listed */
export function unseen(listed) {
  return listed.filter((each) => each.severity !== "info" && !each.acknowledged).map((each) => each.severity);
}

/** @param {import("./page.js").Page} page */
export function startBadge(page) {
  const badge = document.getElementById("alerts");
  if (!badge) return;
  let told = "";
  let notBefore = 0;
  const look = async () => {
    const began = performance.now();
    notBefore = Infinity;
    try {
      const [{ findings }, { events }] = await Promise.all([
        get("findings", { run: page.run, limit: MAX }),
        get("events", { run: page.run, limit: MAX }),
      ]);
      show(badge, [...unseen(findings), ...unseen(events)]);
    } catch {
      // The banner says what is wrong with the server; the number stays.
    }
    notBefore = performance.now() + Math.max(MIN_MS, SHARE * (performance.now() - began));
  };
  page.events.on("run", ({ last_step: step, events, state, edits }) => {
    const now = `${step} ${events} ${state} ${edits}`;
    if (now === told || performance.now() < notBefore || document.hidden) return;
    told = now;
    look();
  });
  page.events.on("acknowledged", look);
}

/** @param {HTMLElement} badge @param {string[]} severities */
function show(badge, severities) {
  badge.hidden = !severities.length;
  badge.className = `badge ${severities.includes("error") ? "error" : "warning"}`;
  const words = badge.querySelector(".quiet-label");
  badge.replaceChildren(count(severities.length), ...(words ? [words] : []));
}
