/** The start of every page's script: `const page = open({...defaults})`. Holds what all charts of the page share. A
 * page whose first chart is to be seen as early as possible draws it between the two halves of it, `create` and
 * `start`. */
import { copyWholeNames } from "./dom.js";
import { Cursor, Follow } from "./follow.js";
import { moduleName } from "./format.js";
import { startFrame } from "./frame/frame.js";
import { Keys } from "./keys.js";
import { Stream } from "./live/stream.js";
import { prefs } from "./prefs.js";
import { Schedule } from "./schedule.js";
import { Emitter, State } from "./state.js";
import { Captured } from "./timeline/captured.js";
import { Clock, PACKED } from "./timeline/clock.js";
import { Notes } from "./timeline/notes.js";
import { LIVE_STEPS, PATHS } from "./vocabulary.js";

/** @typedef {import("./answers.js").RunNews} RunNews */

/** @typedef {ReturnType<typeof create>} Page */

/** Every page has these in its address; a page adds its own. */
const SHARED = { f: "", steps: `live:${LIVE_STEPS}`, step: "", by: PACKED, tour: "", drawer: "" };

/** @param {Record<string, string>} [defaults] */
export function open(defaults = {}) {
  const page = create(defaults);
  start(page);
  return page;
}

/** What the charts share, without the frame around them. @param {Record<string, string>} [defaults] */
export function create(defaults = {}) {
  const {
    run = null,
    runName = "",
    runPath = "",
    mayChange,
    first = "",
    newest = "",
    static: folder = "",
    page: name = "",
    runState = "",
    steps = SHARED.steps,
    step = SHARED.step,
  } = document.body.dataset;
  const state = new State({ ...SHARED, steps, step, ...defaults });
  if (run !== null) prefer(state, runState);
  state.on("by", (by) => prefs.set("by", by));
  const follow = new Follow(state, newest === "" ? null : Number(newest), Number(first));
  return {
    name,
    run,
    runName,
    runPath,
    runState,
    folder,
    mayChange: mayChange === "yes",
    state,
    follow,
    /** The captured steps, for keys and pointers. */
    captured: new Captured({ run, follow }),
    /** What stands on the axis of charts. */
    clock: new Clock({ run, state, follow }),
    /** What readers noted at steps. */
    notes: new Notes(),
    cursor: new Cursor(),
    schedule: new Schedule(),
    stream: new Stream(),
    keys: new Keys(),
    /** Emits "run" when the run has news, "news" if these are more than steps, "state" if the run's state changed, and
     * "acknowledged" when the reader acknowledged a finding or an event.
     * @type {Emitter<{run: RunNews, news: RunNews, state: RunNews, acknowledged: undefined}>} */
    events: new Emitter(),
    /** The address of a page of this run, or of a page without a run, relative to the base.
     * @param {string} place the name of a page of the run @param {Record<string, string | number>} [query] */
    address(place, query = {}) {
      const text = new URLSearchParams(Object.entries(query).map(([key, value]) => [key, String(value)])).toString();
      return `${[runPath, PATHS[place] ?? place].filter(Boolean).join("/")}${text ? `?${text}` : ""}`;
    },
    /** @param {string} text */
    announce(text) {
      const announcer = document.getElementById("announcer");
      if (announcer) announcer.textContent = text;
    },
  };
}

/** Starts the frame, and the controls of the page. @param {Page} page */
export function start(page) {
  startFrame(page);
  copyWholeNames(moduleName);
  page.state.bind();
}

/** The reader's preferences apply if the address says nothing else. They are written to it, so that a link shows the
 * same to others. @param {State} state @param {string} runState */
function prefer(state, runState) {
  const parameters = new URLSearchParams(location.search);
  const window = runState === "live" && !state.defaults.step ? prefs.chosen("window") : "";
  const chosen = { steps: window && `live:${window}`, smooth: prefs.chosen("smooth"), by: prefs.chosen("by") };
  for (const [name, value] of Object.entries(chosen))
    if (value && name in state.defaults && !parameters.has(name)) state.set({ [name]: value });
}
