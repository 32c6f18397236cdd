// The newest lines of the log, for admins.

import { count } from "../format.js";
import { button, card, empty, settled, skeleton } from "../parts.js";
import { h } from "../view.js";

export function log(ctx) {
  let wanted = "";
  let follows = true;
  let held = null; // lines as they were when following was stopped

  return {
    title: "Log",
    queries: () => (ctx.session.may.log ? [{ key: "log", path: "log", every: follows ? 1 : 0 }] : []),
    view: () => settled(ctx.got("log"), ({ lines }) => {
      if (follows) held = lines;
      const shown = held.filter((line) => line.toLowerCase().includes(wanted.toLowerCase()));
      return card({
        title: "Log", sub: `${count(shown.length)} of the last ${count(held.length)} lines, the newest first.`, key: "log",
        actions: [
          h(
            "label", { class: "search" }, h("span", { class: "hidden" }, "Only lines with"),
            h(
              "input",
              {
                type: "search", placeholder: "Only lines with…",
                oninput: (event) => { wanted = event.target.value; ctx.redraw(); },
              }
            )
          ),
          button(
            follows ? "Pause" : "Follow", () => { follows = !follows; if (follows) ctx.ask(); ctx.redraw(); },
            { title: "Whether new lines are shown as they come." }
          ),
        ],
      }, shown.length === 0 ? empty(held.length === 0 ? "Nothing was logged yet" : "No line has this") : h(
        "ol", { class: "lines", tabindex: "0", "aria-label": "Lines of the log" },
        [...shown].reverse().map((line) => h("li", { class: level(line) }, line))
      ));
    }, skeleton(12)),
  };
}

function level(line) {
  const found = /\b(CRITICAL|ERROR|WARNING)\b/i.exec(line.slice(0, 200))?.[1]?.toUpperCase();
  return found === undefined ? "" : found === "WARNING" ? "warning" : "failing";
}
