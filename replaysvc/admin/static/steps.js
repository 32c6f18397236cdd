// The steps of an episode as they are plotted: fetched a window at a time, only the columns that are shown.

import { get, path } from "./api.js";

const AT_ONCE = 12; // columns in one request
const MOST_STEPS = 1000; // in a window
const MOST_PAGES = 8; // the service reads a page of large steps slowly

// Returns a value as a number, or null where it is none: "nan", "inf" and null.
export function number(value) {
  if (typeof value === "number") return Number.isFinite(value) ? value : null;
  if (typeof value === "boolean") return value ? 1 : 0;
  if (typeof value === "string" && /^-?\d+$/.test(value)) return Number(value);
  return null;
}

export class Steps {
  constructor({ table, id, first, length, page, onChange }) {
    Object.assign(this, { table, id, first, length, onChange });
    this.page = Math.max(1, Math.min(page, MOST_STEPS)); // steps in one request
    this.window = Math.min(MOST_STEPS, this.page * MOST_PAGES); // steps plotted together
    this.columns = new Map(); // by name: {dtype, shape, values, cut} or {error}
    this.note = "";
    this.samplers = null; // by name, or {error}; null: not asked yet
    this.start = -1;
  }

  get stop() {
    return Math.min(this.length, this.start + this.window);
  }

  // Returns the start of the window that has step t.
  windowOf(t) {
    const last = Math.max(this.first, this.length - 1);
    return this.first + Math.floor((Math.min(Math.max(t, this.first), last) - this.first) / this.window) * this.window;
  }

  // Makes sure that the window of step t is there, with these columns.
  async want(t, names, withPriorities) {
    const start = this.windowOf(t);
    if (start !== this.start) {
      this.abort?.abort();
      this.abort = new AbortController();
      this.start = start;
      this.columns.clear();
      this.samplers = null;
      this.asked = false;
    }
    const missing = names.filter((name) => !this.columns.has(name)).slice(0, AT_ONCE);
    const { abort } = this;
    const calls = [];
    if (missing.length > 0) {
      for (const name of missing) this.columns.set(name, {});
      calls.push(this.#columns(start, missing, abort));
    }
    if (withPriorities && !this.asked) {
      this.asked = true;
      calls.push(this.#priorities(start, abort));
    }
    if (calls.length === 0) return;
    await Promise.all(calls);
    if (abort !== this.abort) return;
    this.onChange();
    if (names.some((name) => !this.columns.has(name))) this.want(t, names, withPriorities);
  }

  async #columns(start, names, abort) {
    try {
      for (let at = start; at < this.stop; ) {
        const stop = Math.min(this.stop, at + this.page);
        const answer = await get(this.#path("steps", { column: names, start: at, stop }), abort.signal);
        if (abort !== this.abort) return;
        for (const name of names) this.#add(name, at, answer.columns[name]);
        if (answer.stop <= at) break;
        at = answer.stop;
        this.note = answer.note || this.note;
        if (at < this.stop) this.onChange();
      }
    } catch (error) {
      if (abort !== this.abort || error.name === "AbortError") return;
      for (const name of names) this.columns.set(name, { error });
    }
  }

  // Adds a page to a column. Of observations there is one more than of steps: the next page begins with it again.
  #add(name, at, page) {
    if (!page) {
      this.columns.set(name, { error: new Error("The service sent no such column.") });
      return;
    }
    const before = this.columns.get(name)?.values ?? [];
    this.columns.set(name, { ...page, values: [...before.slice(0, at - this.start), ...page.values] });
  }

  async #priorities(start, abort) {
    const samplers = {};
    try {
      for (let at = start; at < this.stop; ) {
        const answer = await get(this.#path("priorities", { start: at, stop: this.stop }), abort.signal);
        for (const [name, values] of Object.entries(answer.samplers)) (samplers[name] ??= []).push(...values);
        if (answer.stop <= at) break;
        at = answer.stop;
      }
      if (abort === this.abort) this.samplers = samplers;
    } catch (error) {
      if (abort === this.abort && error.name !== "AbortError") this.samplers = { error };
    }
  }

  #path(what, query) {
    return path(["tables", this.table, "episodes", String(this.id), what], query);
  }

  // Returns the value of a column at step t, or undefined.
  at(name, t) {
    return this.columns.get(name)?.values?.[t - this.start];
  }

  close() {
    this.abort?.abort();
  }
}

// Returns what a column has to plot: {lines: [[..]]}, {rows: [[..]]} for colours, each value a number or null.
export function plotted(column, { kind }) {
  const rows = column.values;
  if (column.drawn?.of === rows) return column.drawn; // the same object for the same data: charts compare it
  let drawn;
  if (kind === "scalar") drawn = { lines: [rows.map(number)] };
  else if (kind === "ragged") drawn = { lines: [rows.map((row) => (Array.isArray(row) ? row.length : null))], lengths: true };
  else {
    const flat = rows.map((row) => (Array.isArray(row) ? row.flat(Infinity).map(number) : [number(row)]));
    const width = Math.max(0, ...flat.map((row) => row.length));
    drawn = width <= 8 ? { lines: Array.from({ length: width }, (_, i) => flat.map((row) => row[i] ?? null)) } : { rows: flat };
  }
  column.drawn = { ...drawn, of: rows };
  return column.drawn;
}
