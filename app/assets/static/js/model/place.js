// @ts-check
/** The part of the picture that is in the window after boxes have been rearranged. Pure. */

/** @typedef {import("./arrange.js").Rect} Rect */

export class Place {
  /** What stays where it is. @type {Rect | null} */
  anchor = null;
  /** The box to bring into the window once it stands somewhere. @type {number | null} */
  wanted = null;
  /** Whether the reader has moved the picture: then it isn't fitted again by itself. */
  isMoved = false;
  #next = /** @type {"fit" | "all" | "keep"} */ ("fit");

  /** @param {import("./view.js").View} view */
  constructor(view) {
    this.view = view;
  }

  /** Shows all of it, with names or whatever it takes. @param {boolean} all */
  fit(all) {
    this.#next = "keep";
    this.isMoved = false;
    this.view.fit(all);
  }

  /** Shows all of it once it is arranged. */
  fitSoon() {
    this.#next = "all";
  }

  /** Takes a picture. @param {import("./arrange.js").Arranged} arranged */
  take(arranged) {
    const { view, anchor } = this;
    view.picture = [arranged.width, arranged.height];
    if (view.width < 10) return; // it isn't visible
    const find = (/** @type {number | undefined | null} */ wanted) =>
      arranged.rects.find(({ number }) => number === wanted);
    const stays = find(anchor?.number);
    if (this.#next !== "keep" || (!this.isMoved && !anchor)) this.fit(this.#next === "all");
    else if (anchor && stays) view.anchor([stays.x, stays.y], [anchor.x, anchor.y]);
    else view.move(0, 0);
    this.anchor = null;
    const wanted = find(this.wanted);
    if (!wanted) return;
    view.show(wanted);
    this.wanted = null;
  }
}
