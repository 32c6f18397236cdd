// What stands around every page: navigation, the chosen table, the verdict, who is signed in, and whether the service answers.

import { token } from "./api.js";
import { redraw as redrawCharts } from "./charts.js";
import { ago, words } from "./format.js";
import { icon } from "./icons.js";
import { button, hash, pill } from "./parts.js";
import { h } from "./view.js";

export const PLACES = [
  ["overview", "Overview"], ["tables", "Tables"], ["episodes", "Episodes"], ["actors", "Actors"], ["learners", "Learners"],
  ["storage", "Storage"], ["jobs", "Jobs"], ["configuration", "Configuration"], ["log", "Log"],
];
const ADMIN_ONLY = new Set(["configuration", "log"]);
export const STATUS = {
  ok: "Healthy", warning: "Needs a look", failing: "Failing", draining: "Draining",
};
const THEMES = ["auto", "light", "dark"];

function chosenTheme() {
  return document.documentElement.dataset.theme ?? "auto";
}

function turnTheme(redraw) {
  const next = THEMES[(THEMES.indexOf(chosenTheme()) + 1) % THEMES.length];
  if (next === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("replaysvc.theme", next);
  } catch {
    // for this visit alone
  }
  redrawCharts();
  redraw();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redrawCharts());

function navigation({ session, place, table, menu, overview, signOut, redraw }) {
  const link = ([name, text], i) => {
    const parts = name === "episodes" && table ? [name, table] : [name];
    const query = table && !["tables", "episodes", "configuration", "log"].includes(name) ? { table } : {};
    return h(
      "li", { key: name },
      h(
        "a",
        {
          href: hash(parts, query), id: i === 0 ? "nav-first" : undefined, "aria-current": name === place ? "page" : undefined,
        },
        icon(name), text
      )
    );
  };
  const shown = PLACES.filter(([name]) => !ADMIN_ONLY.has(name) || session.may.log);
  const theme = chosenTheme();
  return h("nav", { class: `nav ${menu ? "open" : ""}`, "aria-label": "Pages", id: "nav" },
    h(
      "a", { class: "brand", href: "#/overview" },
      h("img", { src: new URL("icon.svg", import.meta.url), alt: "", width: 24, height: 24 }), "replaysvc"
    ),
    h("ul", null, shown.map(link)),
    h("div", { class: "foot" },
      overview && h(
        "p",
        { class: "where", title: "The address of the gRPC door, and the directory of the store." }, overview.address, h("br"),
        overview.data
      ),
      h("p", { title: "The role says what a caller may do." }, session.name, h("span", { class: "role" }, session.role)),
      h("div", { class: "foot-actions" },
        button(
          [icon(theme), h("span", null, { auto: "As the system", light: "Light", dark: "Dark" }[theme])],
          () => turnTheme(redraw),
          { kind: "ghost", title: "Light, dark, or as the system has it.", label: `Colours: ${theme}. Change.` }
        ),
        (session.tokens || token() !== null) && button("Sign out", () => signOut(), { kind: "ghost", key: "out" })),
      h("p", { class: "version" }, `Version ${session.version}`)));
}

function chooser({ table, overview, choose }) {
  const names = (overview?.tables ?? []).map((row) => row.name);
  if (table && !names.includes(table)) names.push(table);
  const options = [
    h("option", { value: "", key: "", selected: table === "" }, "All tables"),
    ...names.map((name) => h("option", { value: name, key: `t${name}`, selected: name === table }, name))
  ];
  return h(
    "label", { class: "chooser" }, h("span", { class: "hidden" }, "Table"),
    h("select", { onchange: (event) => choose(event.target.value), title: "The table that the pages show." }, options)
  );
}

function banner({ down, message, since_ms, next_ms }, tryNow) {
  if (!down) return null;
  const wait = Math.max(0, Math.round((next_ms - Date.now()) / 1000));
  return h("div", { class: "banner", role: "alert", key: "banner" },
    h(
      "p", null, h("strong", null, message), ` What you see was read ${ago((Date.now() - since_ms) / 1000)}. `,
      h("span", { "aria-hidden": "true" }, wait > 0 ? `Next try in ${words(wait)}.` : "Trying now…")
    ),
    button("Try now", tryNow));
}

// Returns the whole page; view() is what stands in its middle.
export function shell(all) {
  const { overview, place, page, view, menu, toggleMenu, connection, tryNow } = all;
  const verdict = overview?.verdict;
  const refused = ADMIN_ONLY.has(place) && !all.session.may.log;
  return h("div", { class: "shell", key: "shell" },
    navigation(all),
    menu && h("div", { class: "shade", onclick: () => toggleMenu(false), key: "shade" }),
    h("div", { class: "body", key: "body" },
      h("div", { class: "sticky", key: "top" }, h("header", { class: "top" },
        h(
          "button",
          {
            class: "button ghost menu", type: "button", id: "menu", "aria-label": "Menu",
            "aria-expanded": menu ? "true" : "false", "aria-controls": "nav", onclick: () => toggleMenu(),
          },
          icon("menu")
        ),
        h("div", { class: "at" }, h("h1", null, page.title)),
        h("a", {
          class: "verdict-link", href: "#/overview", title: "The health of the service; the reasons stand on the overview.",
        },
          verdict ? pill(
            connection.down ? "off" : verdict.status, connection.down ? "No answer" : (STATUS[verdict.status] ?? verdict.status)
          ) : pill("off", "…")),
        chooser(all)),
      banner(connection, tryNow)),
      h("main", { id: "main", tabindex: "-1", key: `main-${place}` },
        refused ? h(
          "div", { class: "empty" }, h("p", { class: "big" }, "For admins"),
          h("p", null, `The role ${all.session.role} may not see this page.`)
        ) : view())));
}

// Returns the form that asks for a token.
export function signIn({ wrong, busy, send }) {
  const submit = (event) => {
    event.preventDefault();
    const secret = document.getElementById("token").value.trim();
    if (secret && !busy) send(secret);
  };
  return h("main", { class: "sign-in", id: "main", tabindex: "-1", key: "sign-in" },
    h("form", { class: "card", onsubmit: submit, autocomplete: "off" },
      h(
        "p", { class: "brand" }, h("img", { src: new URL("icon.svg", import.meta.url), alt: "", width: 28, height: 28 }),
        "replaysvc"
      ),
      h("h1", null, "Sign in"),
      h(
        "p", { class: "sub" },
        "This service wants a token. It is one line of the tokens file; whoever runs the service can give you one."
      ),
      h("label", { class: "field" }, h("span", { class: "label" }, "Token"),
        h(
          "input",
          {
            id: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true, disabled: busy,
            "aria-describedby": wrong ? "token-wrong" : undefined, "aria-invalid": wrong ? "true" : undefined,
          }
        )),
      wrong && h("p", { class: "wrong", id: "token-wrong", role: "alert" }, wrong),
      button(busy ? "Signing in…" : "Sign in", null, { kind: "primary", type: "submit", disabled: busy }),
      h("p", { class: "note" }, "The token is kept in this tab alone, until you sign out or close it.")));
}

// Returns what is shown while the service has not answered even once.
export const waiting = (message, again) => h("main", { class: "sign-in", id: "main", tabindex: "-1", key: "waiting" },
  h(
    "div", { class: "card", role: "status" }, h("h1", null, "No answer yet"),
    h(
      "p", { class: "sub" },
      `${message} It may still be starting: a large store takes a while to open. This page tries again by itself.`
    ),
    button("Try now", again)
  ));
