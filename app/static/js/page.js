// @ts-check
/** What a page's script begins with: `const page = open({...defaults})`. Holds what all charts of the page share. */
import { Cursor } from "./cursor.js";
import { Told } from "./events.js";
import { Follow } from "./follow.js";
import { startFrame } from "./header.js";
import { Keys } from "./keys.js";
import { Stream } from "./net.js";
import { prefs } from "./prefs.js";
import { Schedule } from "./schedule.js";
import { State } from "./state.js";

/** Every page has these in its address; a page adds its own. */
export const SHARED = { f: "", steps: "live:500", step: "" };

/** @param {Record<string, string>} [defaults] */
export function open(defaults = {}) {
  const { run = null, runName = "", runPath = "", mayChange, newest = "", static: folder = "", page: name = "", runState = "" } = document.body.dataset;
  // A run that is over opens whole: its newest steps alone would hide where the loss fell.
  const whole = runState && runState !== "live" && newest !== "" ? { steps: `live:${Math.max(2, Number(newest) + 1)}` } : {};
  const state = new State({ ...SHARED, ...whole, ...defaults });
  if (run !== null) prefer(state);
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
    /** Tells "runs" (all runs, as the stream said), and "run" (this one: state, last_step, events, ...). */
    told: new Told(),
    /** The address of a page of this run, relative to the base. @param {string} place "" is the overview @param {Record<string, string | number>} [query] */
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

/** What the reader chose holds where the address says nothing, and then stands in it: a link shows the same to others.
 * @param {State} state */
function prefer(state) {
  const given = new URLSearchParams(location.search);
  const chosen = { steps: prefs.chosen("window") && `live:${prefs.chosen("window")}`, smooth: prefs.chosen("smooth") };
  for (const [name, value] of Object.entries(chosen)) if (value && name in state.defaults && !given.has(name)) state.set({ [name]: value });
}

/** @typedef {ReturnType<typeof open>} Page */
