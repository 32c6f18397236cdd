// The film strip, the picture of one step, and the scrubber under it.

import { count } from "../format.js";
import { icon } from "../icons.js";
import { card, choice, failed } from "../parts.js";
import { h } from "../view.js";

const SPEEDS = [[5, "5"], [15, "15"], [30, "30"], [60, "60"]];

export function player(film, steps, record, { values }) {
  const images = record.columns.filter((column) => column.kind === "image");
  const final = film.at >= record.length;
  const place = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    film.move(film.first + Math.floor(((event.clientX - box.left) / box.width) * (film.last - film.first + 1)));
  };
  const control = (name, label, onclick, disabled) => h(
    "button",
    { class: "button round", type: "button", "aria-label": label, title: label, onclick, disabled, key: label }, icon(name)
  );
  return card({
    title: images.length > 0 ? "Film" : "Step", key: "player", span: "player",
    sub: "Space plays, the arrow keys move by one step and with Shift by ten, Home and End go to the ends.",
    actions: images.length > 0 && [
      images.length > 1 && choice(
        "Image column", film.column, images.map((column) => [column.name, column.name]), (name) => film.look(name, 0)
      ),
      film.planes > 1 && choice(
        "Plane", film.plane,
        Array.from({ length: Math.min(film.planes, 16) }, (_, i) => [i, String(i + 1), "A frame of the stack, or a channel."]),
        (plane) => film.look(film.column, plane)
      ),
    ],
  },
  h("div", { class: images.length > 0 ? "stage" : "stage bare" },
    images.length > 0 && h("figure", { class: "frame" },
      film.frame?.error ? failed(film.frame.error) : film.shown?.url ? h(
        "img",
        { src: film.shown.url, alt: `${film.column} at step ${count(film.at)}`, class: film.frame ? "" : "late" }
      ) : h("div", { class: "waiting frame-waiting" }),
      h("figcaption", null, film.column)),
    h("div", { class: "at-step" },
      h(
        "h3", { "aria-live": film.playing ? "off" : "polite" }, final ? `After the last step` : `Step ${count(film.at)}`,
        h("span", { class: "quiet" }, ` of ${count(record.length)}`)
      ),
      values())),
  film.strip?.url && h("div", { class: "strip", onclick: place, key: "strip" },
    h("img", { src: film.strip.url, alt: `${count(film.strip.count)} frames spread over the episode`, draggable: "false" }),
    h(
      "svg:svg",
      { class: "head", "aria-hidden": "true", viewBox: "0 0 100 10", preserveAspectRatio: "none" },
      h("svg:line", { x1: position(film), x2: position(film), y1: 0, y2: 10 })
    )),
  film.strip?.error && failed(film.strip.error),
  h("div", { class: "controls" },
    control("back", "One step back", () => film.move(film.at - 1), film.at <= film.first),
    control(film.playing ? "pause" : "play", film.playing ? "Pause" : "Play", () => film.play()),
    control("forward", "One step on", () => film.move(film.at + 1), film.at >= film.last),
    h(
      "input",
      {
        type: "range", class: "scrubber", min: String(film.first), max: String(film.last), value: String(film.at), step: "1",
        "aria-label": "Step", "aria-valuetext": final ? "after the last step" : `step ${film.at} of ${record.length}`,
        oninput: (event) => film.move(Number(event.target.value)),
      }
    ),
    choice(
      "Steps per second", film.perSecond, SPEEDS.map(([value, text]) => [value, text, `${text} steps per second`]),
      (value) => { film.perSecond = value; film.onChange(); }
    )));
}

const position = (film) => ((100 * (film.at - film.first + 0.5)) / (film.last - film.first + 1)).toFixed(3);
