// How the store lies on disk: room, segments, commits, checks, copies.

import { compact, makeSnapshot, startScrub } from "../actions.js";
import { disk, pair } from "../figures.js";
import { DASH, ago, bytes, count, plural, share, span, when } from "../format.js";
import { bar, button, card, empty, hash, known, pill, rows, settled, skeleton } from "../parts.js";
import { histogram, legend, seconds } from "../plots.js";
import { h } from "../view.js";
import { WHY, WORDS } from "../words.js";

export function storage(ctx) {
  const shown = {};
  const may = ctx.session.may.act;
  return {
    title: "Storage",
    queries: () => [{ key: "storage", path: "storage" }],
    view: () => settled(ctx.got("storage"), (data) => {
      const list = data.tables.filter((one) => !ctx.table || one.name === ctx.table);
      return [
        h("div", { class: "columns", key: "disk" }, disk(data.disk), scrub(data.scrub)),
        h("div", { class: "columns", key: "kept" }, snapshots(data), quarantine(data)),
        list.map(tableCard),
        list.length === 0 && card(
          { title: "Segments", key: "segments" }, empty("No tables yet", "Each table has its own segments.")
        ),
      ];
    }, [skeleton(4), skeleton(4)]),
  };

  function scrub(data) {
    const state = data.running ? pill("accent", "Running") : pill(
      "off", "Off", "It was turned off in the settings, or there is nothing to read."
    );
    return card({
      title: "Scrub", hint: WORDS.scrub, key: "scrub", actions: may && button("Scrub now…", () => startScrub(ctx.ask)),
    },
      h(
        "p", { class: "bar-line" }, state,
        h(
          "span", null,
          data.whole_bytes > 0 ? `${share(data.done_bytes / data.whole_bytes)} of this round: ${bytes(data.done_bytes)} of ${bytes(data.whole_bytes)}` : "Nothing to read now"
        )
      ),
      bar({
        parts: [{ share: data.whole_bytes > 0 ? data.done_bytes / data.whole_bytes : 0, tone: "accent" }],
        label: `${bytes(data.done_bytes)} of ${bytes(data.whole_bytes)} of this round`,
      }),
      h("dl", { class: "pairs" }, pair("Rounds finished", count(data.rounds), "Since the service started."), pair(
        "Damaged chunks found", h("span", { class: data.damaged > 0 ? "bad" : "" }, count(data.damaged)),
        "Since the service started."
      ),
        pair(
          "Last finished",
          known(data.finished_at_s === null ? DASH : ago(Date.now() / 1000 - data.finished_at_s), WHY.never),
          "When a round last came to its end."
        )));
  }

  function snapshots(data) {
    return card({
      title: "Snapshots", hint: WORDS.snapshot, key: "snapshots", sub: data.snapshot_dir === null ? null : data.snapshot_dir,
      actions: may && data.snapshot_dir !== null && button("Make a snapshot…", () => makeSnapshot(data.snapshot_dir, ctx.ask)),
    }, rows({
      caption: "Snapshots", list: data.snapshots, key: (one) => one.name,
      empty: data.snapshot_dir === null ? empty(
        "No directory for snapshots", "The setting snapshot_dir gives one; then they can be made from here."
      ) : empty("No snapshots yet"),
      columns: [
        { label: "Name", main: true, wrap: true, cell: (one) => one.name },
        {
          label: "Made", number: true,
          cell: (one) => h("span", { title: when(one.made_at_s) }, ago(Date.now() / 1000 - one.made_at_s)),
        },
        {
          label: "Size", number: true, hint: "Of its files, most of which it may share with the store.",
          cell: (one) => bytes(one.bytes),
        },
      ],
    }));
  }

  function quarantine(data) {
    const bad = data.tables.filter((one) => one.quarantined_chunks + one.quarantined_segments + one.lost_segments > 0);
    const none = bad.length === 0 && data.quarantined_tables.length === 0;
    return card({ title: "Quarantine", hint: WORDS.quarantine, key: "quarantine" },
      none ? empty("Nothing is damaged", "Damaged chunks, segments and tables would be set aside and listed here.")
        : h("ul", { class: "plain" }, data.quarantined_tables.map((name) => h(
          "li", { key: `t-${name}` }, pill("failing", "Table"), ` ${name} could not be opened and was set aside.`
        )),
          bad.map((one) => h(
            "li", { key: one.name }, pill("warning", "Damage"), " ", h("a", { href: hash(["tables", one.name]) }, one.name),
            `: ${[one.quarantined_chunks > 0 && plural(one.quarantined_chunks, "chunk"), one.quarantined_segments > 0 && plural(one.quarantined_segments, "segment"), one.lost_segments > 0 && `${plural(one.lost_segments, "place")} where segments are gone`].filter(Boolean).join(", ")} set aside.`
          ))));
  }

  function tableCard(one) {
    const state = (shown[one.name] ??= { by: "Segment", down: true });
    const used = one.segments.reduce((sum, segment) => sum + segment.used_bytes, 0);
    const took = (title, hint, data) => h("div", { key: title },
      h("h3", { title: hint }, title),
      h(
        "p", { class: "sub" },
        data.count > 0 ? `${count(data.count)} since the service started; half took at most ${span(data.p50_s)}, 99 of 100 at most ${span(data.p99_s)}.` : "None since the service started."
      ),
      data.count > 0 && histogram({
        key: title, edges: data.edges, open: data.counts.length >= data.edges.length, write: seconds, percent: false,
        size: "low", stamp: JSON.stringify(data.counts), series: [{ name: title, values: data.counts, tone: "s0" }],
      }));
    return card({
      title: one.name, key: `table-${one.name}`, sub: `${plural(one.segments.length, "segment")}, ${bytes(used)} used; ${plural(one.readers, "reader")} of the newest.`,
      actions: may && button("Compact…", () => compact(one.name, ctx.ask)),
    },
    h("div", { class: "columns inner" }, took("Commits", WORDS.commit, one.commit), took("Syncs", WORDS.sync, one.sync)),
    legend([
      { name: "Live chunks", tone: "s0", title: WORDS.live_chunks },
      { name: "Removed", tone: "grey", title: WORDS.live_chunks },
    ]),
    rows({
      caption: `Segments of ${one.name}`, list: one.segments, key: (segment) => segment.name, state, onChange: ctx.redraw, page: 12,
      empty: empty("No segments yet"),
      columns: [
        {
          label: "Segment", main: true, hint: WORDS.segment, sort: (segment) => segment.name,
          cell: (segment) => h("code", null, segment.name),
        },
        {
          label: "State", hint: WORDS.segment,
          cell: (segment) => (segment.sealed ? pill("off", "Sealed") : pill("accent", "Written to")),
        },
        {
          label: "Live of its chunks", hint: WORDS.live_chunks,
          sort: (segment) => (segment.chunks > 0 ? segment.live_chunks / segment.chunks : 0),
          cell: (segment) => h(
            "span", { class: "bar-cell" },
            bar({
              parts: [{ share: segment.chunks > 0 ? segment.live_chunks / segment.chunks : 0, tone: "accent" }],
              label: `${count(segment.live_chunks)} of ${count(segment.chunks)}`,
            }),
            h("span", { class: "quiet" }, `${count(segment.live_chunks)} of ${count(segment.chunks)}`)
          ),
        },
        {
          label: "Used", number: true, hint: "Bytes of its pages.", sort: (segment) => segment.used_bytes,
          cell: (segment) => bytes(segment.used_bytes),
        },
        {
          label: "On disk", number: true, hint: "Bytes that the disk gives it.", sort: (segment) => segment.allocated_bytes,
          cell: (segment) => bytes(segment.allocated_bytes),
        },
        {
          label: "Map", number: true, hint: "The largest that the file may become.", sort: (segment) => segment.map_bytes,
          cell: (segment) => bytes(segment.map_bytes),
        },
      ],
    }));
  }
}
