// Asks again and again for what a page shows: each two seconds, while somebody can see it, and less often while the
// service is gone. One round at a time; what was last known stays.

import { get } from "./api.js";

const EVERY_MS = 2000;
const MOST_BACKOFF_MS = 30_000;
const MOST_AT_ONCE = 5;

export class Poller {
  // onChange(): something was answered. onState({down, message, since, next}): the service went, or came back.
  // onRefused(error): the token is no longer taken.
  constructor({ onChange, onState, onRefused }) {
    Object.assign(this, { onChange, onState, onRefused });
    this.known = new Map(); // by key: {path, data, error, round}
    this.queries = () => [];
    this.round = 0;
    this.failures = 0;
    this.answered_ms = Date.now();
    document.addEventListener("visibilitychange", () => this.now());
  }

  // Begins to ask for other things. queries(): [{key, path, every}], every: in rounds, 0 for once.
  watch(queries) {
    this.abort?.abort();
    this.abort = undefined;
    this.known.clear();
    this.queries = queries;
    this.now();
  }

  stop() {
    this.watch(() => []);
    clearTimeout(this.timer);
  }

  // Returns {data, error} of a key, as last answered.
  got(key) {
    return this.known.get(key) ?? {};
  }

  // Asks at once. again: also for what is not due.
  now(again = false) {
    clearTimeout(this.timer);
    if (again) for (const one of this.known.values()) one.round = -Infinity;
    if (document.visibilityState !== "visible" || this.abort) {
      this.soon = this.abort !== undefined;
      return;
    }
    this.#ask();
  }

  async #ask() {
    const due = this.queries().filter((query) => this.#due(query)).slice(0, MOST_AT_ONCE);
    const abort = (this.abort = new AbortController());
    this.soon = false;
    const results = await Promise.all(due.map((query) => this.#one(query, abort.signal)));
    if (abort !== this.abort) return; // the page changed meanwhile
    this.abort = undefined;
    this.round++;
    const refused = results.find((error) => error?.status === 401);
    if (refused) return this.onRefused(refused);
    const gone = results.find((error) => error?.gone);
    this.failures = gone ? this.failures + 1 : 0;
    if (!gone && due.length > 0) this.answered_ms = Date.now();
    const wait = gone ? Math.min(MOST_BACKOFF_MS, EVERY_MS * 2 ** (this.failures - 1)) : EVERY_MS;
    this.onState({ down: Boolean(gone), message: gone?.message ?? "", since_ms: this.answered_ms, next_ms: Date.now() + wait });
    if (due.length > 0) this.onChange();
    this.timer = setTimeout(() => this.now(), this.soon ? 0 : wait);
  }

  #due({ key, path, every = 1 }) {
    const one = this.known.get(key);
    if (!one || one.path !== path || one.error?.gone || one.round === -Infinity) return true;
    return every > 0 && this.round - one.round >= every;
  }

  async #one({ key, path, keep = false }, signal) {
    const before = this.known.get(key);
    const last = before && (before.path === path || keep) ? before.data : undefined;
    try {
      const data = await get(path, signal);
      this.known.set(key, { path, data, round: this.round });
    } catch (error) {
      if (error.name === "AbortError") return null;
      this.known.set(key, { path, data: error.gone ? last : undefined, error, round: this.round });
      return error;
    }
    return null;
  }
}
