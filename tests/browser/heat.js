/* A heatmap with made numbers on an open page, for tests: window.probe. */
async ({ rows, steps, nanRow, nanStep, fit }) => {
  const at = (name) => import(new URL(`${document.body.dataset.static}/js/${name}`, document.baseURI).href);
  const [{ Heat }, { Emitter }, { Schedule }, { Cursor }, { Keys }, { Clock }] = await Promise.all(
    ["heat/heat.js", "state.js", "schedule.js", "follow.js", "keys.js", "timeline/clock.js"].map(at),
  );
  const figure = document.createElement("figure");
  figure.className = "card chart";
  figure.id = "probe";
  const plot = document.createElement("div");
  plot.className = "plot";
  plot.style.height = "420px";
  const style = Object.assign(document.createElement("link"), {
    rel: "stylesheet",
    href: `${document.body.dataset.static}/css/heat.css`,
  });
  const styled = new Promise((done) => style.addEventListener("load", done));
  document.head.append(style);
  await styled;
  figure.append(document.createElement("header"), plot);
  document.querySelector("main").prepend(figure);
  let newest = steps - 1;
  const zooms = [];
  const picks = [];
  const said = [];
  const follow = Object.assign(new Emitter(), {
    step: null,
    paused: false,
    zoom: (from, to) => zooms.push([Math.round(from), Math.round(to)]),
  });
  Object.defineProperties(follow, { span: { get: () => [newest - steps + 1, newest] }, newest: { get: () => newest } });
  const state = Object.assign(new Emitter(), { values: {}, get: () => "", optional: () => "" });
  const page = {
    follow,
    state,
    clock: new Clock({ run: null, state, follow }),
    cursor: new Cursor(),
    schedule: new Schedule(),
    keys: new Keys(null),
    runName: "run",
    announce: (text) => said.push(text),
  };
  const heat = new Heat(page, figure, {
    title: "A probe",
    kind: "output_grad",
    stat: "norm",
    onPick: (row, step) => picks.push([row.module, step]),
  });
  heat.setFit(fit ?? "fit");
  heat.setRows(
    Array.from({ length: rows }, (_, row) => ({
      number: row,
      module: `layers.${row >> 4}.m${row & 15}`,
      kind: "output_grad",
      index: "",
      call: 0,
      phase: "train",
      type: "Linear",
      group: 1,
    })),
    [steps + 1, 1],
  );
  const frame = (first, columns) => {
    const values = new Float32Array(rows * columns);
    for (let place = 0; place < values.length; place += 1) values[place] = 0.01 + ((place * 7919) % 1000) / 1000;
    if (nanStep >= first && nanStep < first + columns) values[(nanStep - first) * rows + nanRow] = NaN;
    const at_ = Float64Array.from({ length: columns }, (_, column) => first + column);
    return {
      kind: columns > 1 ? "snapshot" : "delta",
      k: columns,
      n: rows,
      bits: new Uint32Array(values.buffer),
      first: at_,
      last: at_,
      nonfinite: Uint32Array.from(at_, (step) => Number(step === nanStep)),
    };
  };
  const drawn = () =>
    new Promise((done) => document.addEventListener("hookcore:drawn", (event) => done(event.detail), { once: true }));
  const take = async (given) => {
    const told = drawn();
    heat.take(given);
    return told;
  };
  await take(frame(0, steps));
  const nanPixels = () => {
    const { canvas: picture, scene } = heat.screen;
    const ratio = picture.width / scene.layout.width;
    const { x, y, w, h } = scene.layout.plot;
    const image = picture
      .getContext("2d")
      .getImageData(Math.round(x * ratio), Math.round(y * ratio), Math.round(w * ratio), Math.round(h * ratio));
    const found = [];
    new Uint32Array(image.data.buffer).forEach(
      (pixel, place) =>
        pixel === scene.painter.palette.nan &&
        found.push([(place % image.width) / ratio + x, Math.floor(place / image.width) / ratio + y]),
    );
    return found;
  };
  window.probe = { heat, page, zooms, picks, said, nanPixels, drawn, add: async () => take(frame((newest += 1), 1)) };
  return nanPixels().length;
};
