// The state of the whole service: is it well, what goes in and out, what it costs on disk.

import { path } from "../api.js";
import { columnRows, disk, left, pair, perInsertTile, spiCell, tableState, WINDOWS } from "../figures.js";
import { DASH, byteRate, bytes, count, plural, rate, ratio, share, short, span, words } from "../format.js";
import { icon } from "../icons.js";
import { card, chartSkeleton, choice, empty, hash, known, pill, rows, settled, skeleton, tile, tiles } from "../parts.js";
import { legend, overTime, spark } from "../plots.js";
import { h } from "../view.js";
import { WHY, WORDS } from "../words.js";

const SENTENCES = {
  ok: "Healthy", warning: "Needs a look", failing: "Failing", draining: "Draining: it is being stopped",
};

const LEVELS = { failing: "Failing", warning: "Warning", note: "Note" };

export function overview(ctx) {
  const { table } = ctx;
  let seconds = 600;
  const calls = { by: "Calls", down: true };
  const columns = {};

  return {
    title: "Overview",
    queries: () => [
      { key: "overview", path: "overview" },
      // two seconds more are hardly a pixel of ten minutes, and charts are what costs
      { key: "history", path: path(["history"], { table, window: seconds }), every: seconds === 600 ? 3 : 15, keep: true },
    ],
    view: () => {
      const history = ctx.got("history");
      return settled(ctx.got("overview"), (data) => [
        verdict(data),
        data.tables.length === 0 ? first(data) : [
          figures(data, history.data),
          charts(history),
          tablesCard(data),
        ],
        h("div", { class: "columns", key: "low" },
          disk(data.disk), process(data)),
        data.columns.length > 0 && compression(data),
        callsCard(data),
      ], [skeleton(2, "hero"), skeleton(8, "tiles"), skeleton(5)]);
    },
  };

  function verdict(data) {
    const { status, reasons } = data.verdict;
    return h("section", { class: `verdict ${status}`, "aria-label": "Health", key: "verdict" },
      h("span", { class: "badge" }, icon(status in SENTENCES ? status : "warning")),
      h("div", null,
        h("h2", null, SENTENCES[status] ?? status),
        reasons.length === 0
          ? h(
            "p", null,
            status === "ok" ? (
              data.totals.tables === 0 ? "Ready; no tables yet." : `${plural(data.totals.tables, "table")}, nothing to report.`
            ) : ""
          )
          : h("ul", null, reasons.map((reason) => h("li", { class: reason.level }, pill(
            reason.level, LEVELS[reason.level] ?? reason.level
          ), " ",
            reason.table ? h("a", { href: hash(["tables", reason.table]) }, reason.sentence) : reason.sentence)))),
      h(
        "p", { class: "up", title: `Version ${data.version}, Python ${data.python}` },
        `Up for ${words(data.at_s - data.started_at_s)}`
      ));
  }

  function first(data) {
    return card({ title: "No tables yet", key: "first" },
      empty("Nothing is stored here", "The first actor that writes makes its table. From Python:"),
      h(
        "pre", null,
        `import replay_client\n\nreplay = replay_client.connect("${data.address}")\ntable = replay.create_table("cartpole", replay_client.Signature.from_env(env), exist_ok=True)`
      ));
  }

  function figures(data, history) {
    const line = (name) => (history ? spark(history[name]) : null);
    const row = data.tables.find((one) => one.name === table) ?? (data.tables.length === 1 ? data.tables[0] : null);
    const { totals, rates } = data;
    const of = row ?? totals;
    const flow = row ?? rates;
    return h("div", { key: "figures" }, tiles(
      tile({
        label: "Steps in", text: rate(flow.steps_in_per_s, "steps"), hint: WORDS.steps_in,
        note: table ? null : byteRate(rates.bytes_in_per_s), spark: line("steps_in_per_s"),
      }),
      tile({
        label: "Items out", text: rate(flow.items_out_per_s, "items"), hint: WORDS.items_out,
        note: table ? null : byteRate(rates.bytes_out_per_s), spark: line("items_out_per_s"),
      }),
      row ? perInsertTile(row) : tile({
        label: "Episodes", text: short(totals.episodes), full: count(totals.episodes), hint: WORDS.episodes,
        note: `${count(totals.open_episodes)} open`,
      }),
      tile({
        label: "Cache hits", text: share(of.cache_hit_share), hint: WORDS.cache_hit_share, why: WHY.cache_hit_share,
        note: table ? null : `${bytes(totals.cache_bytes)} of ${bytes(totals.cache_budget_bytes)}`,
        spark: line("cache_hit_share"),
      }),
      table ? tile({ label: "On disk", text: bytes(of.disk_bytes), hint: WORDS.disk_bytes })
        : tile({
          label: "On disk", text: data.disk === null ? DASH : bytes(data.disk.used_bytes), hint: WORDS.disk_used,
          why: "The file system of the store cannot be asked.", note: data.disk === null ? null : left(data.disk),
        }),
      tile({
        label: "Compression", text: ratio(of.stored_bytes > 0 ? of.raw_bytes / of.stored_bytes : null), hint: WORDS.ratio,
        why: WHY.ratio, note: `${bytes(of.raw_bytes)} raw`,
      }),
      tile({
        label: "Steps stored", text: short(of.steps), full: count(of.steps), hint: WORDS.steps,
        note: plural(of.episodes, "episode"), href: hash(table ? ["tables", table] : ["tables"]),
      }),
      table ? tile({ label: "Open episodes", text: count(of.open_episodes), hint: WORDS.open_episodes })
        : tile({
          label: "Lossless fallbacks", text: count(totals.lossless_fallbacks), hint: WORDS.lossless_fallbacks,
          note: "chunk columns",
        })));
  }

  function charts(history) {
    const pick = choice("Time shown", seconds, WINDOWS, (value) => {
      seconds = value;
      ctx.ask(false);
      ctx.redraw();
    });
    const both = (title, hint, unit, inside, outside) => card({ title, hint, sub: table ? `Table ${table}` : null, key: title },
      legend([{ name: inside.name, tone: "s0" }, { name: outside.name, tone: "s1" }]),
      settled(
        history,
        (data) => overTime({
          key: title, at: data.at_s, unit, suffix: "/s", stamp: data,
          series: [
            { ...inside, values: data[inside.field], tone: "s0", fill: true },
            { ...outside, values: data[outside.field], tone: "s1" },
          ],
        }),
        chartSkeleton()
      ));
    const one = (title, hint, field, options) => card({ title, hint, sub: table ? `Table ${table}` : null, key: title },
      settled(
        history,
        (data) => overTime({
          key: title, at: data.at_s, stamp: data, size: "low", series: [{ name: title, values: data[field], tone: "s0" }],
          ...options
        }),
        chartSkeleton()
      ));
    const target = table ? ctx.tables()?.find((row) => row.name === table)?.samples_per_insert_target ?? null : null;
    return h("section", { key: "charts", "aria-label": "Over time" },
      h("div", { class: "section-head" }, h("h2", null, "Over time"), pick),
      h("div", { class: "columns" },
        both(
          "Steps and items", "Steps committed and items sampled per second.", "", { name: "Steps in", field: "steps_in_per_s" },
          { name: "Items out", field: "items_out_per_s" }
        ),
        both(
          "Bytes", "Bytes received and sent by the gRPC door per second.", "bytes",
          { name: "Received", field: "bytes_in_per_s" }, { name: "Sent", field: "bytes_out_per_s" }
        )),
      h("div", { class: "columns three" },
        one("Samples per insert", WORDS.samples_per_insert, "samples_per_insert", { target, from0: false }),
        one("Cache hit share", WORDS.cache_hit_share, "cache_hit_share", { scale: 100, unit: "%" }),
        one("Disk", WORDS.disk_used, "disk_bytes", { unit: "bytes" })));
  }

  function tablesCard(data) {
    return card({ title: "Tables", key: "tables", actions: h("a", { href: hash(["tables"]) }, "All tables") }, rows({
      caption: "Tables with their rates", list: data.tables, key: (row) => row.name,
      columns: [
        { label: "Table", main: true, cell: (row) => h("a", { href: hash(["tables", row.name]) }, row.name) },
        { label: "State", hint: "Whether the limiter lets samplers and writers go on.", cell: tableState },
        { label: "Steps", number: true, hint: WORDS.steps, cell: (row) => count(row.steps) },
        { label: "In", number: true, hint: WORDS.steps_in, cell: (row) => rate(row.steps_in_per_s, "steps") },
        { label: "Out", number: true, hint: WORDS.items_out, cell: (row) => rate(row.items_out_per_s, "items") },
        {
          label: "Samples per insert", number: true, hint: `${WORDS.samples_per_insert} Behind the slash: the target.`,
          cell: spiCell,
        },
        {
          label: "Cache hits", number: true, hint: WORDS.cache_hit_share,
          cell: (row) => known(share(row.cache_hit_share), WHY.cache_hit_share),
        },
        { label: "On disk", number: true, hint: WORDS.disk_bytes, cell: (row) => bytes(row.disk_bytes) },
      ],
    }));
  }

  function compression(data) {
    const most = [...data.columns].filter(
      (column) => !table || column.table === table
    ).sort((a, b) => b.stored_bytes - a.stored_bytes);
    const total = most.reduce((sum, column) => sum + column.stored_bytes, 0);
    return card(
      {
        title: "Compression by column", hint: WORDS.ratio, sub: "The bar is what is stored of the column's raw bytes.",
        key: "columns",
      },
      columnRows(most, total, columns, ctx.redraw, !table)
    );
  }

  function callsCard(data) {
    return card({ title: "Calls", hint: "Calls of the gRPC door since the service started.", key: "calls" }, rows({
      caption: "Calls by method", list: data.calls, key: (call) => call.method, state: calls, onChange: ctx.redraw, page: 8,
      empty: empty("No calls yet", "Nobody has called the gRPC door since the service started."),
      columns: [
        { label: "Method", main: true, cell: (call) => call.method, sort: (call) => call.method },
        { label: "Calls", number: true, cell: (call) => count(call.count), sort: (call) => call.count },
        {
          label: "Waits", number: true, hint: WORDS.waits, cell: (call) => h("span", { class: "quiet" }, count(call.waits)),
          sort: (call) => call.waits,
        },
        {
          label: "Errors", number: true, hint: WORDS.errors,
          cell: (call) => h("span", { class: call.errors > 0 ? "warn" : "quiet" }, count(call.errors)),
          sort: (call) => call.errors,
        },
        {
          label: "p50", number: true, hint: WORDS.p50, cell: (call) => known(span(call.p50_s), WHY.quantile),
          sort: (call) => call.p50_s,
        },
        {
          label: "p99", number: true, hint: WORDS.p99, cell: (call) => known(span(call.p99_s), WHY.quantile),
          sort: (call) => call.p99_s,
        },
      ],
    }));
  }
}

function process({ backlog, memory, totals }) {
  return card({ title: "Process", key: "process", hint: "What waits for a commit, and RAM." },
    h("dl", { class: "pairs" },
      pair("Waiting for a commit", plural(backlog.requests, "request"), WORDS.backlog),
      pair("They hold", `${bytes(backlog.held_bytes)} of ${bytes(backlog.limit_bytes)}`, WORDS.backlog),
      pair("Commit under way", backlog.oldest_s > 0 ? `for ${span(backlog.oldest_s)}` : "none", WORDS.commit),
      pair("RAM of its own", bytes(memory.anonymous_bytes), WORDS.memory_anonymous),
      pair("RAM of mapped files", bytes(memory.file_bytes), WORDS.memory_file),
      pair("RAM shared", bytes(memory.shared_bytes), WORDS.memory_shared),
      pair("Steps ever appended", count(totals.appended_steps_total), "Since the tables were made."),
      pair("Items ever sampled", count(totals.sampled_items_total), "Since the service started.")));
}

