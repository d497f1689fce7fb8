// @ts-check
/** The visible part of the wall as a picture, with its names. */
import { pixelRatio } from "../canvas/index.js";
import { imageOf } from "../plot/files.js";
import { colors } from "../theme.js";

const [GAP, NAME, HEAD] = [14, 20, 30];

/** @param {import("./wall.js").Wall} wall @param {string} title @param {string} of @returns {Promise<Blob>} */
export async function pngOf(wall, title, of) {
  const tiles = wall.seen.filter((tile) => tile.map?.shape?.columns);
  if (!tiles.length) throw new Error("no tile is visible");
  const boxes = tiles.map((tile) => tile.element.getBoundingClientRect());
  const [left, top] = [Math.min(...boxes.map((box) => box.left)), Math.min(...boxes.map((box) => box.top))];
  const [right, bottom] = [Math.max(...boxes.map((box) => box.right)), Math.max(...boxes.map((box) => box.bottom))];
  const ratio = pixelRatio();
  const canvas = document.createElement("canvas");
  canvas.width = (right - left + 2 * GAP) * ratio;
  canvas.height = (bottom - top + 2 * GAP + HEAD) * ratio;
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const page = colors();
  pen.scale(ratio, ratio);
  pen.fillStyle = page.card;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.fillStyle = page.ink;
  pen.font = "600 15px system-ui, sans-serif";
  pen.fillText(`${title} \u00b7 ${of}`, GAP, 24);
  pen.font = "600 12px system-ui, sans-serif";
  for (const [place, tile] of tiles.entries()) {
    const [x, y] = [boxes[place].left - left + GAP, boxes[place].top - top + GAP + HEAD];
    pen.fillText(`${tile.layer.module} ${tile.layer.type}`, x, y + NAME - 6, boxes[place].width);
    const picture = /** @type {HTMLCanvasElement} */ (tile.map?.canvas);
    pen.drawImage(
      picture,
      x,
      y + (picture.getBoundingClientRect().top - boxes[place].top),
      picture.clientWidth,
      picture.clientHeight,
    );
  }
  return imageOf(canvas);
}
