// @ts-check
/** The timeline of a page; of one that was opened before the first step, as soon as there is one. */
import { ApiError, reach } from "../api.js";
import { Refresh } from "../live/refresh.js";
import { Timeline } from "./index.js";

const PAUSE_MS = 5000; // between requests for the whole page

/** @param {import("../page.js").Page} page */
export function startTimeline(page) {
  if (document.getElementById("timeline")) {
    new Timeline(page);
    return;
  }
  const refresh = new Refresh(
    async (signal) => {
      const answer = await reach(location.href, { headers: { Accept: "text/html" }, signal });
      if (!answer.ok) throw new ApiError(answer.status, "");
      const said = new DOMParser().parseFromString(await answer.text(), "text/html");
      const bar = said.getElementById("timeline");
      if (!bar || document.getElementById("timeline")) return;
      end();
      page.follow.first = Number(said.body.dataset.first);
      document.querySelector("header.top")?.after(document.adoptNode(bar));
      page.state.bind(bar);
      page.notes.read();
      new Timeline(page);
    },
    { min: PAUSE_MS },
  );
  const end = page.follow.on("newest", () => refresh.soon());
}
