// All tables.

import { spiCell, tableState } from "../figures.js";
import { bytes, count, plural, rate, ratio, share } from "../format.js";
import { bar, card, empty, hash, known, rows, settled, skeleton } from "../parts.js";
import { h } from "../view.js";
import { WHY, WORDS } from "../words.js";

export function tables(ctx) {
  const state = { by: "Table", down: false };
  return {
    title: "Tables",
    queries: () => [{ key: "tables", path: "tables" }],
    view: () => settled(ctx.got("tables"), (data) => card({
      title: data.tables.length === 0 ? "Tables" : plural(data.tables.length, "table"), key: "tables",
    }, rows({
      caption: "Tables", list: data.tables, key: (row) => row.name, state, onChange: ctx.redraw,
      empty: empty("No tables yet", "The first actor that writes makes its table."),
      columns: [
        {
          label: "Table", main: true, sort: (row) => row.name,
          cell: (row) => h("a", { href: hash(["tables", row.name]) }, row.name),
        },
        { label: "State", hint: "Whether the limiter lets samplers and writers go on.", cell: tableState },
        { label: "Steps", number: true, hint: WORDS.steps, sort: (row) => row.steps, cell: (row) => count(row.steps) },
        {
          label: "Episodes", number: true, hint: WORDS.episodes, sort: (row) => row.episodes,
          cell: (row) => [
            h("a", { href: hash(["episodes", row.name]) }, count(row.episodes)),
            h("span", { class: "under", title: WORDS.open_episodes }, `${count(row.open_episodes)} open`),
          ],
        },
        {
          label: "In", number: true, hint: WORDS.steps_in, sort: (row) => row.steps_in_per_s,
          cell: (row) => rate(row.steps_in_per_s, "steps"),
        },
        {
          label: "Out", number: true, hint: WORDS.items_out, sort: (row) => row.items_out_per_s,
          cell: (row) => rate(row.items_out_per_s, "items"),
        },
        {
          label: "Samples per insert", number: true, hint: `${WORDS.samples_per_insert} Behind the slash: the target.`,
          sort: (row) => row.samples_per_insert, cell: spiCell,
        },
        {
          label: "Cache hits", number: true, hint: WORDS.cache_hit_share, sort: (row) => row.cache_hit_share,
          cell: (row) => known(share(row.cache_hit_share), WHY.cache_hit_share),
        },
        {
          label: "Compression", number: true, hint: WORDS.ratio, sort: (row) => row.ratio,
          cell: (row) => known(ratio(row.ratio), WHY.ratio),
        },
        {
          label: "On disk", number: true, hint: WORDS.disk_bytes, sort: (row) => row.disk_bytes,
          cell: (row) => h(
            "span", { class: "bar-cell" }, bytes(row.disk_bytes),
            bar({
              parts: [{
                share: row.disk_bytes / Math.max(1, data.tables.reduce((sum, one) => sum + one.disk_bytes, 0)), tone: "accent",
              }],
              label: `${bytes(row.disk_bytes)} of what all tables take`,
            })
          ),
        },
      ],
    })), skeleton(6)),
  };
}
