// @ts-check
/** Waits until the trainer has carried out a command, or has refused it. */
import { get } from "../api.js";

const ASK_MS = 400;

/** @param {string} run @param {number} number the command's @param {number} from `next` of the events before it was sent
 * @param {(why: string) => void} wait told why it takes so long */
export async function obeyed(run, number, from, wait) {
  for (;;) {
    const now = await get("settings", { run });
    const waits = now.waiting.some((each) => each.number === number);
    const { events } = await get("events", { run, after: from, limit: 1000 });
    /** @param {string} name @returns {string | undefined} */
    const said = (name) => events.find((event) => event.name === name)?.message;
    const refused = said("settings-refused");
    if (refused) throw new Error(`The trainer refused: ${refused}`);
    if (!waits && said("settings-changed") !== undefined) return;
    if (now.state !== "live") throw new Error(`The run is ${now.state} now, so the change was not applied.`);
    if (said("settings-waiting")) wait(`Waiting: ${said("settings-waiting")}`);
    await new Promise((go) => setTimeout(go, ASK_MS));
  }
}
