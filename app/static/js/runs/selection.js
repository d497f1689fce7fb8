// @ts-check
/** The selected runs of the list, the last one last. They are in the address, as many as the charts show, so a link, a
 * saved view, and the way back have them. They stay selected if a filter hides them. */
import { MAX_OVERLAID_RUNS } from "../limits.js";

/** @typedef {{run: string, name: string, group: string, started: number, live: boolean, archived: boolean}} Ticked */

export class Selection {
  /** @type {Ticked[]} */
  runs = [];

  /** @param {import("../state.js").State} state @param {() => void} told called when the address has others */
  constructor(state, told) {
    this.state = state;
    this.#read();
    state.on("runs", (/** @type {string} */ text) => {
      if (text === this.#text) return;
      this.#read();
      told();
    });
  }

  #read() {
    const ids = new Set(this.state.get("runs").split(",").filter(Boolean));
    const known = new Map(this.runs.map((each) => [each.run, each]));
    this.runs = [...ids].map((run) => known.get(run) ?? blank(run));
  }

  get #text() {
    return this.runs
      .slice(0, MAX_OVERLAID_RUNS)
      .map(({ run }) => run)
      .join();
  }

  /** @param {string} run */
  find(run) {
    return this.runs.find((each) => each.run === run);
  }

  /** Selects runs, or no longer. @param {string[]} runs @param {boolean} on */
  set(runs, on) {
    const some = new Set(runs);
    const others = this.runs.filter((each) => !some.has(each.run));
    this.runs = on ? [...this.runs, ...runs.filter((run) => !this.find(run)).map(blank)] : others;
    this.state.set({ runs: this.#text });
  }

  /** Drops those that are not there, and says whether there were any. @param {Set<string>} there all runs */
  keep(there) {
    const gone = this.runs.filter(({ run }) => !there.has(run)).map(({ run }) => run);
    if (gone.length) this.set(gone, false);
    return gone.length > 0;
  }

  /** Takes what the server says about runs that no row of the list is of.
   * @param {readonly import("../answers.js").Run[]} found */
  know(found) {
    for (const { id, name, started_s: started, state, archived } of found) {
      const its = this.find(id);
      if (its) Object.assign(its, { name: name || id, started: Number(started), live: state === "live", archived });
    }
  }
}

/** @param {string} run @returns {Ticked} */
function blank(run) {
  return { run, name: run, group: "", started: 0, live: false, archived: false };
}

/** The runs from one to another in the order of the list, both included. @param {string[]} listed @param {string} from
 * @param {string} to */
export function stretch(listed, from, to) {
  const [one, other] = [listed.indexOf(from), listed.indexOf(to)];
  return one < 0 ? [to] : listed.slice(Math.min(one, other), Math.max(one, other) + 1);
}
