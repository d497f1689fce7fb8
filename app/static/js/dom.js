/** Elements without HTML strings, because module names are the user's text; and the clipboard. */

/** @param {string} tag @param {Record<string, any>} [attributes] `class`, `onclick`, ... ; null and false are left out
 * @param {...(Node | string | number | null)} children @returns {HTMLElement} */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children) if (child !== null) element.append(child instanceof Node ? child : String(child));
  return element;
}

/** A button that sends no form. @param {string} words @param {((event: any) => unknown) | null} onclick
 * @param {Record<string, any>} [attributes] */
export function makeButton(words, onclick, attributes = {}) {
  return h("button", { class: "button", type: "button", onclick, ...attributes }, words);
}

/** A text whose paths wrap between words: what `breakable` is in templates. @param {string} text @returns {Node[]} */
export function breakable(text) {
  const parts = text.split(/(?<=[/_=:\\])(?=\w)|(?<=\w\.)(?=[A-Za-z_])|(?<=[A-Za-z_]\.)(?=\d)/);
  return parts.flatMap((part, place) => (place ? [h("wbr"), new Text(part)] : [new Text(part)]));
}

/** Text and code in turn: what stands between backticks is code. A backtick alone stays. @param {string} text */
export function inTurn(text) {
  const parts = text.split("`");
  if (parts.length % 2 === 0) parts.push(parts.splice(-2).join("`"));
  return parts;
}

/** A text with code between backticks, and paths that wrap: what `breakable | code` is in templates.
 * @param {string} text @returns {Node[]} */
export function coded(text) {
  return inTurn(text).flatMap((part, place) => (place % 2 ? h("code", {}, ...breakable(part)) : breakable(part)));
}

/** Hears clicks on the elements that a selector finds when they are clicked. @param {string} selector @param {(element:
 * any, event: MouseEvent) => unknown} hear @param {Element | Document} [root] */
export function onClick(selector, hear, root = document) {
  root.addEventListener("click", (event) => {
    const element = /** @type {Element} */ (event.target).closest(selector);
    if (element) hear(element, /** @type {MouseEvent} */ (event));
  });
}

/** The element with this id; a page without it is a bug. @param {string} id @returns {any} */
export function byId(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`this page has no element #${id}`);
  return element;
}

/** Whether a click asks for another tab. @param {MouseEvent} event */
export function isAside(event) {
  return event.ctrlKey || event.metaKey || event.button === 1;
}

/** Writes a text, unless it is there already: what changes is announced, and loses its selection.
 * @param {Element} element @param {string} text */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Shows words in an element of their own, or hides it. @param {HTMLElement} element @param {string} words */
export function tell(element, words) {
  write(element, words);
  element.hidden = !words;
}

/** What measures texts in the font of an element. @param {Element} element */
export function penLike(element) {
  const pen = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
  pen.font = getComputedStyle(element).font;
  return pen;
}

/** @param {string} text @returns {Promise<boolean>} whether it is there */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = /** @type {HTMLTextAreaElement} */ (h("textarea", { class: "quiet-label", "aria-hidden": "true" }));
    const before = /** @type {HTMLElement | null} */ (document.activeElement);
    field.value = text;
    document.body.append(field);
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    before?.focus?.();
    return copied;
  }
}

/** Lets copied tables and labels have the names that their tips show, instead of short ones. @param {(full: string) =>
 * string} shorten */
export function copyWholeNames(shorten) {
  document.addEventListener("copy", (event) => {
    const selection = /** @type {Selection} */ (getSelection());
    let [text, at] = [String(selection), 0];
    const { commonAncestorContainer: around } = selection.rangeCount ? selection.getRangeAt(0) : document.createRange();
    const outer = around instanceof Element ? around : around.parentElement;
    for (const each of [outer?.closest("[title]"), ...(outer?.querySelectorAll("[title]") ?? [])]) {
      if (!(each instanceof HTMLElement) || !selection.containsNode(each, true)) continue;
      const said = each.innerText.trim();
      const place = text.indexOf(said, at);
      if (place < 0 || said === each.title || (said !== shorten(each.title) && !said.includes("\u2026"))) continue;
      text = text.slice(0, place) + each.title + text.slice(place + said.length);
      at = place + each.title.length;
    }
    if (!at) return;
    event.clipboardData?.setData("text/plain", text);
    event.preventDefault();
  });
}
