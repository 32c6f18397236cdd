// The kinds of charts that pages use: over time, over the steps of an episode, histograms, points.

import { chart } from "./charts.js";
import { NARROW, axisTime, byteUnit, count, digits, plain, span } from "./format.js";
import { h } from "./view.js";

const finite = (values) => values.filter((value) => typeof value === "number");

// Returns names with the colour of each.
export function legend(names) {
  return h("ul", { class: "legend" }, names.map(({ name, tone, title, dash }) =>
    h("li", { title }, h("span", { class: `swatch ${tone}${dash ? " dashed" : ""}`, "aria-hidden": "true" }), name)));
}

const toneOf = (colours, tone) => (tone.startsWith("s") && tone.length === 2 ? colours.series[Number(tone[1])] : colours[tone]);

function told(name, values, write) {
  const known = finite(values);
  if (known.length === 0) return `${name}: nothing known`;
  const last = known[known.length - 1];
  return `${name}: last ${write(last)}, least ${write(Math.min(...known))}, most ${write(Math.max(...known))}`;
}

// Returns lines over time. series: [{name, values, tone, dash, fill}]; unit: of the values, "bytes" is written in KiB, MiB, ...;
// suffix: behind each value; target: a level to compare with.
// The unit stands above the axis.
export function overTime({
  key, at, series, unit = "", suffix = "", scale = 1, from0 = true, target = null, size = "", stamp,
}) {
  let shownUnit = unit;
  let divisor = 1 / scale;
  if (unit === "bytes") {
    const largest = Math.max(0, ...series.flatMap((one) => finite(one.values)));
    ({ scale: divisor, unit: shownUnit } = byteUnit(largest));
  }
  const full = `${shownUnit}${suffix}`;
  const write = (value) => `${digits(value / divisor)} ${full}`.trim();
  return [h(
    "p", { class: "axis-unit", "aria-hidden": "true", key: `${key} unit` }, full.trim() === "/s" ? "per second" : full
  ), chart({
    key, size, stamp: [stamp, target, full],
    summary: `Over time. ${series.map((one) => told(one.name, one.values, write)).join(". ")}.`,
    build: (colours) => {
      const x = at.map(axisTime);
      const traces = series.map((one) => ({
        type: "scatter", mode: "lines", name: plain(one.name), x, y: one.values.map((value) => (value === null ? null : value / divisor)),
        line: {
          color: toneOf(colours, one.tone), width: 1.75, dash: one.dash ? "4px,3px" : "solid", shape: "linear",
        }, connectgaps: false,
        fill: one.fill ? "tozeroy" : "none", fillcolor: one.fill ? `${toneOf(colours, one.tone)}22` : undefined,
        hovertemplate: `%{y:,.4~r} ${full}<extra>%{fullData.name}</extra>`,
      }));
      if (target !== null) {
        traces.push({
          type: "scatter", mode: "lines", name: "Target", x: [x[0], x[x.length - 1]], y: [target, target], hoverinfo: "skip",
          line: { color: colours.text, width: 1, dash: "4px,4px" },
        });
      }
      return {
        traces,
        layout: {
          hovermode: "x unified",
          xaxis: {
            type: "date", nticks: 5, tickangle: 0,
            // five ticks within so short a time are less than a minute apart
            tickformat: at.length > 1 && at[at.length - 1] - at[0] < 240 ? "%H:%M:%S" : "%H:%M",
            range: x.length > 1 ? [x[0], x[x.length - 1]] : undefined, hoverformat: "%-d %b, %H:%M:%S",
          },
          yaxis: { rangemode: from0 ? "tozero" : "normal", tickformat: isSmall(traces) ? "~g" : "~s", range: allZero(traces) ? [0, 1] : undefined },
        },
      };
    },
  })];
}

// Whether thousands need no letter; a half would get one, too, as 500m.
const isSmall = (traces) => traces.every((trace) => trace.y.every((value) => value === null || Math.abs(value) < 1000));
const allZero = (traces) => traces.every((trace) => trace.y.every((value) => value === null || value === 0));

// Returns bars between edges, drawn equally wide whatever the edges are. series: [{name, values, tone}].
export function histogram(given) {
  const { key, edges, series, write = (edge) => digits(edge), percent = true, size = "", stamp, open = false } = trimmed(given);
  const n = edges.length - (open ? 0 : 1);
  const label = (i) => (
    i < n - (open ? 1 : 0) || !open ? `${write(edges[i])} to ${write(edges[i + 1])}` : `above ${write(edges[i])}`
  );
  const names = Array.from({ length: n }, (_, i) => label(i));
  const value = (one) => (percent ? `${digits(one * 100)} %` : count(one));
  const best = (values) => values.reduce((most, one, i) => (one > values[most] ? i : most), 0);
  return chart({
    key, size, stamp: [stamp],
    summary: series.map((one) => (one.values.some((v) => v > 0) ? `${one.name}: most lie in ${names[best(one.values)]} (${value(one.values[best(one.values)])})` : `${one.name}: nothing yet`)).join(". "),
    build: (colours) => {
      const every = Math.max(1, Math.ceil(edges.length / 6));
      const ticks = edges.map((_, i) => i).filter((i) => i % every === 0);
      return {
        traces: series.map((one, i) => ({
          type: "bar", name: plain(one.name), x: one.values.map((_, j) => j + 0.5), y: one.values.map(
            (v) => (percent ? v * 100 : v)
          ),
          customdata: names.map(plain), marker: { color: toneOf(colours, one.tone), opacity: i === 0 ? 1 : 0.55 },
          hovertemplate: `%{customdata}: %{y:,.3~r}${percent ? " %" : ""}<extra>%{fullData.name}</extra>`,
        })),
        layout: {
          bargap: 0.12, bargroupgap: 0.04, barmode: "group",
          xaxis: { tickvals: ticks, ticktext: ticks.map((i) => plain(write(edges[i]))), range: [0, n] },
          yaxis: { rangemode: "tozero", ticksuffix: percent ? " %" : "", tickformat: "~s" },
        },
      };
    },
  });
}

// Returns a histogram without the empty bars at both ends.
function trimmed(given) {
  const filled = given.edges.map((_, i) => given.series.some((one) => one.values[i] > 0));
  if (!filled.includes(true)) return given;
  const from = filled.indexOf(true);
  const to = filled.lastIndexOf(true) + 1;
  const open = Boolean(given.open) && to === given.edges.length;
  return {
    ...given, open, edges: given.edges.slice(from, open ? to : to + 1),
    series: given.series.map((one) => ({ ...one, values: one.values.slice(from, to) })),
  };
}

export const seconds = (edge) => span(Number(edge.toPrecision(2))).replace(NARROW, " ");

// Returns lines over the steps of an episode. rows: [{name, values, tone, dash}]; start: the step of the first value.
export function overSteps({ key, start, stop, rows, head, step = false, bars = false, size = "low", stamp, onStep }) {
  const lost = rows.reduce((sum, row) => sum + row.values.filter((value) => typeof value !== "number").length, 0);
  return chart({
    key, size, head, zooms: true, stamp: [stamp, start, stop], onPoint: onStep && ((point) => onStep(Math.round(point.x))),
    summary: `Over steps ${count(start)} to ${count(stop)}. ${rows.slice(0, 8).map((row) => told(row.name, row.values, (value) => digits(value))).join(". ")}.${lost ? ` ${count(lost)} values are not finite and left out.` : ""}`,
    build: (colours) => ({
      traces: rows.map((row) => {
        const y = row.values.map((value) => (typeof value === "number" ? value : null));
        const x = y.map((_, i) => start + i);
        const colour = toneOf(colours, row.tone);
        const hover = { hovertemplate: "%{y:.5~r}<extra>%{fullData.name}</extra>", name: plain(row.name), x, y };
        if (bars) return { type: "bar", marker: { color: colour, line: { width: 0 } }, ...hover };
        return {
          type: "scatter", mode: "lines",
          line: { color: colour, width: 1.5, shape: step ? "hv" : "linear", dash: row.dash ? "4px,3px" : "solid" }, ...hover
        };
      }),
      layout: {
        hovermode: "x unified", bargap: stop - start < 150 ? 0.3 : 0, margin: { b: 24 },
        xaxis: { range: [start - 0.5, Math.max(stop, start + 1) + 0.5], hoverformat: ",d", tickformat: ",d", nticks: 8 },
        yaxis: { nticks: 4, tickformat: "~g" },
      },
    }),
  });
}

// Returns many values of a step as colours: the step goes to the right, values upwards.
export function heat({ key, start, stop, values, head, stamp, onStep }) {
  const width = Math.max(0, ...values.map((row) => row.length));
  return chart({
    key, size: "low", head, zooms: true, stamp: [stamp, start, stop], onPoint: onStep && (
      (point) => onStep(Math.round(point.x))
    ),
    summary: `${count(width)} values of each step, as colours, over steps ${count(start)} to ${count(stop)}.`,
    build: (colours) => ({
      traces: [{
        type: "heatmap", zmid: values.some(
          (row) => row.some((one) => one < 0)
        ) ? 0 : undefined, x0: start, dx: 1, y0: 0, dy: 1, showscale: false, zsmooth: false,
        z: Array.from({ length: width }, (_, j) => values.map((row) => (typeof row[j] === "number" ? row[j] : null))),
        colorscale: [[0, colours.series[1]], [0.5, colours.card], [1, colours.accent]],
        hovertemplate: "step %{x:,d}, value %{y}: %{z:.5~r}<extra></extra>",
      }],
      layout: {
        margin: { b: 24 }, xaxis: { range: [start - 0.5, Math.max(stop, start + 1) + 0.5], tickformat: ",d", nticks: 8 },
        yaxis: { nticks: 4, showgrid: false },
      },
    }),
  });
}

export const ENDS = {
  terminated: { tone: "s0", symbol: "circle", name: "Terminated" },
  truncated: { tone: "s2", symbol: "diamond", name: "Truncated" },
  lost_actor: { tone: "failing", symbol: "x", name: "Lost actor" },
  open: { tone: "s1", symbol: "circle-open", name: "Open" },
};

// Returns a point for each episode over time; a click opens it.
export function episodePoints({ key, points, field, label, onOpen }) {
  const known = finite(points[field]);
  return chart({
    key, zooms: true, stamp: [points, field], onPoint: (point) => onOpen(point.customdata),
    summary: `${label} of ${count(points.episode_id.length)} episodes by the time they started. ${told(label, points[field], (value) => digits(value))}. The list below has the same episodes.`,
    build: (colours) => ({
      traces: Object.entries(ENDS).map(([end, { tone, symbol, name }]) => {
        const rows = points.episode_id.map((_, i) => i).filter(
          (i) => points.end[i] === end && typeof points[field][i] === "number"
        );
        return {
          type: "scatter", mode: "markers", name, x: rows.map(
            (i) => axisTime(points.started_at_s[i])
          ), y: rows.map((i) => points[field][i]),
          customdata: rows.map((i) => points.episode_id[i]),
          marker: {
            color: toneOf(colours, tone), symbol, size: known.length > 800 ? 4 : 6, opacity: 0.75,
            line: { width: symbol.endsWith("open") ? 1.5 : 0 },
          },
          hovertemplate: `episode %{customdata:,d}: %{y:,.5~r}<extra>%{fullData.name}</extra>`,
        };
      }),
      layout: { margin: { b: 40 }, xaxis: { type: "date", nticks: 5, tickangle: 0 }, yaxis: { tickformat: "~s" } },
    }),
  });
}

// Returns a path in the plane of the first two dimensions of a goal, from the first step to the last.
export function path({ key, achieved, desired, at, stamp }) {
  const marker = (colour, symbol, size, edge) => ({ color: colour, symbol, size, line: { color: edge, width: 1.5 } });
  return chart({
    key, size: "square", stamp: [stamp, at],
    summary: `The achieved goal's path in its first two dimensions, beside the desired goal. At the marked step: ${achieved[at] ? achieved[at].slice(0, 2).map((one) => digits(one)).join(", ") : "not known"}.`,
    build: (colours) => ({
      traces: [
        {
          type: "scatter", mode: "lines", name: "Achieved", x: achieved.map((row) => row[0]), y: achieved.map((row) => row[1]),
          line: { color: colours.accent, width: 1.75 }, hovertemplate: "%{x:.4~r}, %{y:.4~r}<extra>achieved</extra>",
        },
        {
          type: "scatter", mode: "markers", name: "Desired", x: desired.map((row) => row[0]), y: desired.map((row) => row[1]),
          marker: marker(colours.series[2], "star", 13, colours.card),
          hovertemplate: "%{x:.4~r}, %{y:.4~r}<extra>desired</extra>",
        },
        {
          type: "scatter", mode: "markers", name: "Now", x: achieved[at] ? [achieved[at][0]] : [],
          y: achieved[at] ? [achieved[at][1]] : [], marker: marker(colours.accent, "circle", 10, colours.card),
          hoverinfo: "skip",
        },
      ],
      layout: { xaxis: { showgrid: true, nticks: 5 }, yaxis: { scaleanchor: "x", nticks: 5 } },
    }),
  });
}

// Returns a small line without axes, for a tile.
export function spark(values) {
  const known = values.map((value, i) => [i, value]).filter(([, value]) => typeof value === "number");
  if (known.length < 2) return h("svg:svg", { class: "spark", viewBox: "0 0 100 24", "aria-hidden": "true" });
  const most = Math.max(...known.map(([, value]) => value), 1e-12);
  const point = ([i, value]) => `${((100 * i) / Math.max(1, values.length - 1)).toFixed(2)},${(23 - (21 * value) / most).toFixed(2)}`;
  const line = known.map(point).join(" ");
  return h("svg:svg", { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" },
    h(
      "svg:polygon",
      {
        points: `${known[0][0] ? point(known[0]).split(",")[0] : 0},24 ${line} ${point(known[known.length - 1]).split(",")[0]},24`,
      }
    ),
    h("svg:polyline", { points: line }));
}
