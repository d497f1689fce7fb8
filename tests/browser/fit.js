/**
 * What doesn't fit on a page, one line each: text that leaves its box, is cut without a way to read it, or breaks
 * inside a word; controls that overlap, or that can't be reached because they are outside of the page.
 */
() => {
  const CONTROLS = "a[href], button, input:not([type=hidden]), select, textarea, summary, meter, [role=slider]";
  const SLACK = 1.5;
  const faults = new Set();

  const nameOf = (element) => {
    const parts = [];
    for (let at = element; at && at !== document.body && parts.length < 3; at = at.parentElement) {
      const classes = [...at.classList]
        .slice(0, 2)
        .map((each) => `.${each}`)
        .join("");
      parts.unshift(at.localName + (at.id ? `#${at.id}` : classes));
      if (at.id) break;
    }
    return parts.join(" > ");
  };
  const say = (what, element, more = "") => {
    const text = (element.textContent || element.value || "").trim().slice(0, 60);
    faults.add(`${what}: ${nameOf(element)} ${more} ${JSON.stringify(text)}`);
  };

  const styles = new Map();
  const styleOf = (element) => {
    if (!styles.has(element)) styles.set(element, getComputedStyle(element));
    return styles.get(element);
  };
  const isHidden = (element) =>
    !element.checkVisibility({ opacityProperty: true, visibilityProperty: true }) ||
    Boolean(element.closest(".quiet-label, .skip, [aria-hidden=true], .toasts, canvas, svg text"));
  const clips = (style, axis) => style[`overflow${axis}`] !== "visible";

  /** The part of a rectangle that the boxes around its element don't clip. */
  const seen = (element, rect) => {
    let { left, right, top, bottom } = rect;
    for (let at = element; at && at !== document.documentElement; at = at.parentElement) {
      const style = styleOf(at);
      if (at !== element && (clips(style, "X") || clips(style, "Y"))) {
        const box = at.getBoundingClientRect();
        if (clips(style, "X")) [left, right] = [Math.max(left, box.left), Math.min(right, box.right)];
        if (clips(style, "Y")) [top, bottom] = [Math.max(top, box.top), Math.min(bottom, box.bottom)];
      }
      if (style.position === "fixed") break;
    }
    return { left, right, top, bottom };
  };
  const isEmpty = ({ left, right, top, bottom }) => right - left < 3 || bottom - top < 3;

  /** The box around a line of text: the nearest one that isn't inline. */
  const boxOf = (element) => {
    let at = element;
    while (["inline", "contents"].includes(styleOf(at).display)) at = at.parentElement;
    return at;
  };

  const WORD = /[\p{L}\p{N}]+/gu;
  const breaksInWord = (node, box) => {
    const range = document.createRange();
    for (const { 0: word, index } of node.data.matchAll(WORD)) {
      range.setStart(node, index);
      range.setEnd(node, index + word.length);
      const rects = [...range.getClientRects()].filter(({ width }) => width > 0);
      if (rects.length < 2) continue;
      const tall = rects[0].height / 2;
      if (rects.every(({ top }) => Math.abs(top - rects[0].top) < tall)) continue;
      const style = styleOf(box);
      const room = box.clientWidth - Number.parseFloat(style.paddingLeft) - Number.parseFloat(style.paddingRight);
      if (rects.reduce((sum, { width }) => sum + width, 0) <= room) return word; // otherwise, no line has room for it
    }
    return null;
  };

  /** Why a text can't be read: its box, or one around it (up to the first that scrolls), ends before the text. */
  const isLost = (element, box, text, slack) => {
    for (let at = box; at !== document.body; at = at.parentElement) {
      const style = styleOf(at);
      const rect = at.getBoundingClientRect();
      const out = Math.max(text.right - rect.right, rect.left - text.left);
      const below = Math.max(text.bottom - rect.bottom, rect.top - text.top);
      if (["auto", "scroll"].includes(style.overflowX) || rect.width <= 1) return null; // or only for screen readers
      if (at === box && out > SLACK && !clips(style, "X")) return `leaves its box by ${Math.round(out)} px`;
      if (clips(style, "X") && style.webkitLineClamp === "none") {
        const isTold = element.closest("[title]") || at.querySelector("[title]");
        if (out > SLACK && !isTold) return style.textOverflow === "ellipsis" ? "is cut, without a title" : "is cut off";
        if (below > slack + SLACK && style.overflowY === "hidden") return "is cut below";
      }
      if (["absolute", "fixed"].includes(style.position)) return null;
    }
    return null;
  };

  const range = document.createRange();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT, (node) =>
    node.data.trim() &&
    !isHidden(node.parentElement) &&
    !node.parentElement.closest("select, script, noscript, style, title")
      ? NodeFilter.FILTER_ACCEPT
      : NodeFilter.FILTER_REJECT,
  );
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const element = node.parentElement;
    if (element.closest("svg")) continue;
    range.selectNodeContents(node);
    const rects = [...range.getClientRects()].filter(({ width, height }) => width > 1 && height > 1);
    if (!rects.length) continue;
    const box = boxOf(element);
    if (rects.length > 1 && styleOf(box).webkitLineClamp === "1") {
      if (!element.closest("[title]")) say("is cut, without a title", box);
    } else if (rects.length > 1) {
      const word = breaksInWord(node, box);
      if (word) say("breaks inside a word", element, word);
    }
    const all = {
      left: Math.min(...rects.map((r) => r.left)),
      right: Math.max(...rects.map((r) => r.right)),
      top: Math.min(...rects.map((r) => r.top)),
      bottom: Math.max(...rects.map((r) => r.bottom)),
    };
    const why = isLost(element, box, all, rects[0].height / 4);
    if (why) say(why, box);
  }

  const controls = [];
  for (const element of document.querySelectorAll(CONTROLS)) {
    if (isHidden(element) || element.closest("#track, .js-plotly-plot, dialog:not([open])")) continue;
    const rects =
      styleOf(element).display === "inline" ? [...element.getClientRects()] : [element.getBoundingClientRect()];
    for (const whole of rects) {
      const rect = seen(element, whole);
      if (isEmpty(rect)) continue;
      if (rect.left < -SLACK || rect.right > innerWidth + SLACK)
        say("is outside of the page", element, `${Math.round(rect.left)} to ${Math.round(rect.right)}`);
      controls.push({ element, rect });
    }
  }
  const isOnTop = (element) => {
    for (let at = element; at; at = at.parentElement)
      if (["fixed", "sticky"].includes(styleOf(at).position)) return true;
    return false;
  };
  controls.sort((one, two) => one.rect.top - two.rect.top);
  controls.forEach((one, place) => {
    for (const two of controls.slice(place + 1)) {
      if (two.rect.top >= one.rect.bottom - 2) break;
      const wide = Math.min(one.rect.right, two.rect.right) - Math.max(one.rect.left, two.rect.left);
      const tall = Math.min(one.rect.bottom, two.rect.bottom) - two.rect.top;
      if (wide < 2 || tall < 2 || one.element.contains(two.element) || two.element.contains(one.element)) continue;
      if (isOnTop(one.element) !== isOnTop(two.element)) continue;
      say("overlaps", one.element, `by ${Math.round(wide)} x ${Math.round(tall)} px with ${nameOf(two.element)}`);
    }
  });

  const { scrollWidth } = document.documentElement;
  if (scrollWidth > innerWidth) faults.add(`the page is ${scrollWidth - innerWidth} px wider than the window`);
  return [...faults];
};
