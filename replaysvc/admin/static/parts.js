// The pieces that pages are made of.

import { DASH, NARROW, count } from "./format.js";
import { h } from "./view.js";

const MANY = 6; // columns of a table that is set closer where there is little room

// Returns a section with a heading. hint: what it shows, in a sentence; actions: at the right of the heading.
export function card({ title, hint, sub, actions, span = "", key, level = "h2" }, ...children) {
  return h("section", { class: `card ${span}`, key },
    h("header", null,
      h("div", { class: "titles" }, h(level, { title: hint }, title), sub && h("p", { class: "sub" }, sub)),
      actions && h("div", { class: "actions" }, actions)),
    children);
}

// Returns a figure with its name. text: "–" is one that is not known, and why says why.
export function tile({ label, text, hint, why, note, spark, href, full, key, tone = "" }) {
  const unknown = text === DASH;
  const [number, ...unit] = text.split(NARROW);
  return h(href ? "a" : "div", { class: "tile", title: unknown && why ? `${hint} ${why}` : hint, href, key: key ?? label },
    h("span", { class: "label" }, label),
    h(
      "span", { class: `value ${unknown ? "none" : ""} ${tone}`, title: unknown ? why : full }, number,
      unit.length > 0 && h("span", { class: "unit" }, ` ${unit.join(" ")}`)
    ),
    note && h("span", { class: "note" }, note),
    spark);
}

export const tiles = (...children) => h("div", { class: "tiles" }, children);

// Returns a state as a word with a coloured dot.
export const pill = (tone, text, hint) => h(
  "span", { class: `pill ${tone}`, title: hint }, h("span", { class: "dot", "aria-hidden": "true" }), text
);

// Returns text, or an en dash that says why there is none.
export const known = (text, why) => (text === DASH || text === "" || text === null || text === undefined ? h(
  "span", { class: "none", title: why }, DASH, h("span", { class: "hidden" }, why ?? "not known")
) : text);

// Returns a horizontal bar of parts, each a share of the whole with a tone; mark: a share to compare with.
export function bar({ parts, mark, label }) {
  let x = 0;
  return h("svg:svg", { class: "bar", viewBox: "0 0 100 8", preserveAspectRatio: "none", role: "img", "aria-label": label },
    h("svg:rect", { class: "rest", width: 100, height: 8 }),
    parts.map(({ share, tone }) => {
      const width = Math.max(0, Math.min(100 - x, (share ?? 0) * 100));
      x += width;
      return h("svg:rect", { class: `fill ${tone}`, x: (x - width).toFixed(3), width: width.toFixed(3), height: 8 });
    }),
    mark !== undefined && mark !== null && h(
      "svg:rect", { class: "mark", x: (mark * 100 - 0.35).toFixed(3), width: 0.7, height: 8 }
    ));
}

// Returns rows of figures. columns: [{label, hint, cell(row), number, sort(row), main}]; state: {by, down, shown}, kept by the
// page; onChange: after a click on a heading. On a narrow screen each row becomes a block of named values.
export function rows({ caption, columns, list, key, state, onChange, empty, page = 100, rowClass }) {
  if (list.length === 0) return empty;
  let sorted = list;
  const by = state?.by === undefined ? undefined : columns.find((column) => column.label === state.by);
  if (by) {
    const least = (one) => one === null || one === undefined;
    sorted = [...list].sort((a, b) => {
      const [x, y] = [by.sort(a), by.sort(b)];
      if (least(x) || least(y)) return least(x) - least(y);
      return (x < y ? -1 : x > y ? 1 : 0) * (state.down ? -1 : 1);
    });
  }
  const most = state?.shown ?? page;
  const head = (column) => {
    const attributes = { scope: "col", class: column.number ? "number" : undefined, title: column.hint };
    if (!state || !column.sort) return h("th", attributes, column.label);
    const active = state.by === column.label;
    const turn = () => {
      Object.assign(state, active ? { down: !state.down } : { by: column.label, down: Boolean(column.number) });
      onChange();
    };
    return h("th", { ...attributes, "aria-sort": active ? (state.down ? "descending" : "ascending") : undefined },
      h(
        "button", { class: "sort", type: "button", onclick: turn }, column.label,
        h("span", { class: "arrow", "aria-hidden": "true" }, active ? (state.down ? "↓" : "↑") : "")
      ));
  };
  return [
    h("div", { class: "scroller" }, h("table", { class: `rows ${columns.length > MANY ? "many" : ""}` },
      h("caption", { class: "hidden" }, caption),
      h("thead", null, h("tr", null, columns.map(head))),
      h("tbody", null, sorted.slice(0, most).map((row) => h("tr", { key: key(row), class: rowClass?.(row) },
        columns.map((column) => h(
          column.main ? "th" : "td",
          {
            scope: column.main ? "row" : undefined,
            class: `${column.number ? "number" : ""} ${column.wrap ? "wrap" : ""} ${column.wide ? "wide" : ""}`,
            "data-label": column.label || undefined,
          },
          h("div", { class: "cell" }, column.cell(row))
        ))))))),
    sorted.length > most && state && h(
      "button",
      { class: "more", type: "button", onclick: () => { state.shown = most + page; onChange(); } },
      sorted.length - most <= page ? `Show ${count(sorted.length - most)} more` : `Show ${count(page)} more of ${count(sorted.length - most)}`
    ),
  ];
}

// Returns names with values. pairs: [name, value, hint]
export const pairs = (list) => h(
  "dl", { class: "pairs" },
  list.filter(Boolean).map(([name, value, hint]) => h(
    "div", { title: hint, key: name }, h("dt", null, name), h("dd", null, value)
  ))
);

export const skeleton = (lines = 3, kind = "") => h(
  "div", { class: `skeleton ${kind}`, "aria-hidden": "true" }, Array.from({ length: lines }, () => h("span"))
);
export const chartSkeleton = () => h("div", { class: "chart waiting", "aria-hidden": "true" });

export const empty = (title, text, action) => h(
  "div", { class: "empty" }, h("p", { class: "big" }, title), text && h("p", null, text), action
);

export function failed(error, action) {
  const title = error.status === 404 ? "Not found" : error.status === 403 ? "Not for your role" : error.gone ? "Not reachable" : "This could not be read";
  return h("div", { class: "failed", role: "note" }, h("strong", null, title), h("p", null, error.message), action);
}

// Returns what a query has brought: its view, why it failed, or a place for it.
export function settled({ data, error }, view, waiting = skeleton(), action = null) {
  if (data !== undefined) return view(data);
  return error && !error.gone ? failed(error, action) : waiting;
}

export const button = (text, onclick, { kind = "", title, disabled = false, type = "button", key, label } = {}) => h(
  "button", { class: `button ${kind}`, type, onclick, title, disabled, key, "aria-label": label }, text
);

// Returns links or buttons of which one is chosen. choices: [value, text, hint]
export const choice = (label, chosen, choices, onChoose) => h("div", { class: "choice", role: "group", "aria-label": label },
  choices.map(([value, text, hint]) => h(
    "button",
    {
      type: "button", class: value === chosen ? "on" : "", "aria-pressed": value === chosen ? "true" : "false", title: hint,
      onclick: () => onChoose(value), key: String(value),
    },
    text
  )));

export const hash = (parts, query = {}) => {
  const search = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "")).toString();
  return `#/${parts.map((part) => encodeURIComponent(part)).join("/")}${search ? `?${search}` : ""}`;
};
