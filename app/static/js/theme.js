/** Light or dark: by the system, or by hand in a cookie, which the server reads so that nothing flashes. */
import { THEME_COOKIE } from "./vocabulary.js";

const YEAR_S = 31536000;
/** The font of charts: that of the page. */
export const SANS = 'system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';

/** @type {Set<() => void>} */
const listeners = new Set();
/** @type {Record<string, string> | null} */
let known = null;

/** The chosen theme: system, light, or dark. */
export function theme() {
  return document.documentElement.dataset.theme ?? "system";
}

/** @param {string} name one of THEMES (vocabulary.js) */
export function setTheme(name) {
  const path = new URL(document.baseURI).pathname;
  // biome-ignore lint/suspicious/noDocumentCookie: the CookieStore needs HTTPS, and many dashboards have none.
  document.cookie = `${THEME_COOKIE}=${name}; path=${path}; max-age=${name === "system" ? 0 : YEAR_S}; samesite=strict`;
  document.documentElement.dataset.theme = name;
  changed();
}

/** Calls when the colors are others; to draw again. @param {() => void} listener @returns {() => void} ends it */
export function onTheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

const NAMES = "paper card ink quiet line band accent good warn bad nan inf missing line-1 line-2 line-3 line-4".split(
  " ",
);

/** The colors of the page for what CSS does not reach: canvas and Plotly. line1 to line4 are those of lines.
 * @returns {Record<string, string>} */
export function colors() {
  if (known) return known;
  const style = getComputedStyle(document.documentElement);
  const entries = NAMES.map((name) => [name.replace("-", ""), style.getPropertyValue(`--${name}`).trim()]);
  known = Object.fromEntries(entries);
  return /** @type {Record<string, string>} */ (known);
}

/** Whether the page is dark now. */
export function isDark() {
  return getComputedStyle(document.documentElement).colorScheme === "dark";
}

function changed() {
  known = null;
  for (const listener of [...listeners]) listener();
}

if (globalThis.document) matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
