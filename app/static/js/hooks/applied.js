// @ts-check
/** Waits until the trainer applies or refuses a command. */
import { get } from "../api.js";

const ASK_MS = 400;

/** Throws if the trainer refused the command, or if the run ended before it.
 * @param {string} run @param {number} number of the command @param {number} from `next` of the events before it was
 * sent
 * @param {(why: string) => void} wait called with the reason for a longer wait */
export async function applied(run, number, from, wait) {
  for (;;) {
    const now = await get("settings", { run });
    const waits = now.waiting.some((each) => each.number === number);
    const { events } = await get("events", { run, after: from, limit: 1000 });
    /** @param {string} name @returns {string | undefined} */
    const messageOf = (name) => events.find((event) => event.name === name)?.message;
    const refused = messageOf("settings-refused");
    if (refused) throw new Error(`The trainer refused: ${refused}`);
    if (!waits && messageOf("settings-changed") !== undefined) return;
    if (now.state !== "live") throw new Error(`The run is ${now.state} now, so the change was not applied.`);
    const waiting = messageOf("settings-waiting");
    if (waiting) wait(`Waiting: ${waiting}`);
    await new Promise((go) => setTimeout(go, ASK_MS));
  }
}
