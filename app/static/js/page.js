// @ts-check
/** The start of every page's script: `const page = open({...defaults})`. Holds what all charts of the page share. */
import { Cursor } from "./cursor.js";
import { Emitter } from "./events.js";
import { Follow } from "./follow.js";
import { startFrame } from "./header.js";
import { Keys } from "./keys.js";
import { Stream } from "./net.js";
import { prefs } from "./prefs.js";
import { Schedule } from "./schedule.js";
import { State } from "./state.js";

/** Every page has these in its address; a page adds its own. The steps of a finished run are all it has. */
const SHARED = { f: "", steps: "live:500", step: "" };

/** @param {Record<string, string>} [defaults] */
export function open(defaults = {}) {
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
  } = document.body.dataset;
  const steps = stepsOf(runState, first, newest);
  const state = new State({ ...SHARED, steps, ...defaults });
  if (run !== null) prefer(state, runState);
  const page = {
    name,
    run,
    runName,
    runPath,
    runState,
    folder,
    mayChange: mayChange === "yes",
    state,
    follow: new Follow(state, newest === "" ? null : Number(newest)),
    cursor: new Cursor(),
    schedule: new Schedule(),
    stream: new Stream(),
    keys: new Keys(),
    /**
     * Emits "run" when the run has news, "news" if these are more than steps, and "acknowledged" when the reader
     * acknowledged
     * a finding or an event.
     * @type {Emitter<{run: RunNews, news: RunNews, acknowledged: undefined}>} */
    events: new Emitter(),
    /**
     * The address of a page of this run, relative to the base.
     * @param {string} place "" is the overview
     * @param {Record<string, string | number>} [query]
     */
    address(place, query = {}) {
      const text = new URLSearchParams(Object.entries(query).map(([key, value]) => [key, String(value)])).toString();
      return `${runPath}${place ? `/${place}` : ""}${text ? `?${text}` : ""}`;
    },
    /** @param {string} text */
    announce(text) {
      const announcer = document.getElementById("announcer");
      if (announcer) announcer.textContent = text;
    },
  };
  startFrame(page);
  state.bind();
  return page;
}

/** The steps shown unless the address says otherwise: the newest ones of a live run, all of a finished one.
 * @param {string} runState @param {string} first @param {string} newest */
export function stepsOf(runState, first, newest) {
  return runState === "live" || newest === ""
    ? SHARED.steps
    : `live:${Math.max(2, Number(newest) - Number(first) + 1)}`;
}

/**
 * The reader's preferences apply if the address says nothing else. They are written to it, so that a link shows the
 * same to others.
 * @param {State} state @param {string} runState */
function prefer(state, runState) {
  const given = new URLSearchParams(location.search);
  const window = runState === "live" && !state.defaults.step ? prefs.chosen("window") : "";
  const chosen = { steps: window && `live:${window}`, smooth: prefs.chosen("smooth") };
  for (const [name, value] of Object.entries(chosen))
    if (value && name in state.defaults && !given.has(name)) state.set({ [name]: value });
}

/** @typedef {import("./answers.js").RunNews} RunNews */
/** @typedef {ReturnType<typeof open>} Page */
