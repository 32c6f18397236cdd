// Who writes.

import { path } from "../api.js";
import { DASH, ago, count, rate } from "../format.js";
import { button, card, choice, empty, hash, known, pill, rows, settled, skeleton, tile, tiles } from "../parts.js";
import { h } from "../view.js";
import { WHY, WORDS } from "../words.js";

const STATES = {
  writing: ["ok", "Writing", "It has committed steps of late."], idle: ["off", "Idle", "It is heard of and writes nothing."],
  stale: ["warning", "Stale", "It writes with an old policy, or nothing was heard of it for a while."],
  lost: ["failing", "Lost", "Nothing is heard of it any more."],
};

export function actors(ctx) {
  const state = { by: "Rate", down: true };
  let wanted = "";
  let only = "";
  return {
    title: "Actors",
    queries: () => [{ key: "actors", path: path(["actors"]) }],
    view: () => settled(ctx.got("actors"), (data) => {
      const here = data.actors.filter((actor) => !ctx.table || actor.table === ctx.table);
      const list = here.filter(
        (actor) => (!only || actor.state === only) && actor.name.toLowerCase().includes(wanted.toLowerCase())
      );
      const many = (name) => here.filter((actor) => actor.state === name).length;
      return [
        tiles(
          tile({ label: "Actors", text: count(here.length), hint: "Actors that were heard of since the service started." }),
          tile({ label: "Writing", text: count(many("writing")), hint: STATES.writing[2] }),
          tile({
            label: "Steps in", text: rate(here.reduce((sum, actor) => sum + (actor.steps_per_s ?? 0), 0), "steps"),
            hint: WORDS.actor_rate, note: "sum of the actors",
          }),
          tile({
            label: "Newest policy", text: count(data.newest_policy_version),
            hint: "The newest policy version that the service has seen.", why: "No policy version was given yet.",
          })),
        card({
          title: "Actors", key: "actors", sub: ctx.table ? `Of table ${ctx.table}.` : null,
          actions: [
            h(
              "label", { class: "search" }, h("span", { class: "hidden" }, "Only names with"),
              h(
                "input",
                {
                  type: "search", placeholder: "Only names with…",
                  oninput: (event) => { wanted = event.target.value; ctx.redraw(); },
                }
              )
            ),
            choice(
              "State", only,
              [
                ["", "All"],
                ...Object.entries(STATES).map(([name, [, text, hint]]) => [name, `${text} ${count(many(name))}`, hint])
              ],
              (value) => { only = value; ctx.redraw(); }
            ),
          ],
        }, rows({
          caption: "Actors", list, key: (actor) => JSON.stringify([actor.table, actor.name]), state, onChange: ctx.redraw, page: 50,
          empty: here.length === 0 ? empty(
            "No actors yet", "An actor shows here once it has written, or said that it is alive."
          ) : empty("No actor matches", null, button("Show all", () => { only = ""; ctx.redraw(); })),
          columns: [
            {
              label: "Actor", main: true, wrap: true, sort: (actor) => actor.name,
              cell: (actor) => [
                h(
                  "a", { href: hash(["episodes", actor.table], { actor: actor.name }), title: "Its episodes" },
                  actor.name || "(no name)"
                ),
                h("span", { class: "under" }, actor.sentence),
              ],
            },
            {
              label: "State", hint: data.stale_rule, sort: (actor) => actor.state,
              cell: (actor) => pill(...(STATES[actor.state] ?? ["off", actor.state])),
            },
            !ctx.table && {
              label: "Table", sort: (actor) => actor.table,
              cell: (actor) => h("a", { href: hash(["tables", actor.table]) }, actor.table),
            },
            {
              label: "Rate", number: true, hint: WORDS.actor_rate, sort: (actor) => actor.steps_per_s,
              cell: (actor) => known(rate(actor.steps_per_s, "steps"), "Not measured for actors that write little."),
            },
            {
              label: "Last seen", number: true, hint: WORDS.last_seen, sort: (actor) => actor.last_seen_s,
              cell: (actor) => ago(actor.last_seen_s),
            },
            {
              label: "Policy", number: true, hint: WORDS.policy_version,
              sort: (actor) => (
                actor.policy_version === null || actor.policy_version < 0 ? null : Number(actor.policy_version)
              ),
              cell: (actor) => known(actor.policy_version < 0 ? DASH : count(actor.policy_version), WHY.policy_version),
            },
            {
              label: "Staleness", number: true, hint: WORDS.staleness, sort: (actor) => actor.staleness,
              cell: (actor) => known(count(actor.staleness), WHY.staleness),
            },
            {
              label: "Open", number: true, hint: WORDS.open_episodes, sort: (actor) => actor.open_episodes,
              cell: (actor) => count(actor.open_episodes),
            },
            {
              label: "Steps", number: true, hint: "Steps committed since the service started.", sort: (actor) => actor.steps,
              cell: (actor) => count(actor.steps),
            },
            {
              label: "Episodes", number: true, hint: "Episodes that ended since the service started.",
              sort: (actor) => actor.episodes, cell: (actor) => count(actor.episodes),
            },
          ].filter(Boolean),
        }), here.length > 0 && data.stale_rule && h("p", { class: "note below", key: "stale-rule" }, data.stale_rule)),
      ];
    }, [skeleton(4, "tiles"), skeleton(8)]),
  };
}
