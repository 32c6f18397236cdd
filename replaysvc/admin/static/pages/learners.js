// Who samples.

import { ago, count, rate, share, span } from "../format.js";
import { bar, card, empty, hash, known, pill, rows, settled, skeleton } from "../parts.js";
import { h } from "../view.js";
import { WORDS } from "../words.js";

const STATES = {
  sampling: ["ok", "Sampling", "It gets batches."], waiting: [
    "warning", "Waiting", "It wants a batch and gets none yet.",
  ], idle: ["off", "Idle", "It has asked for nothing of late."],
};

export function learners(ctx) {
  const state = { by: "Rate", down: true };
  return {
    title: "Learners",
    queries: () => [{ key: "learners", path: "learners" }],
    view: () => settled(ctx.got("learners"), (data) => {
      const list = data.learners.filter((learner) => !ctx.table || learner.table === ctx.table);
      return card({
        title: "Learners",
        sub: `Whoever samples through the gRPC door, by token or connection${ctx.table ? `; of table ${ctx.table}` : ""}.`,
        key: "learners",
      }, rows({
        caption: "Learners", list, key: (learner) => JSON.stringify([
          learner.name, learner.table, learner.sampler,
        ]), state, onChange: ctx.redraw, page: 50,
        empty: empty("No learners yet", "A learner shows here once it has sampled from this service."),
        columns: [
          {
            label: "Learner", main: true, wrap: true, wide: true, sort: (learner) => learner.name,
            cell: (learner) => [
              h("span", { class: "name" }, learner.name), h("span", { class: "under" }, learner.sentence),
              learner.last_wait && learner.state !== "waiting" && h(
                "span", { class: "under", title: "Why it last got nothing." }, `last wait: ${learner.last_wait}`
              ),
            ],
          },
          {
            label: "State", sort: (learner) => learner.state,
            cell: (learner) => pill(...(STATES[learner.state] ?? ["off", learner.state])),
          },
          {
            label: "Table", sort: (learner) => learner.table,
            cell: (learner) => h(
              "a", { href: hash(["tables", learner.table, "sampling"], { sampler: learner.sampler }) },
              `${learner.table}, ${learner.sampler}`
            ),
          },
          {
            label: "Rate", number: true, hint: "Items sampled per second, over the last minute.",
            sort: (learner) => learner.items_per_s,
            cell: (learner) => [
              rate(learner.items_per_s, "items"), h("span", { class: "under" }, rate(learner.batches_per_s, "batches")),
            ],
          },
          {
            label: "A batch takes", number: true, hint: WORDS.learner_mean, sort: (learner) => learner.mean_s,
            cell: (learner) => known(learner.mean_s > 0 ? span(learner.mean_s) : "", "No batch in the last minute."),
          },
          {
            label: "Waiting", number: true, hint: WORDS.waited_share, sort: (learner) => learner.waited_share,
            cell: (learner) => h(
              "span", { class: "bar-cell" }, share(learner.waited_share),
              bar({
                parts: [{ share: learner.waited_share, tone: learner.waited_share > 0.5 ? "warning" : "accent" }],
                label: `${share(learner.waited_share)} of the last minute`,
              })
            ),
          },
          {
            label: "Items", number: true, hint: WORDS.learner_items, sort: (learner) => learner.items,
            cell: (learner) => count(learner.items),
          },
          {
            label: "Last seen", number: true, hint: WORDS.last_seen, sort: (learner) => learner.last_seen_s,
            cell: (learner) => ago(learner.last_seen_s),
          },
        ],
      }));
    }, skeleton(6)),
  };
}
