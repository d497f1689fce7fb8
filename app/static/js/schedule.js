/** One painter for the page: each thing is drawn at most once in a frame, and only while it can be seen. */

const QUICK_MS = 12; // a picture that takes no longer needs no rest
const SLOW_MS = 40; // from here on it is worth a word
// times as long as pictures take; smoothed, since a first one, which is slow once, must not hold up the others
const REST = 2;

export class Schedule {
  /** @type {Map<object, () => void>} */
  #due = new Map();
  /** @type {Map<object, () => void>} */
  #turns = new Map();
  /** @type {WeakMap<Element, boolean>} */
  #seen = new WeakMap();
  #asked = false;
  #restsUntil = 0;
  /** Milliseconds that a frame's drawing took, smoothed. */
  cost = 0;

  constructor() {
    this.#watch = new IntersectionObserver(
      (entries) => {
        for (const entry of entries) {
          this.#seen.set(entry.target, entry.isIntersecting);
          if (entry.isIntersecting) entry.target.dispatchEvent(new CustomEvent("seen"));
        }
      },
      { rootMargin: "100px" },
    );
    document.addEventListener("visibilitychange", () => this.#ask());
  }

  /** @type {IntersectionObserver} */
  #watch;

  /** Draws in the next frame, every time it is asked. @param {object} key @param {() => void} draw */
  soon(key, draw) {
    this.#due.set(key, draw);
    this.#ask();
  }

  /** Draws in one of the next frames, one such thing a frame: for what is slow to draw.
   * @param {object} key @param {() => void} draw */
  inTurn(key, draw) {
    // A waiting chart keeps its turn: a second request must not put it behind charts drawn since.
    this.#turns.set(key, draw);
    this.#ask();
  }

  /** Begins to watch whether an element can be seen; it gets the event "seen" when it comes into view.
   * @param {Element} element @param {() => unknown} seen hears that event */
  watch(element, seen) {
    element.addEventListener("seen", seen);
    this.#watch.observe(element);
  }

  /** Resolves when an element comes into view, or near it: until then, what draws it isn't loaded.
   * @param {Element} element @returns {Promise<unknown>} */
  whenSeen(element) {
    return new Promise((seen) => this.watch(element, () => seen(null)));
  }

  /** @param {Element} element */
  isSeen(element) {
    return this.#seen.get(element) ?? true;
  }

  /** Frames per second if drawing is slow, else null; the status line shows it. */
  get rate() {
    return this.cost < SLOW_MS ? null : Math.max(1, Math.round(1000 / (this.cost * (1 + REST))));
  }

  #ask() {
    if (this.#asked || document.hidden || !(this.#due.size + this.#turns.size)) return;
    this.#asked = true;
    requestAnimationFrame((now) => this.#frame(now));
  }

  /** After a slow picture comes a rest, in which the page answers to hands. @param {number} now */
  #frame(now) {
    this.#asked = false;
    if (now < this.#restsUntil) this.#ask();
    else this.#draw();
  }

  #draw() {
    const began = performance.now();
    const due = [...this.#due.values()];
    this.#due.clear();
    for (const draw of due) this.#try(draw);
    const [turn] = this.#turns;
    if (turn) {
      this.#turns.delete(turn[0]);
      this.#try(turn[1]);
    }
    const took = performance.now() - began;
    this.cost += 0.1 * (took - this.cost);
    this.#restsUntil = this.cost > QUICK_MS ? performance.now() + Math.min(took, this.cost) * REST : 0;
    this.#ask();
  }

  /** A chart that fails must not stop the others. @param {() => void} draw */
  #try(draw) {
    try {
      draw();
    } catch (error) {
      console.error(error);
    }
  }
}
