// What an admin may do, each in a dialog that says what will happen. What cannot be undone asks for the name to be typed.

import { post } from "./api.js";
import { button } from "./parts.js";
import { h, render } from "./view.js";

let shown = 0;

// Opens a dialog. fields: [{name, label, hint, value, kind, placeholder, optional}]; typed: the name to type, for what cannot
// be undone; send(values): the call; done(answer): after it; changes(values): a sentence on what these values do, or "".
export function ask({ title, sentence, fields = [], typed = null, verb, danger = false, send, done, changes }) {
  const number = ++shown;
  const dialog = document.createElement("dialog");
  dialog.setAttribute("aria-labelledby", `dialog-${number}`);
  dialog.setAttribute("aria-describedby", `dialog-${number}-text`);
  document.getElementById("dialogs").append(dialog);
  const values = Object.fromEntries(fields.map((field) => [field.name, field.value ?? ""]));
  let confirmed = "";
  let busy = false;
  let wrong = "";
  const close = () => dialog.close();
  const draw = () => {
    const must = typeof typed === "function" ? typed(values) : typed;
    const ready = !busy && (must === null || confirmed === must) && fields.every(
      (field) => field.optional || String(values[field.name]).trim() !== ""
    );
    const more = changes?.(values);
    render(dialog, h("form", { onsubmit: submit, novalidate: true, autocomplete: "off" },
      h("h2", { id: `dialog-${number}` }, title),
      h("p", { id: `dialog-${number}-text` }, sentence),
      fields.map((field) => h("label", { class: "field", key: field.name },
        h("span", { class: "label" }, field.label),
        h(
          "input",
          {
            type: "text", inputmode: field.kind === "number" ? "decimal" : undefined, value: field.value ?? "",
            placeholder: field.placeholder, disabled: busy, spellcheck: "false",
            oninput: (event) => { values[field.name] = event.target.value; draw(); },
          }
        ),
        field.hint && h("span", { class: "note" }, field.hint))),
      more && h("p", { class: "consequence", role: "status" }, more),
      must !== null && h("label", { class: "field", key: "typed" },
        h("span", { class: "label" }, "Type ", h("code", null, must), " to confirm"),
        h(
          "input",
          {
            type: "text", value: "", disabled: busy, autocapitalize: "off", autocorrect: "off", spellcheck: "false",
            oninput: (event) => { confirmed = event.target.value; draw(); },
          }
        )),
      wrong && h("p", { class: "wrong", role: "alert" }, wrong),
      h("footer", null,
        button("Cancel", close, { key: "cancel" }),
        button(
          busy ? "Working…" : verb, null, { type: "submit", kind: danger ? "danger" : "primary", disabled: !ready, key: "go" }
        ))));
  };
  async function submit(event) {
    event.preventDefault();
    const must = typeof typed === "function" ? typed(values) : typed;
    if (busy || (must !== null && confirmed !== must)) return;
    busy = true;
    wrong = "";
    draw();
    try {
      const answer = await send(values);
      close();
      toast("ok", typeof answer?.message === "string" && answer.message ? answer.message : `${title}: done.`, answer?.job);
      done?.(answer);
    } catch (error) {
      busy = false;
      wrong = error.message;
      draw();
    }
  }
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog && !busy) close(); // the backdrop
  });
  draw();
  dialog.showModal();
}

// Shows a message for a while. job: the number of the job that goes on with it.
export function toast(tone, text, job = null) {
  const one = document.createElement("div");
  one.className = `toast ${tone}`;
  const remove = () => one.remove();
  render(one, h("p", null, text), Number.isInteger(job) && h("a", { href: "#/jobs", onclick: remove }, `See job ${job}`),
    h("button", { class: "close", type: "button", "aria-label": "Close the message", onclick: remove }, "×"));
  document.getElementById("toasts").append(one);
  setTimeout(remove, tone === "ok" ? 8000 : 20_000);
}

// Returns a number that was typed, or null where nothing was. Raises an Error with a sentence.
export function typedNumber(label, text, whole = true) {
  const bare = String(text).trim();
  if (bare === "") return null;
  const grouped = /^-?\d{1,3}([,_ ]\d{3})+(\.\d+)?$/.test(bare); // 1,000,000 but not "7000,9000"
  const value = Number(grouped ? bare.replace(/[,_ ]/g, "") : bare);
  if (!Number.isFinite(value) || (whole && !Number.isSafeInteger(value))) throw new Error(
    `${label}: expected a ${whole ? "whole " : ""}number, found “${text}”.`
  );
  return value;
}

export const act = (parts, body) => post(parts.map(encodeURIComponent).join("/"), body);
