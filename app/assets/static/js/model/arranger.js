// @ts-check
/** Asks the worker where the boxes stand. The newest question counts. */

/** @typedef {import("./arrange.js").Arranged} Arranged @typedef {import("./arrange.js").Wanted} Wanted */
/** The places, or why they can't be found; neither if there is a newer question.
 * @typedef {{arranged: Arranged | null, problem: string}} Answer */

export class Arranger {
  #asked = 0;
  /** @type {(answer: Answer) => void} */
  #answer = () => {};

  /** @param {string} folder of the static files */
  constructor(folder) {
    this.worker = new Worker(new URL(`${folder}/joined/workers/layout.js`, document.baseURI));
    this.worker.addEventListener("message", ({ data: { id, arranged = null, problem = "" } }) => {
      if (id === this.#asked) this.#answer({ arranged, problem });
    });
    this.worker.addEventListener("error", () => {
      this.#answer({ arranged: null, problem: "the script that does it did not load" });
    });
  }

  /** @param {Wanted} wanted @returns {Promise<Answer>} */
  ask(wanted) {
    this.#answer({ arranged: null, problem: "" });
    this.#asked += 1;
    this.worker.postMessage({ id: this.#asked, wanted });
    return new Promise((answer) => {
      this.#answer = answer;
    });
  }
}
