// The episodes of a table, the newest first. The list stands still under the reader's hands: newer ones are told of, and
// shown when asked for.

import { deleteEpisodes } from "../actions.js";
import { get, path } from "../api.js";
import { DASH, ago, count, digits, plural, when } from "../format.js";
import { button, card, chartSkeleton, empty, failed, hash, known, pill, rows, settled, skeleton } from "../parts.js";
import { ENDS, episodePoints, legend } from "../plots.js";
import { h } from "../view.js";
import { WHY, WORDS } from "../words.js";

const LIMIT = 50;
const FILTERS = [
  "actor", "end", "min_length", "max_length", "min_return", "max_return", "min_policy_version", "max_policy_version",
];
export const endPill = (end) => pill(end in ENDS ? `end ${ENDS[end].tone}` : "off", ENDS[end]?.name ?? end, WORDS[end]);

export function episodes(ctx) {
  const table = ctx.args[0];
  if (!table) return choose(ctx);
  const here = ["episodes", table];
  const columns = {};
  let query = ctx.query;
  let list = null; // {episodes, next_before_id, query}
  let error = null;
  let asked = 0;
  const chosen = new Map(); // by id: the record
  let points = null;

  async function load() {
    const number = ++asked;
    error = null;
    chosen.clear();
    ctx.redraw();
    try {
      const answer = await get(path(
        ["tables", table, "episodes"], { limit: LIMIT, before_id: query.before, ...filtersOf(query) }
      ));
      if (number === asked) list = answer;
    } catch (failure) {
      if (number === asked) error = failure;
    }
    if (number === asked) ctx.redraw();
  }
  const visit = (more) => ctx.go(here, { ...filtersOf(query), ...more });
  const fresh = () => {
    ctx.ask();
    if (query.before) visit({});
    else load();
  };
  setTimeout(load);

  return {
    title: "Episodes",
    arrive: (to) => {
      if (to.name !== "episodes" || to.args.length !== 1 || to.args[0] !== table) return false;
      query = to.query;
      load();
      return true;
    },
    queries: () => [
      { key: "points", path: path(["tables", table, "episode-points"], { limit: 2000 }), every: 0 },
      { key: "newest", path: path(["tables", table, "episodes"], { limit: 1, ...filtersOf(query) }), every: 3, keep: true },
    ],
    view: () => [plots(), filters(), listCard()],
  };

  function plots() {
    const got = ctx.got("points");
    points = got.data ?? points;
    const open = (id) => ctx.go([...here, String(id)]);
    const plot = (title, field, hint) => card(
      { title, hint, key: field },
      settled(
        { ...got, data: got.data },
        (data) => (data.episode_id.length === 0 ? empty("No episodes yet") : episodePoints({ key: field, points: data, field, label: title, onOpen: open })),
        chartSkeleton()
      )
    );
    return h("section", { key: "plots", "aria-label": "Episodes over time" },
      h(
        "div", { class: "section-head" },
        h("h2", null, `The newest ${got.data ? count(got.data.episode_id.length) : ""} episodes`),
        legend(Object.entries(ENDS).filter(([end]) => got.data?.end.includes(end)).map(([end, { tone, name, symbol }]) => ({ name, tone: `${tone} mark-${symbol}`, title: WORDS[end] })))
      ),
      h("div", { class: "columns" }, plot("Return", "return", WORDS.return), plot("Length", "length", WORDS.length)));
  }

  function filters() {
    const active = FILTERS.filter((name) => query[name]);
    const submit = (event) => {
      event.preventDefault();
      const form = new FormData(event.target);
      query = {};
      ctx.go(
        here,
        Object.fromEntries([...form.entries()].map(([name, text]) => [name, text.trim()]).filter(([, text]) => text !== ""))
      );
    };
    const range = (label, name, hint) => h("div", { class: "field range", title: hint, role: "group", "aria-label": label },
      h("span", { class: "label" }, label),
      ["min", "max"].map((side) => h(
        "input",
        {
          name: `${side}_${name}`, key: side, type: "text", inputmode: "decimal",
          placeholder: side === "min" ? "least" : "most", "aria-label": `${label}, ${side === "min" ? "least" : "most"}`,
          value: query[`${side}_${name}`] ?? "", pattern: "-?[0-9]*([.][0-9]+)?(e-?[0-9]+)?",
        }
      )));
    return h("details", { class: "card filters", key: "filters", open: active.length > 0 || innerWidth > 800 },
      h("summary", null, "Filters", active.length > 0 && h("span", { class: "badge-count" }, plural(active.length, "filter"))),
      h("form", { onsubmit: submit, key: JSON.stringify(query) },
        h(
          "label", { class: "field" }, h("span", { class: "label" }, "Actor"),
          h(
            "input",
            {
              name: "actor", type: "text", value: query.actor ?? "", placeholder: "the whole name", spellcheck: "false",
              autocapitalize: "off",
            }
          )
        ),
        h(
          "label", { class: "field" }, h("span", { class: "label" }, "End"),
          h(
            "select", { name: "end" },
            [["", "any"], ...Object.entries(ENDS).map(([end, { name }]) => [end, name])].map(([end, text]) => h(
              "option", { value: end, key: end, selected: (query.end ?? "") === end }, text
            ))
          )
        ),
        range("Length", "length", WORDS.length), range("Return", "return", WORDS.return), range(
          "Policy version", "policy_version", WORDS.policy_version
        ),
        h(
          "div", { class: "form-actions" }, button("Apply", null, { type: "submit", kind: "primary" }),
          active.length > 0 && h("a", { class: "button", href: hash(here) }, "Clear")
        )));
  }

  function listCard() {
    const newest = ctx.got("newest").data?.episodes[0];
    const newer = newest && list && !query.before && (
      list.episodes.length === 0 || newest.episode_id > list.episodes[0].episode_id
    );
    return card({
      title: "Episodes", key: "list", sub: query.before ? `Before episode ${count(query.before)}.` : "The newest first.",
      actions: [
        newer && button("Newer episodes", fresh, { kind: "accent", key: "newer" }),
        button("Reload", fresh, { key: "reload" }),
        ctx.session.may.act && button(
          chosen.size > 0 ? `Delete ${count(chosen.size)}…` : "Delete…", remove,
          {
            kind: "danger-quiet", disabled: chosen.size === 0, title: chosen.size === 0 ? "Choose episodes first." : undefined,
            key: "delete",
          }
        ),
      ],
    },
    error ? failed(error) : list === null ? skeleton(8) : [
      rows({
        caption: "Episodes, the newest first", list: list.episodes, key: (one) => String(one.episode_id), page: 200, state: columns, onChange: ctx.redraw,
        rowClass: (one) => (chosen.has(one.episode_id) ? "chosen" : ""),
        empty: FILTERS.some((name) => query[name]) ? empty(
          "No episode matches", "Other filters may let some through.",
          h("a", { class: "button", href: hash(here) }, "Clear the filters")
        ) : empty("No episodes yet", "Actors that write to this table make them."),
        columns: [
          ctx.session.may.act && {
            label: "",
            cell: (one) => h(
              "input",
              {
                type: "checkbox", checked: chosen.has(one.episode_id), "aria-label": `Choose episode ${one.episode_id}`,
                onchange: (event) => {
                  if (event.target.checked) chosen.set(one.episode_id, one);
                  else chosen.delete(one.episode_id);
                  ctx.redraw();
                },
              }
            ),
          },
          {
            label: "Episode", main: true,
            cell: (one) => h("a", { href: hash([...here, String(one.episode_id)]) }, count(one.episode_id)),
          },
          { label: "Actor", wrap: true, cell: (one) => known(one.actor, "The writer gave no name.") },
          { label: "End", hint: "How it ended.", cell: (one) => endPill(one.end) },
          { label: "Return", number: true, hint: WORDS.return, cell: (one) => known(digits(one.return, 5), WHY.return) },
          {
            label: "Length", number: true, hint: WORDS.length,
            cell: (one) => [
              count(one.length),
              one.first_step > 0 && h("span", { class: "quiet", title: WORDS.first_step }, ` from ${count(one.first_step)}`),
            ],
          },
          {
            label: "Policy", number: true, hint: WORDS.policy_version,
            cell: (one) => known(one.policy_version < 0 ? DASH : count(one.policy_version), WHY.policy_version),
          },
          {
            label: "Started", number: true, hint: "When its first step was committed.",
            cell: (one) => h("span", { title: when(one.started_at_s) }, ago(Date.now() / 1000 - one.started_at_s)),
          },
        ].filter(Boolean),
      }),
      h("nav", { class: "pager", "aria-label": "Pages of the list", key: "pager" },
        query.before && button("Newest", () => visit({})),
        query.before && button("Back", () => history.back()),
        list.next_before_id !== null && button("Older", () => visit({ before: list.next_before_id }))),
    ]);
  }

  function remove() {
    const ids = [...chosen.keys()];
    deleteEpisodes(table, ids, [...chosen.values()].some((one) => !one.closed), fresh);
  }
}

const filtersOf = (query) => Object.fromEntries(FILTERS.map((name) => [name, query[name]]).filter(([, value]) => value));

function choose(ctx) {
  return {
    title: "Episodes",
    queries: () => [{ key: "tables", path: "tables" }],
    view: () => settled(ctx.got("tables"), ({ tables }) => card({ title: "Of which table?", key: "choose" },
      tables.length === 0 ? empty("No tables yet", "The first actor that writes makes its table.")
        : h(
          "ul", { class: "big-links" },
          tables.map((row) => h(
            "li", { key: row.name },
            h(
              "a", { href: hash(["episodes", row.name], filtersOf(ctx.query)) }, h("strong", null, row.name),
              h("span", { class: "quiet" }, plural(row.episodes, "episode"))
            )
          ))
        ))),
  };
}
