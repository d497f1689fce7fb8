// @ts-check
/** Plotly, for charts that aren't over steps: loaded when it is needed first, with the settings of all charts. */

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

/** Plotly, loaded when it is needed first. @returns {Promise<any>} */
export function plotly() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = `${document.body.dataset.static}/vendor/plotly-cartesian.min.js`;
    script.onload = () => resolve(/** @type {any} */ (globalThis).Plotly);
    script.onerror = () => {
      loading = null;
      reject(new Error("the chart library did not load: reload the page"));
    };
    document.head.append(script);
  });
  return loading;
}
