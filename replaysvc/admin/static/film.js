// The step that is looked at: moving it, playing, and the pictures of image columns, which are fetched ahead.

import { path, picture } from "./api.js";

const KEPT = 240; // pictures
const AHEAD = 8;
const AT_ONCE = 3;

export class Film {
  // first, last: the steps that can be looked at. onChange(): something to show has changed. onMove(t): the step has changed.
  constructor({ table, id, first, last, at, column, onChange, onMove }) {
    Object.assign(this, { table, id, first, last, column, onChange, onMove });
    this.at = Math.min(last, Math.max(first, at));
    this.plane = 0;
    this.planes = 1;
    this.perSecond = 15;
    this.playing = false;
    this.frames = new Map(); // by t: {url} or {error}
    this.loading = new Set();
    this.strip = null;
    this.abort = new AbortController();
    this.show();
    this.loadStrip();
  }

  get frame() {
    return this.frames.get(this.at);
  }

  // Returns the frame to show now: that of the step, or the last one shown while it is on its way.
  get shown() {
    if (this.frame) this.last_shown = this.frame;
    return this.last_shown;
  }

  move(t) {
    const to = Math.min(this.last, Math.max(this.first, t));
    if (to === this.at) return;
    this.at = to;
    this.show();
    this.onMove(to);
    this.onChange();
  }

  play(on = !this.playing) {
    clearTimeout(this.timer);
    this.playing = on;
    if (on && this.at >= this.last) this.move(this.first);
    if (on) this.#tick();
    this.onChange();
  }

  #tick() {
    this.timer = setTimeout(() => {
      const next = this.at + 1;
      if (document.visibilityState === "visible" && (!this.column || this.frames.has(next) || next > this.last)) {
        if (next > this.last) return this.play(false);
        this.move(next);
      }
      if (this.playing) this.#tick();
    }, 1000 / this.perSecond);
  }

  // Looks at another column, or another plane of it.
  look(column, plane) {
    this.#forget();
    if (column !== this.column) this.planes = 1;
    Object.assign(this, { column, plane });
    this.show();
    this.loadStrip();
    this.onChange();
  }

  show() {
    if (!this.column) return;
    const wanted = [];
    for (
      let t = this.at; t <= Math.min(this.last, this.at + AHEAD); t++
    ) if (!this.frames.has(t) && !this.loading.has(t)) wanted.push(t);
    for (const t of wanted.slice(0, AT_ONCE - this.loading.size)) this.#load(t);
  }

  async #load(t) {
    const { abort, column, plane } = this;
    this.loading.add(t);
    let frame;
    try {
      const { blob, planes } = await picture(
        path(["tables", this.table, "episodes", String(this.id), "image"], { column, t, plane: plane || null }), abort.signal
      );
      if (abort !== this.abort) return;
      this.planes = planes;
      frame = { url: URL.createObjectURL(blob) };
    } catch (error) {
      if (abort !== this.abort) return;
      frame = { error };
    }
    this.loading.delete(t);
    this.frames.set(t, frame);
    for (const [old, { url }] of this.frames) {
      if (this.frames.size <= KEPT) break;
      if (Math.abs(old - this.at) > KEPT / 4) {
        if (url) URL.revokeObjectURL(url);
        this.frames.delete(old);
      }
    }
    this.show();
    if (t === this.at) this.onChange();
  }

  async loadStrip() {
    if (!this.column) return;
    const { abort } = this;
    const count = Math.max(1, Math.min(innerWidth < 700 ? 8 : 20, this.last - this.first + 1));
    try {
      const { blob } = await picture(
        path(
          ["tables", this.table, "episodes", String(this.id), "strip"],
          { column: this.column, start: this.first, count, width: 64 }
        ),
        abort.signal
      );
      if (abort === this.abort) this.strip = { url: URL.createObjectURL(blob), count };
    } catch (error) {
      if (abort === this.abort) this.strip = { error };
    }
    if (abort === this.abort) this.onChange();
  }

  #forget() {
    this.abort.abort();
    this.abort = new AbortController();
    for (const { url } of [...this.frames.values(), this.strip ?? {}]) if (url) URL.revokeObjectURL(url);
    this.frames.clear();
    this.loading.clear();
    this.strip = null;
    this.last_shown = undefined;
  }

  close() {
    clearTimeout(this.timer);
    this.playing = false;
    this.#forget();
  }
}
