// How a table is sampled from: ages, priorities, what each sampler draws, and the steps it draws most.

import { path } from "../api.js";
import { pair } from "../figures.js";
import { DASH, count, digits, plural, share, span } from "../format.js";
import { card, chartSkeleton, choice, empty, hash, known, rows, settled } from "../parts.js";
import { histogram, legend, seconds } from "../plots.js";
import { h } from "../view.js";
import { WORDS } from "../words.js";

const SENTENCES = {
  Uniform: "Draws each stored step with the same chance.",
  Prioritized: "Draws each step by its priority to the power of alpha; learners set priorities.",
  Recency: "Draws newer steps more often.",
  EpisodeUniform: "Draws an episode with the same chance each, then a step of it.",
  Fifo: "Hands out the oldest items first, each so many times.",
  Lifo: "Hands out the newest items first, each so many times.",
};

export function sampling(ctx, name) {
  let chosen = ctx.query.sampler ?? null;
  const at = () => {
    const list = ctx.got("table").data?.samplers ?? [];
    return list.some((one) => one.name === chosen) ? chosen : (list.find((one) => one.kind === "Prioritized" && one.built) ?? list[0])?.name;
  };
  return {
    arrive: (to) => { chosen = to.query.sampler ?? chosen; },
    queries: () => [
      { key: "ages", path: path(["tables", name, "ages"]), every: 5 },
      ...(at() ? [{ key: "sampler", path: path(["tables", name, "samplers", at()]), every: 3 }] : []),
    ],
    view: (row) => [
      ages(ctx.got("ages")),
      h("div", { class: "section-head", key: "samplers" }, h("h2", null, "Samplers"),
        choice(
          "Sampler", at(), row.samplers.map((one) => [one.name, one.name, SENTENCES[one.kind]]),
          (value) => {
            chosen = value;
            ctx.go(["tables", name, "sampling"], { sampler: value }, true);
            ctx.ask(false);
            ctx.redraw();
          }
        )),
      settled(
        ctx.got("sampler"), (data) => one(name, data),
        h(
          "div", { class: "columns" }, card({ title: "Draws" }, chartSkeleton()), card({ title: "Priorities" }, chartSkeleton())
        )
      ),
    ],
  };
}

function ages(got) {
  const waiting = chartSkeleton();
  const quantiles = (data) => (
    data.quantiles?.p50 === null || data.quantiles?.p50 === undefined ? "" : `Half of the stored steps are younger than ${span(data.quantiles.p50)}, a tenth is older than ${span(data.quantiles.p90)}, the oldest is ${span(data.quantiles.p100)} old.`
  );
  const none = (text) => empty(text);
  return h("div", { class: "columns", key: "ages" },
    card({ title: "Age of what is stored", hint: WORDS.age_stored, key: "stored", sub: got.data && quantiles(got.data) },
      settled(
        got,
        ({ stored, steps }) => (steps > 0 && stored.share.length > 0 ? histogram({ key: "stored", edges: stored.edges_s, write: seconds, stamp: stored, series: [{ name: "Stored steps", values: stored.share, tone: "s0" }] }) : none("Nothing is stored")),
        waiting
      )),
    card({
      title: "Age of what is sampled", hint: WORDS.age_sampled, key: "sampled",
      sub: "In steps behind the newest, since the service started.",
    },
      settled(
        got,
        ({ sampled }) => (sampled.counts.some((many) => many > 0) ? histogram({ key: "sampled", edges: sampled.edges_steps, open: sampled.counts.length >= sampled.edges_steps.length, write: compact, percent: false, stamp: sampled, series: [{ name: "Sampled items", values: sampled.counts, tone: "s0" }] }) : none("Nothing was sampled since the service started")),
        waiting
      )));
}

const compact = (edge) => (
  edge >= 1e6 ? `${digits(edge / 1e6, 2)} M` : edge >= 1e4 ? `${digits(edge / 1e3, 2)} k` : count(edge)
);

function one(table, data) {
  const options = Object.entries(data.options ?? {}).filter(([, value]) => value !== null).map(
    ([name, value]) => `${name} ${Array.isArray(value) ? value.join(", ") : value}`
  ).join(", ");
  const facts = [
    SENTENCES[data.kind] ?? "", options && `Options: ${options}.`,
    data.available !== null && data.available !== undefined && `${plural(data.available, "item")} can be handed out now.`,
    !data.built && "Nobody has drawn from it or updated it yet.",
  ].filter(Boolean).join(" ");
  return h("div", { class: "stack", key: `sampler-${data.name}` },
    h("p", { class: "lead", title: WORDS.built }, h("strong", null, data.name), ` (${data.kind}). ${facts}`),
    h("div", { class: "columns" },
      card(
        { title: "Ages drawn", hint: WORDS.draws, key: "draws" },
        data.draws ? draws(data) : empty(
          "Not shown",
          /Fifo|Lifo/.test(data.kind) ? "Drawing from a queue takes items out, so the page does not try." : "Drawing now would build the sampler's structure; looking changes nothing."
        )
      ),
      card(
        { title: "Priorities", hint: WORDS.priority, key: "priorities" },
        data.priorities ? priorities(data) : empty(
          "No priorities",
          data.kind === "Prioritized" ? "No priority was set yet: all steps are alike." : "This kind of sampler has none."
        )
      )),
    data.top.length > 0 && card({
      title: "Steps drawn most", hint: WORDS.probability,
      sub: "The largest priorities now. A row opens the episode at that step.", key: "top",
    }, rows({
      caption: "Steps with the largest priorities", list: data.top, key: (step) => String(step.position),
      columns: [
        {
          label: "Step", main: true,
          cell: (step) => h(
            "a", { href: hash(["episodes", table, String(step.episode_id)], { t: step.t }) },
            `Episode ${count(step.episode_id)}, step ${count(step.t)}`
          ),
        },
        { label: "Position", number: true, hint: WORDS.position, cell: (step) => count(step.position) },
        { label: "Priority", number: true, hint: WORDS.priority, cell: (step) => digits(step.priority, 4) },
        { label: "Probability", number: true, hint: WORDS.probability, cell: (step) => digits(step.probability) },
        {
          label: "Of uniform", number: true, hint: "How many times as often as with uniform draws.",
          cell: (step) => (data.draws?.probability?.uniform ? `${digits(step.probability / data.draws.probability.uniform)}×` : known(DASH, "Not known without draws.")),
        },
      ],
    })));
}

function draws({ draws: { age_edges_s, drawn_share, stored_share, probability } }) {
  return [
    legend([{ name: "Drawn", tone: "s0" }, { name: "Stored", tone: "s1" }]),
    histogram({
      key: "draws", edges: age_edges_s, write: seconds, stamp: drawn_share,
      series: [{ name: "Drawn", values: drawn_share, tone: "s0" }, { name: "Stored", values: stored_share, tone: "s1" }],
    }),
    h(
      "dl", { class: "pairs" },
      [
        ["Least probability", probability.min], ["Median", probability.p50], ["Most", probability.max],
        ["If uniform", probability.uniform],
      ].map(([label, value]) => pair(label, digits(value), WORDS.probability))
    ),
  ];
}

function priorities({ priorities: { edges, share: shares, zero_share, total, largest, alpha } }) {
  return [
    legend([{ name: "Stored steps by priority", tone: "s0" }]),
    histogram({ key: "priorities", edges, stamp: shares, series: [{ name: "Stored steps", values: shares, tone: "s0" }] }),
    h("dl", { class: "pairs" },
      pair("Never drawn", share(zero_share), "Share of stored steps whose priority is 0."), pair(
        "Alpha", digits(alpha), "The exponent: 0 makes all steps alike, 1 draws in proportion."
      ),
      pair(
        "Sum", digits(total, 4), "Sum over all steps of priority to the power of alpha."
      ), pair("Largest", digits(largest, 4), "Largest priority to the power of alpha.")),
  ];
}
