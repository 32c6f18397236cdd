// How the service was started, for admins.

import { bytes, count, value } from "../format.js";
import { card, empty, known, rows, settled, skeleton } from "../parts.js";
import { h } from "../view.js";

export function configuration(ctx) {
  return {
    title: "Configuration",
    queries: () => (ctx.session.may.log ? [{ key: "configuration", path: "configuration", every: 30 }] : []),
    view: () => settled(ctx.got("configuration"), (data) => [
      card({
        title: "Settings",
        sub: "Of the settings file, the environment and the command line. Secrets are not shown.", key: "settings",
      }, rows({
        caption: "Settings", list: data.settings, key: (one) => one.name, page: 200, empty: empty("No settings"),
        columns: [
          { label: "Name", main: true, cell: (one) => h("code", null, one.name) },
          {
            label: "Value", wrap: true,
            cell: (one) => (one.secret ? h(
              "span", { class: "quiet" }, one.value === null ? "not set" : "set, hidden"
            ) : shown(one.name, one.value)),
          },
        ],
      })),
      h("div", { class: "columns three", key: "more" },
        named("Store", data.store), named("Limits", data.limits), named("Packages", { python: data.python, ...data.packages })),
    ], skeleton(8)),
  };
}

const named = (title, values) => card({ title, key: title }, rows({
  caption: title, list: Object.entries(values ?? {}), key: ([name]) => name, page: 200, empty: empty("Nothing"),
  columns: [
    { label: "Name", main: true, wrap: true, cell: ([name]) => h("code", null, name) },
    { label: "Value", wrap: true, cell: ([name, one]) => shown(name, one) },
  ],
}));

function shown(name, one) {
  if (one === null || one === "" || one === undefined) return known("", "Not set.");
  if (typeof one === "boolean") return one ? "yes" : "no";
  if (typeof one === "number" && /bytes/.test(name)) return h("span", { title: count(one) }, bytes(one));
  if (typeof one === "number" && /port/.test(name)) return String(one);
  return typeof one === "object" ? h("code", null, JSON.stringify(one)) : value(one);
}
