// Draws with Plotly, which is loaded when the first chart is shown, and changes charts in place. A chart that nobody can see is
// drawn once, and again when it comes into view: to draw the five of the overview each time takes most of what a page costs.
//
// Only kinds that draw SVG are used: those of WebGL make code at run time, which the page's policy forbids. Plotly reads
// texts as a kind of HTML with links; whatever comes from data goes through `plain`.

import { h } from "./view.js";

export const MARGIN = { l: 54, r: 14, t: 8, b: 30 };
const CONFIG = {
  displayModeBar: false, displaylogo: false, showTips: false, responsive: false, doubleClick: "reset", scrollZoom: false,
};
const live = new Set();
let loading;

function plotly() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = new URL("plotly.min.js", import.meta.url);
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => {
      loading = undefined;
      script.remove();
      reject(new Error("The chart library could not be loaded."));
    };
    document.head.append(script);
  });
  return loading;
}

// Returns the colours of the page as they are now.
export function theme() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  return {
    text: colour("--muted"), strong: colour("--text"), grid: colour("--grid"), card: colour("--card"), line: colour("--line"),
    accent: colour("--accent"), ok: colour("--ok"), warning: colour("--warning"), failing: colour("--failing"),
    series: Array.from({ length: 8 }, (_, i) => colour(`--s${i}`)),
    font: getComputedStyle(document.body).fontFamily,
  };
}

function settled(layout, colours, interactive) {
  const axis = {
    gridcolor: colours.grid, zeroline: false, linecolor: colours.line, tickcolor: colours.line, ticks: "", fixedrange: !interactive,
    tickfont: { size: 11, color: colours.text }, automargin: false, hoverformat: undefined, showspikes: false,
  };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, autosize: true, uirevision: "kept",
    font: { family: colours.font, size: 12, color: colours.text }, hovermode: "closest", dragmode: interactive ? "zoom" : false,
    hoverlabel: {
      bgcolor: colours.card, bordercolor: colours.line, font: { family: colours.font, size: 12, color: colours.strong },
      namelength: -1,
    },
    ...layout,
    margin: { ...MARGIN, ...layout.margin },
    xaxis: { ...axis, showgrid: false, showline: true, ...layout.xaxis },
    yaxis: { ...axis, nticks: 5, ...layout.yaxis, fixedrange: true },
  };
}

class Chart {
  constructor(node, arg) {
    this.node = node;
    this.plot = document.createElement("div");
    this.plot.className = "plot";
    node.append(this.plot);
    this.sizes = new ResizeObserver(() => this.resized());
    this.sizes.observe(node);
    this.inView = true; // until we are told
    this.views = new IntersectionObserver((entries) => this.moved(entries[entries.length - 1].isIntersecting));
    this.views.observe(node);
    live.add(this);
    this.update(arg);
  }

  update(arg) {
    const same = this.arg && !this.stale && arg.stamp.length === this.arg.stamp.length && arg.stamp.every(
      (one, i) => one === this.arg.stamp[i]
    );
    this.arg = arg;
    if (same) this.moveHead();
    else if (this.library && !this.inView) this.stale = true;
    else this.draw();
  }

  moved(inView) {
    this.inView = inView;
    if (inView && this.stale) this.draw();
  }

  async draw() {
    this.stale = false;
    let library;
    try {
      library = await plotly();
    } catch (error) {
      this.node.classList.add("without");
      this.plot.textContent = `${error.message} ${this.arg.summary}`;
      this.stale = true;
      return;
    }
    if (!live.has(this)) return;
    const colours = theme();
    const { traces, layout } = this.arg.build(colours);
    const fine = matchMedia("(pointer: fine)").matches;
    if (this.node.classList.contains("without")) this.plot.replaceChildren();
    this.node.classList.remove("without");
    await library.react(this.plot, traces, settled(layout, colours, Boolean(this.arg.zooms) && fine), CONFIG);
    if (!live.has(this)) return library.purge(this.plot);
    this.node.classList.add("drawn");
    if (!this.bound) {
      this.bound = true;
      this.plot.on("plotly_click", (event) => this.arg.onPoint?.(event.points[0]));
      this.plot.on("plotly_relayout", () => this.moveHead());
    }
    this.library = library;
    this.moveHead();
  }

  // Puts the line that marks a step where it belongs; it is ours, since to draw the chart again for each frame is slow.
  moveHead() {
    const t = this.arg.head;
    const range = this.plot.layout?.xaxis?.range;
    if (t === undefined || !range) return this.head?.remove();
    if (!this.head) {
      this.head = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      this.head.setAttribute("class", "head");
      this.head.setAttribute("aria-hidden", "true");
      this.head.append(document.createElementNS("http://www.w3.org/2000/svg", "line"));
    }
    if (!this.head.isConnected) this.node.append(this.head);
    const margin = { ...MARGIN, ...this.plot.layout.margin };
    const width = this.node.clientWidth - margin.l - margin.r;
    const x = margin.l + (width * (t - range[0])) / (range[1] - range[0]);
    const line = this.head.firstChild;
    line.setAttribute("x1", x);
    line.setAttribute("x2", x);
    line.setAttribute("y1", margin.t);
    line.setAttribute("y2", Math.max(margin.t, this.node.clientHeight - margin.b));
    this.head.classList.toggle("outside", x < margin.l - 1 || x > margin.l + width + 1);
  }

  resized() {
    if (!this.library || this.node.clientWidth === 0) return;
    this.library.Plots.resize(this.plot);
    this.moveHead();
  }

  unmount() {
    live.delete(this);
    this.sizes.disconnect();
    this.views.disconnect();
    this.library?.purge(this.plot);
  }
}

const HOOK = {
  mount: (node, arg) => new Chart(node, arg),
  update: (node, arg, state) => state?.update(arg),
};

// Draws all charts again, in the colours that now hold.
export function redraw() {
  for (const chart of live) chart.draw();
}

addEventListener("beforeprint", () => {
  for (const chart of live) if (chart.stale) chart.draw();
});

// Returns a chart. build(colours) -> {traces, layout}; stamp: what it depends on, compared one by one; summary: the chart
// in a sentence, for those who cannot see it; head: the step to mark; zooms: whether one can zoom in; onPoint: of a click.
export function chart({ key, build, stamp, summary, size = "", head, zooms, onPoint }) {
  return h("div", {
    class: `chart ${size}`, role: "img", "aria-label": summary, key, hook: HOOK,
    arg: { build, stamp, summary, head, zooms, onPoint },
  });
}
