// @ts-check
/** The button that turns the capture of a module's channels on and off while the training runs. */
import { get, send } from "../api.js";
import { byId } from "../dom.js";
import { applied, eventsNow } from "../hooks/applied.js";

/** @param {import("../page.js").Page} page @param {string} pattern that matches the module alone
 * @returns {() => Promise<void>} looks at the setting */
export function startSwitch(page, pattern) {
  const [place, button, told] = [byId("channel-switch"), byId("capture-channels"), byId("channel-told")];
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
      const channels = before.includes(pattern) ? before.filter((each) => each !== pattern) : [...before, pattern];
      const from = await eventsNow(run);
      const { number } = await send("PATCH", "settings", { channels }, { run });
      told.textContent = "Waiting for the next step \u2026";
      await applied(page, { number, names: ["channels"], from }, (why) => {
        told.textContent = why;
      });
      told.textContent = "Applied.";
      await look();
    } catch (error) {
      told.textContent = /** @type {Error} */ (error).message;
    } finally {
      button.disabled = false;
    }
  });
  return look;
}
