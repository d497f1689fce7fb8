// @ts-check
/** The legend of tiles. */
import { makeBar, paintBar, swatch } from "../canvas/colorbar.js";
import { number } from "../format.js";

/** Fills an element with the color bar of a picture. @param {HTMLElement} element
 * @param {import("./tiles.js").Tiles | null} tiles */
export function showScale(element, tiles) {
  element.replaceChildren();
  if (!tiles?.ranges.length) return;
  const [{ low, high, clipped, signed }] = tiles.ranges;
  const ends =
    tiles.ranges.length > 1
      ? ["smallest", "largest of each tile"]
      : [`${clipped[0] ? "\u2264 " : ""}${number(low)}`, `${clipped[1] ? "\u2265 " : ""}${number(high)}`];
  element.append(
    ends[0],
    paintBar(makeBar("the colors, from low to high"), signed),
    ends[1],
    swatch("nan", "NaN"),
    swatch("inf", "infinite"),
    ...(tiles.causal ? [swatch("missing", "masked")] : []),
  );
}
