// One episode: its facts, its pictures with a scrubber, and its columns over the steps.

import { deleteEpisodes } from "../actions.js";
import { path } from "../api.js";
import { pair } from "../figures.js";
import { Film } from "../film.js";
import { DASH, count, digits, shape, value, when } from "../format.js";
import { button, card, empty, failed, hash, known, settled, skeleton } from "../parts.js";
import { Steps } from "../steps.js";
import { h } from "../view.js";
import { WHY, WORDS } from "../words.js";
import { player } from "./player.js";
import { endPill } from "./episodes.js";
import { goals, inOrder, plots } from "./stepplots.js";

const MOST_FIRST = 5;

export function episode(ctx) {
  const [table, id] = ctx.args;
  const here = ["episodes", table, id];
  let film = null;
  let steps = null;
  let made = null; // the record that film and steps are made for
  let shown = new Set();
  let kept;

  function begin(record) {
    const at = Number(ctx.query.t ?? record.first_step) || 0;
    const images = record.columns.filter((column) => column.kind === "image");
    close();
    made = record;
    if (shown.size === 0) {
      const goalNames = Object.values(record.goals ?? {});
      const others = record.columns.filter((column) => column.kind !== "image" && ![
        "reward", "action", "terminated", "truncated",
      ].includes(column.name) && !goalNames.includes(column.name));
      shown = new Set([
        ...record.columns.filter(
          (column) => ["reward", "action"].includes(column.name) || column.name.startsWith("action/")
        ).slice(0, 3),
        ...others
      ].slice(0, MOST_FIRST).map((column) => column.name));
    }
    steps = new Steps({
      table, id, first: record.first_step, length: record.length, page: record.page_steps, onChange: ctx.redraw,
    });
    film = new Film({
      table, id, first: record.first_step, last: Math.max(
        record.first_step, record.length
      ), at, column: images[0]?.name ?? null, onChange: ctx.redraw,
      onMove: () => { load(); keep(); },
    });
    load();
  }

  function load() {
    const { desired, achieved } = made.goals ?? {};
    const wanted = made.columns.map((column) => column.name).filter(
      (name) => shown.has(name) || name === desired || name === achieved
    );
    steps.want(film.at, wanted, made.samplers.length > 0);
  }

  // Keeps the step in the address, so that a link leads back to it; not at every frame.
  function keep() {
    clearTimeout(kept);
    kept = setTimeout(() => ctx.go(here, { t: film.at }, true), 400);
  }

  function close() {
    clearTimeout(kept);
    film?.close();
    steps?.close();
  }

  return {
    title: `Episode ${count(/^\d+$/.test(id) ? id : 0)}`,
    arrive: (to) => {
      if (to.name !== "episodes" || to.args[0] !== table || to.args[1] !== id) return false;
      if (to.query.t !== undefined) film?.move(Number(to.query.t) || 0);
      return true;
    },
    leave: close,
    queries: () => [{ key: "episode", path: path(["tables", table, "episodes", id]), every: 0 }],
    keys: (event) => {
      if (!film || (event.target.closest("button, a, summary") && [" ", "Enter"].includes(event.key))) return;
      const move = {
        ArrowLeft: film.at - (event.shiftKey ? 10 : 1), ArrowRight: film.at + (event.shiftKey ? 10 : 1), Home: film.first,
        End: film.last,
      }[event.key];
      if (move !== undefined) film.move(move);
      else if (event.key === " ") film.play();
      else return;
      event.preventDefault();
    },
    view: () => [
      h("nav", { class: "crumbs", "aria-label": "Where this is", key: "crumbs" }, h(
        "a", { href: hash(["episodes", table]) }, `Episodes of ${table}`
      ), h("span", { "aria-hidden": "true" }, "/"), h("span", null, count(id)),
        h("span", { class: "around" }, neighbour(-1, "Older"), neighbour(1, "Newer"))),
      settled(ctx.got("episode"), (record) => {
        if (record !== made) begin(record);
        const onStep = (t) => film.move(t);
        return [
          facts(record),
          record.length === record.first_step ? card(
            { title: "Steps", key: "none" },
            empty("No steps are stored", "They were removed for capacity, or none is committed yet.")
          )
            : [
              player(film, steps, record, { values: () => values(record) }),
              steps.note && h("p", { class: "banner quiet-banner", key: "note", role: "note" }, steps.note),
              windows(record),
              goals(record, steps, film, onStep),
              chips(record),
              plots(record, steps, film, shown, onStep),
            ],
        ];
      }, [skeleton(3), skeleton(5)]),
    ],
  };

  function neighbour(by, text) {
    const other = Number(id) + by;
    return other >= 0 ? h(
      "a", { href: hash(["episodes", table, String(other)]), title: `Episode ${other}`, key: text }, text
    ) : null;
  }

  function facts(record) {
    const metadata = Object.entries(record.metadata ?? {});
    return card({
      title: "About this episode", key: "facts", sub: endPill(record.end),
      actions: [
        !record.closed && button(
          "More steps?", () => ctx.ask(), { title: "Reads how far the episode has come by now.", key: "more" }
        ),
        ctx.session.may.act && button(
          "Delete…",
          () => deleteEpisodes(table, [record.episode_id], !record.closed, () => ctx.go(["episodes", table])),
          { kind: "danger-quiet", key: "delete" }
        ),
      ],
    },
    h("dl", { class: "pairs" },
      pair(
        "Return", known(digits(record.return, 6), WHY.return), WORDS.return
      ), pair("Length", `${count(record.length)} steps`, WORDS.length),
      pair(
        "Actor",
        record.actor ? h(
          "a", { href: hash(["episodes", table], { actor: record.actor }) }, record.actor
        ) : known(DASH, "The writer gave no name."),
        "Who wrote it."
      ),
      pair(
        "Policy version",
        known(record.policy_version < 0 ? DASH : count(record.policy_version), WHY.policy_version), WORDS.policy_version
      ),
      pair("Started", when(record.started_at_s), "When its first step was committed."),
      record.first_step > 0 && pair("First stored step", count(record.first_step), WORDS.first_step)),
    metadata.length > 0 && h("details", {
      class: "metadata", title: WORDS.metadata, open: metadata.length <= 6,
    }, h("summary", null, "Metadata"),
      h(
        "dl", { class: "pairs" },
        metadata.map(([name, one]) => pair(
          name,
          typeof one === "object" && one !== null ? h(
            "code", null, JSON.stringify(one)
          ) : typeof one === "number" ? digits(one, 12) : String(one)
        ))
      )));
  }

  function windows(record) {
    if (record.length - record.first_step <= steps.window) return null;
    const turn = (start) => film.move(start);
    return h("nav", { class: "pager windows", "aria-label": "Window of steps", key: "windows" },
      button("Earlier", () => turn(steps.start - steps.window), { disabled: steps.start <= record.first_step }),
      h("span", null, `Steps ${count(steps.start)} to ${count(steps.stop - 1)} of ${count(record.length)}`),
      button("Later", () => turn(steps.start + steps.window), { disabled: steps.stop >= record.length }));
  }

  function chips(record) {
    const list = inOrder(record.columns).filter((column) => column.kind !== "image");
    const toggle = (name) => {
      if (shown.has(name)) shown.delete(name);
      else shown.add(name);
      load();
      ctx.redraw();
    };
    return h("div", {
      class: "chips", role: "group", "aria-label": "Columns shown", key: "chips",
    }, h("span", { class: "label" }, "Columns"),
      list.map((column) => h(
        "button",
        {
          type: "button", key: column.name, class: `chip ${shown.has(column.name) ? "on" : ""}`,
          "aria-pressed": shown.has(column.name) ? "true" : "false", title: `${column.dtype}, ${shape(column.shape)}`,
          onclick: () => toggle(column.name),
        },
        column.name
      )));
  }

  function values(record) {
    const { at } = film;
    const list = inOrder(record.columns).filter((column) => steps.columns.has(column.name));
    const priorities = Object.entries(steps.samplers?.error ? {} : (steps.samplers ?? {}));
    const failure = list.map((column) => steps.columns.get(column.name).error).find(Boolean);
    return [
      failure && failed(failure),
      h("dl", { class: "values" },
        list.map((column) => {
          const one = steps.at(column.name, at);
          const why = at >= record.length ? "There is only the final observation here." : "It is on its way.";
          return pair(column.name, known(one === undefined ? DASH : value(Array.isArray(one) ? one.flat(Infinity) : one), why));
        }),
        priorities.map(([name, list_]) => pair(
          `priority, ${name}`,
          known(digits(list_[at - steps.start], 4), "The step cannot be sampled, or has no priority."), WORDS.priority
        ))),
    ];
  }
}
