import assert from "node:assert/strict";
import { mock, test } from "node:test";
import { MISSING } from "../../app/static/js/canvas/columns.js";
import { MAX_ID } from "../../app/static/js/limits.js";
import { decode, Stream, waitMs } from "../../app/static/js/live/stream.js";

/** A socket that receives what the server would send. */
class Socket {
  /** @type {any[]} */
  asked = [];
  onopen = () => {};
  onmessage = (/** @type {any} */ _) => {};
  onclose = (/** @type {any} */ _) => {};
  binaryType = "";
  send(/** @type {string} */ text) {
    this.asked.push(JSON.parse(text));
  }
  says(/** @type {ArrayBuffer} */ data) {
    this.onmessage({ data });
  }
}

/** @param {number} id @param {number} sequence @param {any} content */
function json(id, sequence, content) {
  const text = new TextEncoder().encode(JSON.stringify(content));
  const buffer = new ArrayBuffer(32 + text.length);
  head(buffer, 3, id, sequence, 0, 0);
  new Uint8Array(buffer, 32).set(text);
  return buffer;
}

/** @param {ArrayBuffer} buffer @param {number} kind @param {number} id @param {number} sequence @param
 * {number} k @param {number} n */
function head(buffer, kind, id, sequence, k, n) {
  const view = new DataView(buffer);
  view.setUint8(0, kind);
  view.setUint16(2, id, true);
  view.setUint32(4, sequence, true);
  view.setUint32(16, k, true);
  view.setUint32(20, n, true);
}

/** One column. @param {number} kind @param {number} id @param {number} sequence @param {number} step
 * @param {number[]} values */
function cells(kind, id, sequence, step, values) {
  const about = 32 + Math.ceil((values.length * 4) / 8) * 8;
  const buffer = new ArrayBuffer(about + 20);
  head(buffer, kind, id, sequence, 1, values.length);
  new Float32Array(buffer, 32, values.length).set(values);
  new Float64Array(buffer, about, 2).set([step, step]);
  new Uint32Array(buffer, about + 16, 1).set([1]);
  return buffer;
}

class Page extends EventTarget {
  hidden = false;
  body = { dataset: { run: "one" } };
  show(/** @type {boolean} */ shown) {
    this.hidden = !shown;
    this.dispatchEvent(new Event("visibilitychange"));
  }
}

function world(status = 200) {
  /** @type {Socket[]} */
  const sockets = [];
  const page = new Page();
  const connect = () => {
    sockets.push(new Socket());
    return sockets[sockets.length - 1];
  };
  const stream = new Stream({ connect, page, chance: () => 0.5, allowed: async () => status });
  return { sockets, page, stream, now: () => sockets[sockets.length - 1] };
}

test("frames are read without a copy, and missing values are distinguished from NaN", () => {
  const buffer = cells(2, 7, 3, 41, [1.5, NaN, Infinity]);
  new Uint32Array(buffer, 32, 3)[0] = MISSING;
  const frame = decode(buffer);
  assert.deepEqual([frame.kind, frame.id, frame.sequence, frame.k, frame.n], ["delta", 7, 3, 1, 3]);
  assert.deepEqual([...(frame.bits ?? [])], [MISSING, 0x7fc00000, 0x7f800000]);
  assert.deepEqual([frame.first[0], frame.last[0], frame.nonfinite[0]], [41, 41, 1]);
  assert.equal(frame.values.buffer, buffer);
  assert.deepEqual(decode(json(1, 1, { type: "rows" })).json, { type: "rows" });
  assert.throws(() => decode(new ArrayBuffer(64)), /Reload/);
});

test("it subscribes for the page's run when the socket opens, and acknowledges after the handlers ran", () => {
  const { stream, now } = world();
  /** @type {any[]} */
  const heard = [];
  const handlers = {
    rows: (/** @type {any} */ said) => heard.push(said.type),
    frame: (/** @type {any} */ frame) => heard.push(frame.kind),
    json: (/** @type {any} */ said) => heard.push(said.type),
  };
  stream.subscribe({ view: "heatmap", kind: "output" }, handlers);
  assert.deepEqual(now().asked, []);
  now().onopen();
  assert.deepEqual(now().asked, [{ op: "subscribe", id: 1, view: "heatmap", kind: "output", run: "one" }]);
  now().says(json(1, 1, { type: "rows" }));
  now().says(cells(1, 1, 2, 0, [1]));
  now().says(json(1, 3, { type: "state" }));
  assert.deepEqual(heard, ["rows", "snapshot", "state"]);
  assert.deepEqual(
    now().asked.slice(1),
    [1, 2, 3].map((sequence) => ({ op: "ack", id: 1, sequence })),
  );
});

test("a failing handler does not stop the stream", () => {
  const { stream, now } = world();
  stream.subscribe(
    { view: "heatmap" },
    {
      frame: () => {
        throw new Error("on purpose");
      },
    },
  );
  now().onopen();
  assert.throws(() => now().says(cells(1, 1, 1, 0, [1])), /on purpose/);
  assert.deepEqual(now().asked[1], { op: "ack", id: 1, sequence: 1 });
});

test("numbers wrap around to one, because zero is not a subscription", () => {
  const { stream, now } = world();
  const open = stream.subscribe({ view: "heatmap" }, {});
  now().onopen();
  for (let number = 1; number < MAX_ID; number += 1) open.change({ view: "heatmap" });
  assert.equal(open.id, MAX_ID);
  open.change({ view: "heatmap" });
  assert.equal(open.id, 1);
});

test("a changed subscription gets a new number, and messages in flight for the old one are dropped", () => {
  const { stream, now } = world();
  let heard = 0;
  const open = stream.subscribe({ view: "heatmap", stat: "rms" }, { frame: () => (heard += 1) });
  now().onopen();
  open.change({ view: "heatmap", stat: "norm" });
  assert.deepEqual(now().asked.slice(1), [
    { op: "unsubscribe", id: 1 },
    { op: "subscribe", id: 2, view: "heatmap", stat: "norm", run: "one" },
  ]);
  now().says(cells(2, 1, 1, 0, [1]));
  assert.equal(heard, 0);
  now().says(cells(1, 2, 1, 0, [1]));
  assert.equal(heard, 1);
  open.close();
  assert.deepEqual(now().asked.at(-1), { op: "unsubscribe", id: 2 });
});

test("after a gap it requests a new snapshot and drops the frames that follow the gap", () => {
  const { stream, now } = world();
  let heard = 0;
  stream.subscribe({ view: "heatmap" }, { frame: () => (heard += 1) });
  now().onopen();
  now().says(cells(1, 1, 1, 0, [1]));
  now().says(cells(2, 1, 3, 2, [1]));
  assert.equal(heard, 1);
  assert.deepEqual(
    now()
      .asked.slice(-2)
      .map((each) => [each.op, each.id]),
    [
      ["unsubscribe", 1],
      ["subscribe", 2],
    ],
  );
});

test("a lost connection is retried with growing delays, and everything is subscribed again", async () => {
  mock.timers.enable({ apis: ["setTimeout", "Date"] });
  const { stream, sockets, now } = world();
  /** @type {string[]} */
  const states = [];
  stream.on("state", (state) => states.push(state));
  stream.subscribe({ view: "heatmap" }, {});
  now().onopen();
  for (const wait of [500, 1000, 2000, 4000, 8000, 8000]) {
    now().onclose({ code: 1006 });
    await Promise.resolve();
    assert.equal(stream.state, "waiting");
    assert.equal(stream.retryAt, Date.now() + wait);
    const before = sockets.length;
    mock.timers.tick(wait - 1);
    assert.equal(sockets.length, before);
    mock.timers.tick(1);
    assert.equal(sockets.length, before + 1);
  }
  now().onopen();
  assert.deepEqual(
    now().asked.map((each) => each.op),
    ["subscribe"],
  );
  now().says(json(now().asked[0].id, 1, { type: "state" }));
  now().onclose({ code: 1006 });
  assert.equal(stream.retryAt, Date.now() + 500, "after a message, the connection is trusted again");
  stream.retry();
  assert.equal(stream.state, "connecting");
  assert.deepEqual(states.slice(0, 4), ["connecting", "open", "waiting", "connecting"]);
  mock.timers.reset();
});

test("delays are randomized and bounded", () => {
  assert.deepEqual([waitMs(0, 0), waitMs(0, 1), waitMs(20, 0.5)], [375, 625, 8000]);
});

test("a server that requires a token is not contacted again, and the page says what to do", async () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  const { stream, sockets, now } = world(401);
  stream.subscribe({ view: "runs" }, {});
  now().onclose({ code: 1006 });
  await Promise.resolve();
  await Promise.resolve();
  assert.equal(stream.state, "refused");
  assert.match(stream.why, /login link/);
  mock.timers.tick(60000);
  assert.equal(sockets.length, 1);
  mock.timers.reset();
});

test("a hidden page subscribes to nothing, and to everything again when it is visible", () => {
  const { stream, page, now } = world();
  stream.subscribe({ view: "heatmap" }, {});
  now().onopen();
  page.show(false);
  assert.deepEqual(now().asked.at(-1), { op: "unsubscribe", id: 1 });
  stream.subscribe({ view: "latest" }, {});
  assert.equal(now().asked.length, 2);
  page.show(true);
  assert.deepEqual(
    now()
      .asked.slice(2)
      .map((each) => [each.op, each.view]),
    [
      ["subscribe", "heatmap"],
      ["subscribe", "latest"],
    ],
  );
});

test("a subscription that keeps failing is given up with the server's message until something changes", () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  const { stream, now } = world();
  /** @type {string[]} */
  const failed = [];
  stream.on("failed", (words) => failed.push(words));
  stream.subscribe({ view: "heatmap" }, {});
  now().onopen();
  for (let tries = 1; tries <= 8 && now().asked.length === tries; tries += 1) {
    now().says(json(tries, 0, { type: "error", error: "the server failed" }));
    mock.timers.tick(60_000);
  }
  assert.equal(now().asked.length, 5);
  assert.deepEqual(failed, ["the server failed"]);
  stream.resume();
  assert.equal(now().asked.length, 6);
  mock.timers.reset();
});

test("a subscription that the server cannot serve yet is retried", () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  const { stream, now } = world();
  /** @type {string[]} */
  const heard = [];
  const open = stream.subscribe({ view: "heatmap" }, { json: (said) => heard.push(said.error) });
  now().onopen();
  now().says(json(1, 0, { type: "error", error: "unknown run" }));
  assert.deepEqual(heard, ["unknown run"]);
  assert.equal(now().asked.length, 1, "an ended subscription is not acknowledged");
  mock.timers.tick(1000);
  assert.deepEqual([now().asked.length, now().asked[1].op, now().asked[1].id], [2, "subscribe", 2]);
  now().says(json(2, 0, { type: "error", error: "unknown run" }));
  open.close();
  mock.timers.tick(60000);
  assert.equal(now().asked.filter((each) => each.op === "subscribe").length, 2);
  mock.timers.reset();
});
