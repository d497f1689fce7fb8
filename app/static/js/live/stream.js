// @ts-check
/** The page's one live connection: subscriptions on a WebSocket that reconnects by itself. */
import { Emitter } from "../emitter.js";
import { MAX_ID } from "../limits.js";
import { decode } from "./frames.js";
import { askStatus, openSocket, waitMs } from "./reconnect.js";

const REFUSED = 1008;
const UNKNOWN = "Your session has ended: open a login link again.";
const MAX_TRIES = 5; // of a subscription on one connection

/** @typedef {import("./frames.js").Frame} Frame */
/**
 * @typedef {Record<string, any>} Query as in docs/live.md, without `op` and `id`; `run` is that of the page if not
 * given
 */
/** @typedef {import("../answers.js").Message} Message */
/** @typedef {import("../answers.js").RowsMessage} RowsMessage */
/**
 * @typedef {{rows?: (message: RowsMessage) => void, frame?: (frame: Frame) => void, json?: (message: Message) =>
 * void}} Handlers
 */
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
    const open = [...this.#open].find((each) => each.id === frame.id);
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
