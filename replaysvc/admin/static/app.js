// The page as a whole: who looks, where they are, and what is asked for.

import { ApiError, get, keepToken, token } from "./api.js";
import { toast } from "./dialogs.js";
import { actors } from "./pages/actors.js";
import { configuration } from "./pages/configuration.js";
import { episode } from "./pages/episode.js";
import { episodes } from "./pages/episodes.js";
import { jobs } from "./pages/jobs.js";
import { learners } from "./pages/learners.js";
import { log } from "./pages/log.js";
import { overview } from "./pages/overview.js";
import { storage } from "./pages/storage.js";
import { table } from "./pages/table.js";
import { tables } from "./pages/tables.js";
import { hash } from "./parts.js";
import { Poller } from "./poll.js";
import { PLACES, shell, signIn, waiting } from "./shell.js";
import { render } from "./view.js";

const PAGES = {
  overview, actors, learners, storage, jobs, configuration, log,
  tables: (ctx) => (ctx.args.length > 0 ? table(ctx) : tables(ctx)),
  episodes: (ctx) => (ctx.args.length > 1 ? episode(ctx) : episodes(ctx)),
};
const WITH_TABLE_IN_PATH = new Set(["tables", "episodes"]);

const app = document.getElementById("app");
const said = document.getElementById("said");
const state = {
  session: null, page: null, ctx: null, overview: null, connection: { down: false }, menu: false, wrong: "", chosen: "",
  announced: "",
};

const poller = new Poller({
  onChange: () => redraw(),
  onState: (connection) => {
    const turned = connection.down !== state.connection.down;
    state.connection = connection;
    if (turned || connection.down) redraw();
  },
  onRefused: (error) => signOut(error.message),
});

function route() {
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  let parts;
  try {
    parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    parts = []; // a link that was cut within an escape
  }
  return {
    name: parts[0] in PAGES ? parts[0] : "overview", args: parts.slice(1),
    query: Object.fromEntries(new URLSearchParams(search)),
  };
}

function go(parts, query = {}, replace = false) {
  const where = hash(parts, query);
  if (replace) history.replaceState(null, "", where);
  else location.hash = where;
}

// Makes the page of the address; links to the same page with other arguments are left to the page, if it takes them.
function arrive(first = false) {
  const to = route();
  state.menu = false;
  if (WITH_TABLE_IN_PATH.has(to.name)) state.chosen = to.args[0] ?? (to.name === "episodes" ? state.chosen : "");
  else state.chosen = to.query.table ?? "";
  if (
    to.name === "episodes" && to.args.length === 0 && state.chosen
  ) return go(["episodes", state.chosen], to.query, true), arrive(first);
  if (state.page?.arrive?.(to)) return redraw();
  state.page?.leave?.();
  const ctx = {
    ...to, session: state.session, table: state.chosen, go,
    got: (key) => poller.got(key), ask: (again = true) => poller.now(again),
    redraw: () => state.ctx === ctx && redraw(), tables: () => state.overview?.tables ?? null,
  };
  state.ctx = ctx;
  state.page = PAGES[to.name](ctx);
  poller.watch(() => {
    const own = state.page?.queries?.() ?? [];
    return own.some((query) => query.key === "overview") ? own : [...own, { key: "overview", path: "overview", every: 5 }];
  });
  redraw();
  if (!first) {
    scrollTo(0, 0);
    document.getElementById("main")?.focus({ preventScroll: true });
  }
}

function redraw() {
  if (!state.session) return;
  const { data } = poller.got("overview");
  if (data) state.overview = data;
  announce(state.overview?.verdict);
  document.title = `${state.page.title} · replaysvc`;
  render(
    app,
    shell({
      ...state, place: state.ctx.name, table: state.chosen, view: state.page.view, choose, toggleMenu, signOut,
      tryNow: () => poller.now(true), redraw,
    })
  );
}

function announce(verdict) {
  if (!verdict) return;
  const told = verdict.reasons.filter((reason) => reason.level !== "note"); // whose figures change with each look
  const sentence = [`The service is ${verdict.status}.`, ...told.map((reason) => reason.sentence)].join(" ");
  if (sentence !== state.announced) said.textContent = state.announced = sentence;
}

function choose(name) {
  const { name: place, args, query } = route();
  if (place === "tables") return go(name ? ["tables", name, ...args.slice(1)] : ["tables"]);
  if (place === "episodes") {
    if (!name) state.chosen = "";
    return go(name ? ["episodes", name] : ["episodes"]);
  }
  return go([place, ...args], { ...query, table: name });
}

function toggleMenu(open = !state.menu) {
  state.menu = open;
  redraw();
  document.getElementById(open ? "nav-first" : "menu")?.focus();
}

function signOut(why = "") {
  keepToken(null);
  poller.stop();
  state.page?.leave?.();
  Object.assign(state, { session: null, page: null, ctx: null, overview: null, announced: "" });
  said.textContent = "";
  for (const dialog of document.querySelectorAll("dialog")) dialog.close();
  showSignIn(why);
}

function showSignIn(wrong = "", busy = false) {
  document.title = "Sign in · replaysvc";
  render(app, signIn({ wrong, busy, send: begin }));
  if (!busy) document.getElementById("token")?.focus();
}

// Asks who we are and shows the page; with another token if one is given.
async function begin(secret = null) {
  if (secret !== null) {
    if (!/^[\x21-\x7e]+$/.test(secret)) return showSignIn("A token has no spaces and only plain letters, digits and signs.");
    keepToken(secret);
    showSignIn("", true);
  }
  try {
    state.session = await get("session");
  } catch (error) {
    if (error instanceof ApiError && (error.status === 401 || error.status === 403)) {
      const had = token() !== null;
      keepToken(null);
      return showSignIn(
        !had ? "" : error.status === 401 ? "This token is not known to the service. Was it copied whole?" : `This token is known, but may not look: ${error.message}`
      );
    }
    render(app, waiting(error.message, () => begin()));
    clearTimeout(state.retry);
    state.retry = setTimeout(() => begin(), 4000);
    return;
  }
  clearTimeout(state.retry);
  arrive(true);
}

addEventListener("hashchange", () => state.session && arrive());
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && state.menu) return toggleMenu(false);
  if (
    event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")
  ) return;
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== "checkbox") return;
  state.page?.keys?.(event);
});
addEventListener("unhandledrejection", (event) => {
  if (event.reason instanceof ApiError) {
    event.preventDefault();
    toast("failing", event.reason.message);
  }
});
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address after # is the router's
  document.getElementById("main")?.focus();
});
setInterval(() => state.connection.down && redraw(), 1000);

export { PLACES };
begin();
