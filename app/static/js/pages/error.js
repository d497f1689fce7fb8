import { get } from "../api.js";
import { waitMs } from "../live/stream.js";
import { open } from "../page.js";

const MAX_TRIES = 20; // in about two minutes

open();
const words = document.getElementById("awaited");
if (words) void appear(words);

/** Opens the page of a run as soon as the server has it. @param {HTMLElement} words say that the page waits */
async function appear(words) {
  words.hidden = false;
  for (let failed = 0; failed < MAX_TRIES; ) {
    await new Promise((resolve) => setTimeout(resolve, waitMs(failed, Math.random())));
    if (document.hidden) continue;
    try {
      await get(`runs/${words.dataset.run}`);
      return location.reload();
    } catch {
      failed += 1;
    }
  }
  words.textContent = "The run hasn\u2019t arrived after two minutes. Reload the page to check again.";
}
