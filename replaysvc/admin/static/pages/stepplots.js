// The columns of an episode over its steps, its priorities, and its goals.

import { count, digits } from "../format.js";
import { card, chartSkeleton, empty, failed } from "../parts.js";
import { heat, legend, overSteps, path } from "../plots.js";
import { plotted } from "../steps.js";
import { h } from "../view.js";
import { WORDS } from "../words.js";

// Returns columns in the order in which one reads them: rewards and actions before the rest.
export function inOrder(columns) {
  const rank = ({ name }) => (name === "reward" ? 0 : name === "action" || name.startsWith("action/") ? 1 : 2);
  return [...columns].sort((a, b) => rank(a) - rank(b));
}

// Returns a card for each column that is shown, and one for priorities.
export function plots(record, steps, film, shown, onStep) {
  const list = inOrder(record.columns).filter((column) => shown.has(column.name) && column.kind !== "image");
  return h(
    "div", { class: "columns plots", key: "plots" }, list.map((column) => columnCard(column, steps, film, onStep)),
    priorities(record, steps, film, onStep)
  );
}

function columnCard(column, steps, film, onStep) {
  const data = steps.columns.get(column.name) ?? {};
  const common = { key: "plot", start: steps.start, head: film.at, onStep };
  let body;
  let names = null;
  let sub = null;
  if (data.error) body = failed(data.error);
  else if (!data.values) body = chartSkeleton();
  else {
    const drawn = plotted(data, column);
    const stop = steps.start + data.values.length - 1;
    if (drawn.rows) {
      sub = `${count(drawn.rows[0]?.length ?? 0)} values${data.cut ? ", the first of more" : ""}, each a line of colours`;
      body = heat({ ...common, stop, values: drawn.rows, stamp: drawn });
    } else {
      const rows = drawn.lines.map((values, i) => ({ name: drawn.lengths ? "length" : drawn.lines.length === 1 ? column.name : `[${i}]`, values, tone: `s${i % 8}` }));
      if (drawn.lengths) sub = "How long the ragged column is at each step";
      if (rows.length > 1) names = legend(rows);
      const whole = /int|bool/.test(column.dtype) || drawn.lengths;
      body = overSteps({
        ...common, stop, rows, stamp: drawn, step: whole, bars: column.name === "reward" && data.values.length <= 400,
      });
    }
  }
  return card({ title: column.name, sub, key: `c-${column.name}`, span: "plot-card", level: "h3" }, names, body);
}

function priorities(record, steps, film, onStep) {
  const { error, ...used } = steps.samplers ?? {};
  const names = Object.keys(used);
  const rows = names.map((name, i) => ({ name, values: used[name], tone: `s${i % 8}` }));
  const unused = record.samplers.filter((name) => !names.includes(name));
  return card({
    title: "Priorities", hint: WORDS.priority, key: "priorities", span: "plot-card", level: "h3",
    sub: names.length > 0 && unused.length > 0 ? `Not in use: ${unused.join(", ")}.` : null,
  },
    rows.length > 1 && legend(rows),
    record.samplers.length === 0 ? empty(
      "No prioritized sampler", "This table was made without one, so no step has a priority."
    )
      : steps.samplers === null ? chartSkeleton() : error ? failed(error)
      : names.length === 0 ? notInUse(unused)
      : overSteps({
        key: "plot", start: steps.start, stop: steps.stop - 1, head: film.at, rows, step: true, stamp: steps.samplers, onStep,
      }));
}

function notInUse(names) {
  const [named, them] = names.length === 1 ? [`The prioritized sampler ${names[0]} is`, "it"]
    : [`The prioritized samplers ${names.join(", ")} are`, "them"];
  return empty("No priorities yet", [
    `${named} there, but nobody has drawn from ${them} or set priorities yet. A learner does so with `,
    h("code", null, `table.sample(…, sampler="${names[0]}")`), " and ", h("code", null, "table.update_priorities(…)"), ".",
  ]);
}

// Returns desired beside achieved goals: their distance over the steps and, in two or more dimensions, the path.
export function goals(record, steps, film, onStep) {
  const { desired, achieved } = record.goals ?? {};
  if (!desired || !achieved) return null;
  const [wanted, reached] = [steps.columns.get(desired), steps.columns.get(achieved)];
  const failure = wanted?.error ?? reached?.error;
  if (failure || !wanted?.values || !reached?.values) return card(
    { title: "Goals", key: "goals" }, failure ? failed(failure) : chartSkeleton()
  );
  const made = measured(wanted, reached);
  const now = made.distance[film.at - steps.start];
  return card({
    title: "Goals", key: "goals", hint: "Stored goals of the episode.",
    sub: typeof now === "number" ? `Distance at this step: ${digits(now, 4)}.` : null,
  },
    h("div", { class: "columns inner" },
      h("div", { key: "distance" }, h("h3", { title: WORDS.goal_distance }, "Distance"),
        overSteps({
          key: "distance", start: steps.start, stop: steps.start + made.distance.length - 1, head: film.at,
          rows: [{ name: "distance", values: made.distance, tone: "s0" }], stamp: made, onStep,
        }),
        h("h3", null, "By dimension"), legend([{ name: "Achieved", tone: "s1" }, { name: "Desired", tone: "s1", dash: true }]),
        overSteps({
          key: "dimensions", start: steps.start, stop: steps.start + made.distance.length - 1, head: film.at, stamp: made,
          onStep,
          rows: made.dimensions.slice(0, 8).flatMap(([a, d], i) => [
            { name: `achieved [${i}]`, values: a, tone: `s${i % 8}` },
            { name: `desired [${i}]`, values: d, tone: `s${i % 8}`, dash: true },
          ]),
        })),
      made.dimensions.length >= 2 && h("div", { key: "path" }, h("h3", null, "Path, first two dimensions"), legend([
        { name: "Achieved", tone: "s0" }, { name: "Desired", tone: "s2" },
      ]),
        path({
          key: "path", achieved: made.reached, desired: made.wanted.length > 0 ? [made.wanted[made.wanted.length - 1]] : [],
          at: film.at - steps.start, stamp: made,
        }))));
}

function measured(wanted, reached) {
  if (reached.measured?.with === wanted) return reached.measured;
  const flat = (column) => plotted(column, { kind: "array" });
  const rowsOf = ({ rows, lines }) => rows ?? (lines[0] ?? []).map((_, i) => lines.map((line) => line[i]));
  const [w, r] = [rowsOf(flat(wanted)), rowsOf(flat(reached))];
  const distance = r.map((row, i) => {
    let sum = 0;
    for (let j = 0; j < row.length; j++) {
      if (row[j] === null || typeof w[i]?.[j] !== "number") return null;
      sum += (row[j] - w[i][j]) ** 2;
    }
    return Math.sqrt(sum);
  });
  const dimensions = Array.from({ length: r[0]?.length ?? 0 }, (_, j) => [r.map((row) => row[j]), w.map((row) => row[j])]);
  reached.measured = { with: wanted, wanted: w, reached: r, distance, dimensions };
  return reached.measured;
}
