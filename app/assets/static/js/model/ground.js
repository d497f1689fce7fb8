// @ts-check
/** What lies below the boxes, as a picture: frames and lines. While the steps are played, it seldom changes, and most of the
 * time of a drawing would be spent on it. */

export class Ground {
  #canvas = document.createElement("canvas");
  #pen = /** @type {CanvasRenderingContext2D} */ (this.#canvas.getContext("2d"));
  /** What the picture shows. @type {readonly unknown[]} */
  #shown = [];

  /** Puts the picture on another canvas, and draws it before if it is about other things.
   * @param {CanvasRenderingContext2D} pen @param {readonly unknown[]} about compared one by one
   * @param {(pen: CanvasRenderingContext2D) => void} draw */
  put(pen, about, draw) {
    const { width, height } = pen.canvas;
    const now = [width, height, ...about];
    if (now.length !== this.#shown.length || now.some((each, place) => each !== this.#shown[place])) {
      this.#shown = now;
      Object.assign(this.#canvas, { width, height }); // also clears it
      draw(this.#pen);
    }
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.drawImage(this.#canvas, 0, 0);
  }
}
