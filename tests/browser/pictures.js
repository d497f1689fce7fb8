/**
 * What a picture of the page would show to be wrong with texts and charts, one line each: window.measured(). Texts that
 * overlap, labels of a chart that touch, repeat, or are cut, and cards that are mostly empty. Texts on canvases are
 * known because this runs before the page, and notes what is written.
 */
(() => {
  const [TOUCH_PX, CELL_PX, EMPTY_SHARE, MIN_EMPTY] = [3, 16, 0.5, 10]; // the last in cells
  const written = new WeakMap(); // the texts on a canvas, in its pixels

  const around = (points) => {
    const [xs, ys] = [points.map(({ x }) => x), points.map(({ y }) => y)];
    return { left: Math.min(...xs), right: Math.max(...xs), top: Math.min(...ys), bottom: Math.max(...ys) };
  };
  const corners = (left, top, right, bottom) =>
    [left, right].flatMap((x) => [top, bottom].map((y) => new DOMPoint(x, y)));
  /** Whether the middle of a box is in another one. */
  const isIn = ({ left, right, top, bottom }, box) => {
    const [x, y] = [(left + right) / 2, (top + bottom) / 2];
    return x >= box.left && x <= box.right && y >= box.top && y <= box.bottom;
  };
  const put = (pen, left, top, width, height) =>
    around(corners(left, top, left + width, top + height).map((each) => pen.getTransform().transformPoint(each)));
  const forget = (canvas, box) =>
    written.set(
      canvas,
      (written.get(canvas) ?? []).filter((each) => !isIn(each, box)),
    );
  const note = (canvas, whole, text) => {
    const part = common(whole, { left: 0, top: 0, right: canvas.width, bottom: canvas.height });
    if (isBox(part)) written.set(canvas, [...(written.get(canvas) ?? []), { ...part, whole, text }]);
  };
  const pens = CanvasRenderingContext2D.prototype;
  const { clearRect, drawImage, fillText } = pens;
  pens.clearRect = function (...box) {
    forget(this.canvas, put(this, ...box));
    clearRect.apply(this, box);
  };
  pens.fillText = function (text, x, y, ...more) {
    const found = this.measureText(text);
    const [left, width] = [x - found.actualBoundingBoxLeft, found.actualBoundingBoxLeft + found.actualBoundingBoxRight];
    const high = found.actualBoundingBoxAscent + found.actualBoundingBoxDescent;
    const box = put(this, left, y - found.actualBoundingBoxAscent, width, high);
    if (text.trim()) note(this.canvas, box, text);
    fillText.call(this, text, x, y, ...more);
  };
  pens.drawImage = function (image, ...where) {
    const { width, height } = image;
    const [[sx, sy, sw, sh], [x, y, w = width, h = height]] =
      where.length > 4 ? [where.slice(0, 4), where.slice(4)] : [[0, 0, width, height], where];
    const part = { left: sx, top: sy, right: sx + sw, bottom: sy + sh };
    for (const { text, ...each } of written.get(image) ?? []) {
      if (!isIn(each, part)) continue;
      const [right, bottom] = [(each.right - each.left) * (w / sw), (each.bottom - each.top) * (h / sh)];
      const box = put(this, x + (each.left - sx) * (w / sw), y + (each.top - sy) * (h / sh), right, bottom);
      forget(this.canvas, box); // the same text, drawn again
      note(this.canvas, box, text);
    }
    drawImage.call(this, image, ...where);
  };
  for (const side of ["width", "height"]) {
    const { get, set } = Object.getOwnPropertyDescriptor(HTMLCanvasElement.prototype, side);
    Object.defineProperty(HTMLCanvasElement.prototype, side, {
      get,
      set(value) {
        written.delete(this);
        set.call(this, value);
      },
    });
  }

  const OVER = ".tip, .toasts, .quiet-label, .skip, select, script, noscript, style, title, dialog:not([open]), .menu";
  const isSeen = (element) =>
    element.checkVisibility({ opacityProperty: true, visibilityProperty: true }) && !element.closest(OVER);
  const tall = ({ top, bottom }) => bottom - top;
  const wide = ({ left, right }) => right - left;
  const common = (one, two) => ({
    left: Math.max(one.left, two.left),
    right: Math.min(one.right, two.right),
    top: Math.max(one.top, two.top),
    bottom: Math.min(one.bottom, two.bottom),
  });
  const isBox = (box) => wide(box) > 1 && tall(box) > 1;
  /** The part of a box that the elements around it don't clip. */
  const shown = (element, box) => {
    let part = box;
    for (let at = element; at && at !== document.body; at = at.parentElement)
      if (getComputedStyle(at).overflow !== "visible") part = common(part, at.getBoundingClientRect());
    return part;
  };

  /** All texts, with the chart that they are a part of. */
  const textsOf = () => {
    const found = [];
    const range = document.createRange();
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const { currentNode: node } = walker;
      const element = node.parentElement;
      if (!node.data.trim() || !isSeen(element)) continue;
      const chart = element.closest("svg");
      range.selectNodeContents(node);
      const boxes = chart ? [element.getBoundingClientRect()] : [...range.getClientRects()];
      for (const { left, top, right, bottom } of boxes) {
        const whole = { left, top, right, bottom };
        found.push({ ...shown(element, whole), whole, element, chart, text: node.data.trim() });
      }
    }
    for (const chart of document.querySelectorAll("canvas")) {
      if (!isSeen(chart)) continue;
      const at = chart.getBoundingClientRect();
      const [across, down] = [at.width / chart.width, at.height / chart.height];
      const placed = ({ left, right, top, bottom }) =>
        around(corners(at.left + left * across, at.top + top * down, at.left + right * across, at.top + bottom * down));
      for (const { text, whole, ...part } of written.get(chart) ?? [])
        found.push({ ...placed(part), element: chart, chart, text, whole: placed(whole) });
    }
    return found.filter((each) => isBox(each) && each.bottom < innerHeight).sort((one, two) => one.top - two.top);
  };

  const nameOf = (element) => {
    const named = element.closest("[id]");
    return `${named ? `#${named.id} ` : ""}${element.localName}.${[...element.classList].join(".")}`;
  };
  /** Whether something opaque is painted between two elements, so that the lower one isn't seen there. */
  const isCovered = (one, two, { left, right, top, bottom }) => {
    const stack = document.elementsFromPoint((left + right) / 2, (top + bottom) / 2);
    const lower = Math.max(stack.indexOf(one), stack.indexOf(two));
    return stack.slice(0, Math.max(0, lower)).some((each) => /^rgb\(/.test(getComputedStyle(each).backgroundColor));
  };
  const scrolls = (element) => {
    const within = element.closest(".wide");
    return element.matches(".model-canvas") || (within !== null && within.scrollWidth > within.clientWidth);
  };
  const faultsOfTexts = (texts, say) => {
    texts.forEach((one, place) => {
      const { chart, whole, element } = one;
      const isCut = chart && whole && Math.max(wide(whole) - wide(one), tall(whole) - tall(one)) > 2;
      if (isCut && !scrolls(element)) say("a label is cut", element, one.text);
      const frame = chart && element.closest("a, g")?.querySelector(":scope > rect")?.getBoundingClientRect();
      if (frame && isIn({ ...whole, right: whole.left }, frame) && whole.right > frame.right)
        say("a label leaves its box", element, one.text);
      for (const two of texts.slice(place + 1)) {
        if (two.top > one.bottom) break;
        if (one.element === two.element && !chart) continue;
        const both = common(one, two);
        const isBeside = tall(both) > Math.min(tall(one), tall(two)) * 0.4;
        if (!isBeside || wide(both) < -TOUCH_PX) continue;
        const words = `${one.text} | ${two.text}`;
        if (wide(both) > 2 && isCovered(element, two.element, both)) continue;
        if (wide(both) > 2) say("texts overlap", two.element, words);
        else if (chart && chart === two.chart) say("labels touch", two.element, words);
      }
    });
  };

  /** Marks where something is painted on a canvas. */
  const paintedOn = (canvas) => {
    const box = canvas.getBoundingClientRect();
    const small = new OffscreenCanvas(Math.ceil(box.width / 4) || 1, Math.ceil(box.height / 4) || 1);
    const pen = small.getContext("2d");
    if (canvas.width && canvas.height) pen.drawImage(canvas, 0, 0, small.width, small.height);
    const pixels = new Uint32Array(pen.getImageData(0, 0, small.width, small.height).data.buffer);
    const points = [...pixels.keys()].filter((place) => pixels[place] !== pixels[0]);
    if (!points.length) return [];
    const spots = points.map((p) => ({
      x: box.left + (p % small.width) * 4,
      y: box.top + Math.floor(p / small.width) * 4,
    }));
    return [
      {
        ...(points.length &&
          spots.reduce(
            (all, { x, y }) => ({
              left: Math.min(all.left, x),
              right: Math.max(all.right, x + 4),
              top: Math.min(all.top, y),
              bottom: Math.max(all.bottom, y + 4),
            }),
            { left: Infinity, right: -Infinity, top: Infinity, bottom: -Infinity },
          )),
      },
    ];
  };

  /** The largest empty rectangle of a card, in cells: heights of empty columns, row by row. */
  const emptyOf = (card, texts) => {
    const at = card.getBoundingClientRect();
    const [columns, rows] = [Math.floor(at.width / CELL_PX), Math.floor(at.height / CELL_PX)];
    const filled = [
      ...card.querySelectorAll(
        "table, svg, img, video, input, button, select, textarea, pre, canvas, meter, hr, .tile",
      ),
    ]
      .filter(isSeen)
      .flatMap((each) => (each.localName === "canvas" ? paintedOn(each) : [each.getBoundingClientRect()]));
    filled.push(...texts.filter(({ element }) => card.contains(element)));
    const full = Array.from({ length: rows }, () => new Uint8Array(columns));
    for (const { left, right, top, bottom } of filled)
      for (
        let row = Math.max(0, Math.floor((top - at.top) / CELL_PX));
        row < rows && row * CELL_PX + at.top < bottom;
        row += 1
      )
        full[row].fill(
          1,
          Math.max(0, Math.floor((left - at.left) / CELL_PX)),
          Math.max(0, Math.ceil((right - at.left) / CELL_PX)),
        );
    const heights = new Uint16Array(columns);
    let best = 0;
    for (const row of full)
      for (let column = 0; column < columns; column += 1) {
        heights[column] = row[column] ? 0 : heights[column] + 1;
        for (let from = column, high = Infinity; from >= 0 && heights[from]; from -= 1) {
          high = Math.min(high, heights[from]);
          if (high >= MIN_EMPTY) best = Math.max(best, high * (column - from + 1));
        }
      }
    return best * CELL_PX ** 2;
  };

  window.measured = () => {
    const faults = new Set();
    const say = (what, element, words) =>
      faults.add(`${what}: ${nameOf(element)} ${JSON.stringify(String(words).slice(0, 90))}`);
    const texts = textsOf();
    faultsOfTexts(texts, say);
    for (const axis of document.querySelectorAll(".xaxislayer-above, .yaxislayer-above")) {
      const ticks = [...axis.querySelectorAll("text")].map((each) => each.textContent);
      for (const tick of new Set(ticks))
        if (ticks.filter((each) => each === tick).length > 1) say("a tick repeats", axis, tick);
    }
    for (const card of document.querySelectorAll(".card:not(form)")) {
      if (!isSeen(card) || card.parentElement.closest(".card")) continue;
      const { width, height, bottom } = card.getBoundingClientRect();
      if (bottom > innerHeight) continue; // charts are drawn when they come near
      const empty = emptyOf(card, texts);
      if (empty > EMPTY_SHARE * width * height)
        say(
          "mostly empty",
          card,
          `${Math.round((100 * empty) / width / height)} % of ${Math.round(width)} x ${Math.round(height)} px`,
        );
    }
    return [...faults];
  };
})();
