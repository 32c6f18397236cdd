// Figures that several pages show.

import { DASH, bytes, count, ratio, share } from "./format.js";
import { bar, card, empty, known, pill, rows, tile } from "./parts.js";
import { h } from "./view.js";
import { WHY, WORDS } from "./words.js";

export const WINDOWS = [[600, "10 min"], [3600, "1 hour"], [86400, "24 hours"]];
export const pair = (name, value, hint) => h("div", { title: hint, key: name }, h("dt", null, name), h("dd", null, value));

export const perInsert = (value) => (value === null ? DASH : new Intl.NumberFormat(
  "en-US", { maximumFractionDigits: 2 }
).format(value));
// Returns a time of days as far as it can be known: the growth of an hour is no better than two digits.
export function about(days) {
  const [many, unit] = days >= 2 ? [days, "days"] : [days * 24, "hours"];
  return many < 2 ? "less than 2 hours" : `about ${count(Number(many.toPrecision(2)))} ${unit}`;
}
export const left = (disk) => `disk ${share(disk.full_share)} full, ${
  disk.days_left === null ? `${bytes(disk.free_bytes)} free` : `full in ${about(disk.days_left)}`}`;

export const perInsertTile = (row) => tile({
  label: "Samples per insert", text: perInsert(row.samples_per_insert), hint: WORDS.samples_per_insert, why: WHY.samples_per_insert,
  note: row.samples_per_insert_target === null ? "no target" : `target ${perInsert(row.samples_per_insert_target)}`,
});

// Returns samples per insert, measured and wanted.
export const spiCell = (row) => [
  known(perInsert(row.samples_per_insert), WHY.samples_per_insert), h("span", { class: "quiet" }, " / "),
  row.samples_per_insert_target === null ? h(
    "span", { class: "quiet", title: WHY.target }, "any"
  ) : perInsert(row.samples_per_insert_target),
];

// Returns in one word whether a table lets samplers and writers go on.
export function tableState(row) {
  if (row.fault) return pill("failing", "Takes no appends", row.fault);
  if (row.sampling_waits_for && row.inserting_waits_for) return pill(
    "warning", "Both sides wait", `${row.sampling_waits_for}; ${row.inserting_waits_for}`
  );
  if (row.sampling_waits_for) return pill(row.waiting.sample > 0 ? "warning" : "off", "Sampling waits", row.sampling_waits_for);
  if (row.inserting_waits_for) return pill(
    row.waiting.insert > 0 ? "accent" : "off", "Inserting waits", row.inserting_waits_for
  );
  return pill("ok", "Open", "Samplers and writers may both go on.");
}

// Returns columns with a bar of what is stored of their raw bytes.
export function columnRows(list, total, state, onChange, withTable) {
  return rows({
    caption: "Columns with their compression", list, key: (column) => `${column.table}/${column.name}`, state, onChange, page: 12,
    empty: empty("No columns yet", "Nothing is stored."),
    columns: [
      {
        label: "Column", main: true, wrap: true, sort: (column) => column.name,
        cell: (column) => [
          h("span", { class: "name" }, column.name), withTable && h("span", { class: "quiet" }, ` ${column.table}`),
        ],
      },
      {
        label: "Type", hint: "The declared dtype and the shape of one step.",
        cell: (column) => h("code", null, `${column.dtype}[${column.shape.map((size) => size ?? "any").join(", ")}]`),
      },
      {
        label: "Stored of raw", hint: WORDS.stored_bytes,
        cell: (column) => h(
          "span", { class: "bar-cell" },
          bar({
            parts: [{ share: column.raw_bytes > 0 ? column.stored_bytes / column.raw_bytes : 0, tone: "accent" }],
            label: `${bytes(column.stored_bytes)} stored of ${bytes(column.raw_bytes)} raw`,
          })
        ),
      },
      {
        label: "Ratio", number: true, hint: WORDS.ratio, sort: (column) => column.ratio,
        cell: (column) => known(ratio(column.ratio), WHY.ratio),
      },
      {
        label: "Stored", number: true, hint: `${WORDS.stored_bytes} Below: of all columns shown.`,
        sort: (column) => column.stored_bytes,
        cell: (column) => [
          bytes(column.stored_bytes), h("span", { class: "quiet" }, total > 0 ? ` ${share(column.stored_bytes / total)}` : ""),
        ],
      },
      {
        label: "Raw", number: true, hint: WORDS.raw_bytes, sort: (column) => column.raw_bytes,
        cell: (column) => bytes(column.raw_bytes),
      },
      {
        label: "Lossless", number: true, hint: WORDS.lossless_share, sort: (column) => column.lossless_share,
        cell: (column) => (column.lossless_share > 0 ? h("span", { class: "warn" }, share(column.lossless_share)) : h(
          "span", { class: "quiet" }, known(share(column.lossless_share), "Nothing was looked at.")
        )),
      },
    ],
  });
}

const LATER = "known after ten minutes";

// Returns the disk of the store as one bar with its figures; data: null if its file system cannot be asked.
export function disk(data) {
  const frame = { title: "Disk", key: "disk", hint: "The file system of the store." };
  if (data === null) return card(frame, empty("Not known", "The file system of the store cannot be asked; the log has the cause."));
  const others = Math.max(0, data.total_bytes - data.free_bytes - data.root_bytes - data.used_bytes);
  const part = (value) => Math.max(0, value) / data.total_bytes;
  const of = (value) => [bytes(value), h("span", { class: "quiet" }, ` ${share(part(value))}`)];
  return card({
    ...frame,
    sub: data.refuses ? h(
      "span", { class: "bad" }, "Appends are refused: the reserve is reached."
    ) : data.days_left === null ? `${share(data.full_share)} full.`
      : `${share(data.full_share)} full; all of it in ${about(data.days_left)} at the growth of late.`,
  },
    bar({
      parts: [
        { share: part(data.used_bytes), tone: "accent" }, { share: part(others), tone: "grey" },
        { share: part(data.root_bytes), tone: "kept" },
      ],
      mark: 1 - part(data.reserve_bytes),
      label: `${bytes(data.used_bytes)} by this store, ${bytes(others)} by others, ${bytes(data.free_bytes)} free of ${bytes(data.total_bytes)}; the mark is the reserve`,
    }),
    h("dl", { class: "pairs" },
      pair("This store", of(data.used_bytes), WORDS.disk_used),
      pair("Of that, set aside", bytes(data.set_aside_bytes), WORDS.disk_set_aside),
      pair("Others", of(others), "All other files of the file system."),
      pair("Kept for root", of(data.root_bytes), WORDS.disk_root),
      pair("Free", of(data.free_bytes), WORDS.disk_free), pair("In all", bytes(data.total_bytes), "The size of the file system."),
      pair("Reserve", bytes(data.reserve_bytes), WORDS.disk_reserve),
      pair(
        "Growth",
        data.growth_bytes_per_day === null ? LATER : `${bytes(Number(data.growth_bytes_per_day.toPrecision(2)))} a day`,
        WORDS.growth
      ),
      pair(
        "Full in",
        data.growth_bytes_per_day === null ? LATER : known(data.days_left === null ? DASH : about(data.days_left), WHY.days_left),
        WORDS.days_left
      )));
}
