// @ts-check
// Draws the charts of a report in the colors of the theme: those in sight first, then all others, one at a time.
(() => {
  const NARROW = 560;
  const PAUSE_MS = 50;
  const Plotly = /** @type {any} */ (globalThis).Plotly;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const pairs = /** @type {[string, string][]} */ (JSON.parse(document.getElementById("colors")?.textContent ?? "[]"));
  const rgb = (/** @type {string} */ color) =>
    [1, 3, 5].map((place) => parseInt(color.slice(place, place + 2), 16)).join(",");
  /** @type {Set<Element>} */
  const drawn = new Set();

  /** A figure in the colors of the day or the night. @param {string} text */
  function themed(text) {
    if (!dark.matches) return JSON.parse(text);
    const known = new Map(
      pairs.flatMap(([day, night]) => [[`"${day}"`, `"${night}"`], [`rgba(${rgb(day)},`, `rgba(${rgb(night)},`]]),
    );
    return JSON.parse(text.replace(/"#[0-9a-f]{6}"|rgba\(\d+,\d+,\d+,/g, (found) => known.get(found) ?? found));
  }

  /** @param {Element} figure */
  function draw(figure) {
    const plot = figure.querySelector(".plot");
    const text = figure.querySelector("script")?.textContent;
    drawn.add(figure);
    if (!plot || !text) return;
    const { data, layout } = themed(text);
    const names = [layout.xaxis, layout.yaxis].find((axis) => axis?.type === "category");
    if (names && plot.clientWidth < NARROW) {
      names.showticklabels = false; // there the names would take all the room
      layout.margin = { ...layout.margin, l: 36 };
    }
    figure.classList.add("drawn");
    const bar = { displaylogo: false, showSendToCloud: false, modeBarButtonsToRemove: ["lasso2d", "select2d"] };
    Plotly.react(plot, data, layout, { responsive: true, ...bar });
  }

  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      seen.unobserve(target);
      draw(target);
    }
  }, { rootMargin: "200px" });
  const figures = [...document.querySelectorAll("figure.chart")];
  for (const figure of figures) seen.observe(figure);

  /** Draws what nobody scrolled to yet, with a pause after each chart, so that the page stays quick. */
  function drawRest() {
    const figure = figures.find((each) => !drawn.has(each));
    if (!figure) return;
    seen.unobserve(figure);
    draw(figure);
    setTimeout(drawRest, PAUSE_MS);
  }
  setTimeout(drawRest, 10 * PAUSE_MS);
  dark.addEventListener("change", () => drawn.forEach(draw));
  addEventListener("beforeprint", () => figures.forEach(draw));
})();
