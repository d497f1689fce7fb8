/** The page's one live connection: subscriptions on a WebSocket that reconnects by itself. docs/live.md has the table
 * of bytes of its binary frames. */
import { MAX_ID } from "../limits.js";
import { Emitter } from "../state.js";

/** @import { Message, RowsMessage } from "../answers.js" */

const HEADER = 32;
const KINDS = /** @type {const} */ (["", "snapshot", "delta", "json"]);

/**
 * @typedef {object} Frame
 * @property {"" | "snapshot" | "delta" | "json"} kind
 * @property {number} id the subscription
 * @property {number} sequence
 * @property {number} time_s when the server sent it, since 1970
 * @property {Message | null} json the message; null in frames of values
 * @property {number} k columns
 * @property {number} n rows
 * @property {Float32Array} values column by column
 * @property {Uint32Array} bits the same values as integers: missing samples are MISSING (canvas/columns.js)
 * @property {Float64Array} first the first step of each column
 * @property {Float64Array} last
 * @property {Uint32Array} nonfinite how many rows of each column were not finite
 */

/** @param {ArrayBuffer} buffer @returns {Frame} */
export function decode(buffer) {
  const head = new DataView(buffer);
  const kind = KINDS[head.getUint8(0)];
  if (!kind)
    throw new Error(`unknown frame kind ${head.getUint8(0)}: the server has a different version. Reload the page`);
  const about = {
    kind,
    id: head.getUint16(2, true),
    sequence: head.getUint32(4, true),
    time_s: head.getFloat64(24, true),
  };
  const [k, n] = [head.getUint32(16, true), head.getUint32(20, true)];
  const steps = HEADER + Math.ceil((k * n) / 2) * 8;
  return {
    ...about,
    k,
    n,
    json: kind === "json" ? JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, HEADER))) : null,
    values: new Float32Array(buffer, HEADER, k * n),
    bits: new Uint32Array(buffer, HEADER, k * n),
    first: new Float64Array(buffer, steps, k),
    last: new Float64Array(buffer, steps + 8 * k, k),
    nonfinite: new Uint32Array(buffer, steps + 16 * k, k),
  };
}

const FIRST_WAIT_MS = 500;
const MAX_WAIT_MS = 8000;
const SPREAD = 0.25; // so that the tabs of a server that comes back do not come all at once

/** How long to wait before the next attempt. Pure.
 * @param {number} failed attempts so far @param {number} chance 0 to 1 */
export function waitMs(failed, chance) {
  return Math.min(MAX_WAIT_MS, FIRST_WAIT_MS * 2 ** failed) * (1 + SPREAD * (2 * chance - 1));
}

function openSocket() {
  const address = new URL("api/v1/socket", document.baseURI);
  address.protocol = address.protocol.replace("http", "ws");
  return new WebSocket(address);
}

/** The status of a plain request: 401 if the server wants a token, 0 if it doesn't answer. */
async function askStatus() {
  try {
    return (await fetch("api/v1/runs?limit=1", { headers: { Accept: "application/json" } })).status;
  } catch {
    return 0;
  }
}

const REFUSED = 1008;
const UNKNOWN = "Your session has ended: open a login link again.";
const MAX_TRIES = 5; // of a subscription on one connection

/** @typedef {Record<string, any>} Query as in docs/live.md, without `op` and `id`; `run` is that of the page if not
 * given */
/** @typedef {{rows?: (message: RowsMessage) => void, frame?: (frame: Frame) => void, json?: (message: Message) =>
 * void}} Handlers */
/** @typedef {{id: number, sequence: number, failed: number, query: Query, handlers: Handlers}} Open */

/** Emits "state" when it changes: connecting, open, waiting (until `retryAt`), or refused (`why` says what to do), and
 * "failed" with the server's words when it gives up a subscription. */
export class Stream extends Emitter {
  /** @type {"connecting" | "open" | "waiting" | "refused"} */
  state = "connecting";
  /** The time of the next attempt, as in Date.now(). @type {number | null} */
  retryAt = null;
  /** Why the server refuses a connection. */
  why = "";
  /** @type {WebSocket | null} */
  #socket = null;
  /** @type {Set<Open>} */
  #open = new Set();
  #failed = 0;
  #ids = 0;
  /** @type {any} */
  #timer = null;

  /** @param {{connect?: () => WebSocket, page?: any, chance?: () => number, allowed?: () => Promise<number>}} [world]
   * given by tests */
  constructor({ connect = openSocket, page = globalThis.document, chance = Math.random, allowed = askStatus } = {}) {
    super();
    this.connect = connect;
    this.page = page;
    this.chance = chance;
    this.allowed = allowed;
    page?.addEventListener("visibilitychange", () => (page.hidden ? this.#quiet() : this.#wake()));
    globalThis.addEventListener?.("online", () => this.retry());
    globalThis.addEventListener?.("pageshow", (/** @type {any} */ event) => event.persisted && this.retry());
  }

  /** @param {Query} query @param {Handlers} handlers `rows` come before a snapshot; `json` gets all other messages
   * @returns {{readonly id: number, change: (query: Query) => void, close: () => void}} */
  subscribe(query, handlers) {
    /** @type {Open} */
    const open = { id: 0, sequence: 0, failed: 0, query, handlers };
    this.#open.add(open);
    if (this.#socket === null && this.#timer === null) this.#connect();
    else this.#begin(open);
    return {
      get id() {
        return open.id;
      },
      change: (next) => {
        open.query = next;
        this.#restart(open);
      },
      close: () => {
        this.#end(open);
        this.#open.delete(open);
      },
    };
  }

  /** Begins subscriptions again that were given up. */
  resume() {
    for (const open of this.#open) if (open.failed >= MAX_TRIES) this.#restart(open);
  }

  /** Reconnects at once. */
  retry() {
    if (this.#socket !== null) return;
    this.#failed = 0;
    clearTimeout(this.#timer);
    this.#connect();
  }

  /** @param {Open} open */
  #restart(open) {
    this.#end(open);
    open.failed = 0;
    this.#begin(open);
  }

  /** Each subscription gets a new number, so frames still on their way to an old one are ignored. @param {Open} open */
  #begin(open) {
    if (this.state !== "open" || this.page?.hidden) return;
    this.#ids = (this.#ids % MAX_ID) + 1; // 0 is none
    open.id = this.#ids;
    open.sequence = 0;
    const run = open.query.run ?? this.page?.body?.dataset?.run;
    this.#send({ op: "subscribe", id: open.id, ...open.query, ...(run ? { run } : {}) });
  }

  /** @param {Open} open */
  #end(open) {
    if (this.state === "open" && open.id) this.#send({ op: "unsubscribe", id: open.id });
    open.id = 0;
  }

  #quiet() {
    for (const open of this.#open) this.#end(open);
  }

  #wake() {
    if (this.state !== "open") this.retry();
    else for (const open of this.#open) if (!open.id) this.#begin(open);
  }

  /** @param {Record<string, unknown>} request */
  #send(request) {
    this.#socket?.send(JSON.stringify(request));
  }

  #connect() {
    this.#timer = null;
    this.retryAt = null;
    this.#become("connecting");
    const socket = this.connect();
    this.#socket = socket;
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      this.#become("open");
      for (const open of this.#open) this.#begin(open);
    };
    socket.onmessage = (event) => this.#hear(event.data);
    socket.onclose = (event) => this.#lose(event);
  }

  /** @param {ArrayBuffer} data */
  #hear(data) {
    this.#failed = 0;
    const frame = decode(data);
    const open = [...this.#open].find((subscription) => subscription.id === frame.id);
    if (!open) {
      if (frame.json?.type === "error") console.warn(frame.json.error);
      return;
    }
    if (frame.sequence > open.sequence + 1) {
      // A gap: a proxy lost a message. A new snapshot contains everything.
      this.#end(open);
      this.#begin(open);
      return;
    }
    open.sequence = Math.max(open.sequence, frame.sequence);
    if (frame.json?.type === "error") this.#again(open, frame.json.error);
    else open.failed = 0;
    try {
      tell(open.handlers, frame);
    } finally {
      if (open.id) this.#send({ op: "ack", id: frame.id, sequence: frame.sequence });
    }
  }

  /** Retries a subscription that the server refused or dropped: a restarted server may not know the run yet.
   * Gives up after several attempts, until the query changes, the page is opened again, or the run has news.
   * @param {Open} open @param {string} words */
  #again(open, words) {
    open.id = 0;
    open.failed += 1;
    if (open.failed === MAX_TRIES) return this.emit("failed", words);
    setTimeout(() => this.#open.has(open) && !open.id && this.#begin(open), waitMs(open.failed, this.chance()));
  }

  /** @param {CloseEvent} event */
  async #lose(event) {
    this.#socket = null;
    for (const open of this.#open) open.id = open.failed = 0;
    const wait = waitMs(this.#failed, this.chance());
    this.#failed += 1;
    this.retryAt = Date.now() + wait;
    this.#timer = setTimeout(() => this.#connect(), wait);
    this.#become("waiting");
    // The browser doesn't say why a handshake failed; a plain request does.
    const status = await this.allowed();
    if (this.state !== "waiting" || (status !== 401 && event.code !== REFUSED)) return;
    clearTimeout(this.#timer);
    this.#timer = null;
    this.retryAt = null;
    this.why =
      status === 401
        ? UNKNOWN
        : `The server closed the connection: ${event.reason || "invalid request"}. Reload the page.`;
    this.#become("refused");
  }

  /** @param {Stream["state"]} state */
  #become(state) {
    this.state = state;
    this.emit("state", state);
  }
}

/** @param {Handlers} handlers @param {Frame} frame */
function tell(handlers, frame) {
  if (frame.json === null) handlers.frame?.(frame);
  else if (frame.json.type === "rows") handlers.rows?.(frame.json);
  else handlers.json?.(frame.json);
}
