// The steps of an episode as they are plotted: fetched a window at a time, only the columns that are shown.

import { get, path } from "./api.js";

const AT_ONCE = 12; // columns in one request

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
    this.page = Math.max(1, Math.min(page, 1000));
    this.columns = new Map(); // by name: {dtype, shape, values, cut} or {error}
    this.note = "";
    this.samplers = {};
    this.loading = false;
    this.start = -1;
  }

  get stop() {
    return Math.min(this.length, this.start + this.page);
  }

  // Returns the start of the window that has step t.
  windowOf(t) {
    const last = Math.max(this.first, this.length - 1);
    return this.first + Math.floor((Math.min(Math.max(t, this.first), last) - this.first) / this.page) * this.page;
  }

  // Makes sure that the window of step t is there, with these columns.
  async want(t, names, withPriorities) {
    const start = this.windowOf(t);
    if (start !== this.start) {
      this.abort?.abort();
      this.abort = new AbortController();
      this.start = start;
      this.columns.clear();
      this.samplers = {};
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
      const answer = await get(path(["tables", this.table, "episodes", String(this.id), "steps"], { column: names, start, stop: this.stop }), abort.signal);
      if (abort !== this.abort) return;
      this.note = answer.note ?? "";
      for (const name of names) this.columns.set(name, answer.columns[name] ?? { error: new Error("The service sent no such column.") });
    } catch (error) {
      if (abort !== this.abort || error.name === "AbortError") return;
      for (const name of names) this.columns.set(name, { error });
    }
  }

  async #priorities(start, abort) {
    try {
      const answer = await get(path(["tables", this.table, "episodes", String(this.id), "priorities"], { start, stop: this.stop }), abort.signal);
      if (abort === this.abort) this.samplers = answer.samplers;
    } catch (error) {
      if (abort === this.abort && error.name !== "AbortError") this.samplers = { error };
    }
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
