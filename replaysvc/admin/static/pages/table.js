// One table: how it is doing, how it is sampled from, what its columns cost, and how it was made.

import { changeCapacity, changeLimiter, compact, deleteTable } from "../actions.js";
import { path } from "../api.js";
import { columnRows, pair, perInsert, perInsertTile, tableState, WINDOWS } from "../figures.js";
import { DASH, bytes, count, digits, plural, rate, ratio, share, short, words } from "../format.js";
import {
  bar, button, card, chartSkeleton, choice, empty, hash, known, rows, settled, skeleton, tile, tiles,
} from "../parts.js";
import { legend, overTime } from "../plots.js";
import { h } from "../view.js";
import { WHY, WORDS } from "../words.js";
import { sampling } from "./sampling.js";
import { signatureCard } from "./signature.js";

const TABS = [["state", "State"], ["sampling", "Sampling"], ["columns", "Columns"], ["configuration", "Configuration"]];
const tabOf = (args) => (TABS.some(([name]) => name === args[1]) ? args[1] : "state");

export function table(ctx) {
  const name = ctx.args[0];
  let tab = tabOf(ctx.args);
  let seconds = 600;
  const columnState = { by: "Stored", down: true };
  const samplers = sampling(ctx, name);
  const here = ["tables", name];

  return {
    title: name,
    arrive: (to) => {
      if (to.name !== "tables" || to.args[0] !== name) return false;
      tab = tabOf(to.args);
      samplers.arrive(to);
      ctx.ask(false);
      return true;
    },
    queries: () => [
      { key: "table", path: path(here) },
      ...(tab === "state" ? [{ key: "history", path: path(["history"], { table: name, window: seconds }), every: seconds === 600 ? 3 : 15, keep: true }] : []),
      ...(tab === "sampling" ? samplers.queries(ctx.got("table").data) : []),
      ...(tab === "columns" ? [{ key: "columns", path: path([...here, "columns"]), every: 15 }] : []),
    ],
    view: () => settled(ctx.got("table"), (row) => [
      h("div", { class: "page-head", key: "head" },
        h(
          "div", { class: "state-line" }, tableState(row),
          h(
            "span",
            { class: "quiet", title: "The table's own name for ever, also after another table has got its name." }, row.uuid
          )
        ),
        h("div", { class: "page-actions" },
          h("a", { class: "button", href: hash(["episodes", name]) }, "Episodes"),
          ctx.session.may.act && [
            button("Limiter…", () => changeLimiter(row, ctx.ask)), button("Capacity…", () => changeCapacity(row, ctx.ask)),
            button("Compact…", () => compact(name, ctx.ask)), button(
              "Delete…", () => deleteTable(row, () => ctx.go(["tables"])), { kind: "danger-quiet" }
            ),
          ])),
      row.fault && h("p", { class: "banner failing", role: "alert", key: "fault" }, row.fault),
      h(
        "nav", { class: "tabs", "aria-label": "Parts of the table", key: "tabs" },
        TABS.map(([key, text]) => h(
          "a",
          { key, href: hash(key === "state" ? here : [...here, key]), "aria-current": key === tab ? "page" : undefined }, text
        ))
      ),
      h("div", { key: `tab-${tab}` }, { state, sampling: samplers.view, columns, configuration }[tab](row)),
    ], [skeleton(1), skeleton(8, "tiles"), skeleton(5)], h("a", { class: "button", href: "#/tables" }, "All tables")),
  };

  function state(row) {
    return [
      tiles(
        tile({
          label: "Steps", text: short(row.steps), full: count(row.steps), hint: WORDS.steps,
          note: plural(row.stats.chunks, "chunk"),
        }),
        tile({
          label: "Episodes", text: short(row.episodes), full: count(row.episodes), hint: WORDS.episodes,
          note: `${count(row.open_episodes)} open`, href: hash(["episodes", name]),
        }),
        tile({ label: "Steps in", text: rate(row.steps_in_per_s, "steps"), hint: WORDS.steps_in }),
        tile({ label: "Items out", text: rate(row.items_out_per_s, "items"), hint: WORDS.items_out }),
        perInsertTile(row),
        tile({ label: "Cache hits", text: share(row.cache_hit_share), hint: WORDS.cache_hit_share, why: WHY.cache_hit_share }),
        tile({
          label: "On disk", text: bytes(row.disk_bytes), hint: WORDS.disk_bytes, note: plural(row.stats.segments, "segment"),
        }),
        tile({
          label: "Compression", text: ratio(row.ratio), hint: WORDS.ratio, why: WHY.ratio, note: `${bytes(row.raw_bytes)} raw`,
        })),
      h("div", { class: "columns" }, limiter(row), capacity(row)),
      charts(),
      h("div", { class: "columns three" }, removed(row), ended(row), kept(row)),
    ];
  }

  function limiter(row) {
    const { min_steps, samples_per_insert, error_buffer, inserted, sampled } = row.limiter;
    const rule = [`Nothing is sampled before ${plural(min_steps, "step")} ${min_steps === 1 ? "is" : "are"} stored.`];
    if (samples_per_insert !== null) {
      const [low, high] = Array.isArray(error_buffer) ? error_buffer : [
        min_steps * samples_per_insert - error_buffer, min_steps * samples_per_insert + error_buffer,
      ];
      rule.push(
        `For each step inserted, ${plural(perInsert(samples_per_insert), "item")} may be sampled; the lead of inserting, ${count(inserted)} × ${perInsert(samples_per_insert)} − ${count(sampled)} = ${count(inserted * samples_per_insert - sampled)}, stays between ${count(low)} and ${count(high)} items.`
      );
    } else rule.push("Beyond that neither side waits for the other.");
    const side = (title, reason, waiting, waited, who) => h("div", {
      class: `side ${reason ? (waiting > 0 ? "waits" : "shut") : "open"}`,
    },
      h("h3", null, title, h("span", { class: "word" }, reason ? "waits" : "goes on")),
      h("p", null, reason || `Nothing holds ${who} back.`),
      h(
        "p", { class: "quiet", title: WORDS.waiting },
        waiting === 0 ? "Nobody waits now" : `${plural(waiting, "caller")} ${waiting === 1 ? "waits" : "wait"} now`,
        h("span", { title: WORDS.waited }, `, ${waited > 0 ? words(waited) : "no time"} in all`)
      ));
    return card({ title: "Limiter", hint: WORDS.limiter, sub: rule.join(" "), key: "limiter" },
      h("div", { class: "sides" },
        side("Sampling", row.sampling_waits_for, row.waiting.sample, row.waited_s.sample, "learners"),
        side("Inserting", row.inserting_waits_for, row.waiting.insert, row.waited_s.insert, "actors")));
  }

  function capacity(row) {
    const bounds = [
      ["Steps", row.capacity.steps, row.steps, count], ["Bytes", row.capacity.bytes, row.stored_bytes, bytes],
      ["Episodes", row.capacity.episodes, row.episodes, count],
    ];
    return card({
      title: "Capacity", hint: WORDS.capacity, key: "capacity",
      sub: row.capacity.full_share === null ? "No bound: nothing is removed for capacity." : `${share(row.capacity.full_share)} full. Beyond it, the remover “${String(row.config.remover).replaceAll("_", " ")}” makes room.`,
    },
      bounds.map(([label, most, now, write]) => h("div", { class: "bound", key: label },
        h("span", { class: "label" }, label), h(
          "span", { class: "amount" }, most === null ? `${write(now)}, no bound` : `${write(now)} of ${write(most)}`
        ),
        most !== null && bar({ parts: [{ share: now / most, tone: "accent" }], label: `${write(now)} of ${write(most)}` }))));
  }

  function charts() {
    const history = ctx.got("history");
    const pick = choice("Time shown", seconds, WINDOWS, (value) => { seconds = value; ctx.ask(false); ctx.redraw(); });
    const target = ctx.got("table").data?.samples_per_insert_target ?? null;
    return [
      h("div", { class: "section-head", key: "over" }, h("h2", null, "Over time"), pick),
      h("div", { class: "columns", key: "charts" },
        card({
          title: "Steps and items", hint: "Steps committed and items sampled per second.", key: "rates",
        }, legend([{ name: "Steps in", tone: "s0" }, { name: "Items out", tone: "s1" }]),
          settled(
            history,
            (data) => overTime({
              key: "rates", at: data.at_s, suffix: "/s", stamp: data,
              series: [
                { name: "Steps in", values: data.steps_in_per_s, tone: "s0", fill: true },
                { name: "Items out", values: data.items_out_per_s, tone: "s1" },
              ],
            }),
            chartSkeleton()
          )),
        card({ title: "Samples per insert", hint: WORDS.samples_per_insert, key: "spi" }, legend([
          { name: "Measured", tone: "s0" }, target !== null && { name: "Target", tone: "grey", dash: true },
        ].filter(Boolean)),
          settled(
            history,
            (data) => overTime({
              key: "spi", at: data.at_s, stamp: data, target, from0: false,
              series: [{ name: "Samples per insert", values: data.samples_per_insert, tone: "s0" }],
            }),
            chartSkeleton()
          ))),
    ];
  }

  function columns(row) {
    return settled(ctx.got("columns"), (data) => card({
      title: "Columns", key: "columns",
      sub: data.columns.length > 0 ? `From ${plural(Math.max(...data.columns.map((column) => column.chunks ?? 0)), "chunk")} spread evenly over what is stored. The table: ${bytes(row.stored_bytes)} stored, ${bytes(row.raw_bytes)} raw.` : null,
    }, columnRows(
      data.columns, data.columns.reduce((sum, column) => sum + column.stored_bytes, 0), columnState, ctx.redraw, false
    )));
  }

  function configuration(row) {
    const { samplers: bySampler, limiter: _, ...rest } = row.config;
    return [
      signatureCard(row.signature),
      h("div", { class: "columns" },
        card(
          { title: "Options", key: "options" },
          h(
            "dl", { class: "pairs" },
            Object.entries({ ...rest, chunk_steps: rest.chunk_steps ?? `${count(row.chunk_steps)}, chosen from the row size` }).map(([option, one]) => pair(option, one === null ? known("", "Not set: no bound, or the service chooses.") : typeof one === "number" ? digits(one, 15) : String(one)))
          )
        ),
        card({ title: "Samplers", key: "samplers" }, rows({
          caption: "Samplers of the table", list: Object.entries(bySampler ?? {}), key: ([sampler]) => sampler,
          columns: [
            {
              label: "Name", main: true,
              cell: ([sampler]) => h("a", { href: hash([...here, "sampling"], { sampler }) }, sampler),
            },
            {
              label: "Options", wrap: true,
              cell: ([, options]) => h(
                "code", null,
                Object.entries(options).map(([option, one]) => `${option}=${JSON.stringify(one)}`).join("  ")
              ),
            },
          ],
        }))),
    ];
  }
}

const figures = (title, hint, list, why) => card({ title, hint, key: title }, list.every(([, many]) => !many)
  ? empty(why)
  : h("dl", { class: "pairs" }, list.map(([name, many, tip]) => pair(name, count(many), tip))));

const removed = (row) => figures(
  "Steps removed", WORDS.removed_steps,
  [
    ["For capacity", row.removed_steps.capacity, WORDS.capacity],
    ["Deleted", row.removed_steps.deleted, "A caller asked for it."], ["Damaged", row.removed_steps.damaged, WORDS.quarantine],
  ],
  "None since the service started"
);
const ended = (row) => figures(
  "Episodes ended", WORDS.ended_episodes,
  [
    ["Terminated", row.ended_episodes.terminated, WORDS.terminated],
    ["Truncated", row.ended_episodes.truncated, WORDS.truncated],
    ["Lost actor", row.ended_episodes.lost_actor, WORDS.lost_actor],
  ],
  "None since the service started"
);

function kept({ stats, her }) {
  return card({
    title: "Counts", key: "Counts", hint: "Since the service started, or the table was made.",
  }, h("dl", { class: "pairs" },
    pair("Steps ever appended", count(stats.appended_steps_total), "Since the table was made."),
    pair("Items sampled", count(stats.sampled_items_total), "Since the service started."),
    pair("Commits", count(stats.commits_total), WORDS.commit),
    pair("Priorities updated", count(stats.priority_updates_total), WORDS.priority),
    pair(
      "Updates ignored", count(stats.ignored_updates_total),
      "Priorities of steps that were removed by then, or named twice in one call."
    ),
    pair(
      "Hindsight goals",
      her.items > 0 ? `${count(her.relabeled)} of ${count(her.items)}` : known(
        DASH, "No batch was drawn with a hindsight request."
      ),
      WORDS.her
    )));
}
