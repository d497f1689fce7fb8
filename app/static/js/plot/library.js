/** Plotly: loaded when it is needed first, with the settings of all charts. Only the charts of this folder use it. */

export const CONFIG = {
  displayModeBar: false,
  displaylogo: false,
  showSendToCloud: false,
  responsive: false,
  doubleClick: false,
  scrollZoom: false,
  showTips: false,
};

/** Plotly reads a few tags in texts, and names are the user's. @param {string} text */
export function escaped(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/** @type {Promise<any> | null} */
let loading = null;

/** Its address. @returns {string} */
const source = () => `${document.body.dataset.static}/vendor/plotly-cartesian.min.js`;

/** Fetches it without running it, once the more urgent charts are drawn. */
export function fetchPlotly() {
  const link = document.createElement("link");
  Object.assign(link, { rel: "preload", as: "script", fetchPriority: "low", href: source() });
  document.head.append(link);
}

/** Plotly, loaded when it is needed first. @returns {Promise<any>} */
export function plotly() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = source();
    script.onload = () => resolve(/** @type {any} */ (globalThis).Plotly);
    script.onerror = () => {
      loading = null;
      reject(new Error("the chart library did not load: reload the page"));
    };
    document.head.append(script);
  });
  return loading;
}

/** The bytes of a data: address. @param {string} url */
export function blobOf(url) {
  const [head, body] = [url.slice(5, url.indexOf(",")), url.slice(url.indexOf(",") + 1)];
  const text = head.endsWith(";base64") ? atob(body) : null;
  const bytes = text === null ? decodeURIComponent(body) : Uint8Array.from(text, (sign) => sign.charCodeAt(0));
  return new Blob([bytes], { type: head.split(";")[0].split(",")[0] });
}
