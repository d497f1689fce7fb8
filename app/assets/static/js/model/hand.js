// @ts-check
/** The picture in the hand: a drag moves it, two fingers or the wheel with Ctrl zoom, a click selects. */

const CLICK_PX = 4;
const WHEEL = 0.0022;

/** @typedef {{view: import("./view.js").View, moved: () => void, point: (x: number, y: number) => void, leave: () => void,
 *   click: (x: number, y: number, twice: boolean) => void}} Holder */

/** @param {HTMLElement} pad @param {Holder} holder */
export function listen(pad, holder) {
  /** The fingers or buttons that are down. @type {Map<number, {x: number, y: number}>} */
  const down = new Map();
  let far = 0;
  const at = (/** @type {{clientX: number, clientY: number}} */ { clientX, clientY }) => {
    const { left, top } = pad.getBoundingClientRect();
    return { x: clientX - left, y: clientY - top };
  };
  pad.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    pad.setPointerCapture(event.pointerId);
    down.set(event.pointerId, at(event));
    far = down.size > 1 ? Infinity : 0;
  });
  pad.addEventListener("pointermove", (event) => {
    const before = down.get(event.pointerId);
    const now = at(event);
    if (!before) return holder.point(now.x, now.y);
    const others = [...down].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
    down.set(event.pointerId, now);
    far += Math.hypot(now.x - before.x, now.y - before.y);
    if (others.length) pinch(holder, others[0], before, now);
    else if (far > CLICK_PX) holder.view.move(now.x - before.x, now.y - before.y);
    else return;
    pad.classList.add("held");
    holder.moved();
  });
  for (const ends of ["pointerup", "pointercancel"])
    pad.addEventListener(ends, (event) => {
      const { pointerId, detail, type } = /** @type {PointerEvent} */ (event);
      const place = down.get(pointerId);
      down.delete(pointerId);
      pad.classList.remove("held");
      if (place && type === "pointerup" && far <= CLICK_PX) holder.click(place.x, place.y, detail === 2);
    });
  pad.addEventListener("pointerleave", () => holder.leave());
  pad.addEventListener("dblclick", (event) => {
    const { x, y } = at(event);
    holder.click(x, y, true);
  });
  pad.addEventListener(
    "wheel",
    (event) => {
      const { x, y } = at(event);
      if (event.ctrlKey || event.metaKey) holder.view.zoom(Math.exp(-event.deltaY * WHEEL), x, y);
      // What can't be moved any further leaves the wheel to the page.
      else if (!holder.view.isWhole && !holder.view.move(-event.deltaX, -event.deltaY)) return;
      else if (holder.view.isWhole) return;
      event.preventDefault();
      holder.moved();
    },
    { passive: false },
  );
}

/** @param {Holder} holder @param {{x: number, y: number}} other @param {{x: number, y: number}} before @param {{x: number, y: number}} now */
function pinch({ view }, other, before, now) {
  const [from, to] = [before, now].map(({ x, y }) => Math.max(1, Math.hypot(x - other.x, y - other.y)));
  view.zoom(to / from, (now.x + other.x) / 2, (now.y + other.y) / 2);
  view.move((now.x - before.x) / 2, (now.y - before.y) / 2);
}
