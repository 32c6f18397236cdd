// Tests of the page's modules that need no service. Each value is a test: it raises if something is not as it should be.
// They are served beside the modules, as /static/module_tests.js, and run in a browser: `view.js` needs a document.

import { typedNumber } from "./dialogs.js";
import { DASH, ago, bytes, byteUnit, count, digits, plain, rate, share, short, span, value, words } from "./format.js";
import { about, disk, left } from "./figures.js";
import { hash } from "./parts.js";
import { Steps, number, plotted } from "./steps.js";
import { h, render } from "./view.js";

function is(found, expected) {
  const [a, b] = [JSON.stringify(found), JSON.stringify(expected)];
  if (a !== b) throw new Error(`expected ${b}, found ${a}`);
}

const spaced = (text) => text.replaceAll("\u202f", " ");

// Answers calls of `fetch` for as long as `test` takes. answers: from the path behind api/v1/ to JSON.
async function answering(answer, test) {
  const { fetch } = globalThis;
  const asked = [];
  globalThis.fetch = async (url) => {
    const where = String(url).split("/api/v1/")[1];
    asked.push(where);
    return new Response(JSON.stringify(answer(where)), { status: 200 });
  };
  try {
    await test(asked);
  } finally {
    globalThis.fetch = fetch;
  }
}

export const tests = {
  "what is not known is a dash": () => {
    for (const write of [count, short, digits, bytes, share, span, words, ago, value]) is(write(null), DASH);
    is(rate(null, "steps"), DASH);
    is(digits(NaN), DASH);
  },
  "counts have separators, also those too large for a number": () => {
    is(count(1234567), "1,234,567");
    is(count("9223372036854775807"), "9,223,372,036,854,775,807");
    is(spaced(short(48_211_904)), "48.2 M");
    is(spaced(short(999_999)), "1 M");
    is(short(99_999), "99,999");
  },
  "sizes are in powers of 1024": () => {
    is(spaced(bytes(0)), "0 B");
    is(spaced(bytes(1020)), "1,020 B");
    is(spaced(bytes(1023.9)), "1 KiB");
    is(spaced(bytes(1536)), "1.5 KiB");
    is(spaced(bytes(5 * 2 ** 30)), "5 GiB");
    is(byteUnit(3 * 2 ** 20), { scale: 1048576, unit: "MiB" });
  },
  "small numbers are powers of ten": () => is(spaced(digits(0.0000012)), "1.2 × 10⁻⁶"),
  "times have their unit": () => {
    is(spaced(span(0.00025)), "250 µs");
    is(spaced(span(0.0032)), "3.2 ms");
    is(spaced(span(90)), "90 s");
    is(spaced(span(720)), "12 min");
    is(words(3 * 86400 + 4 * 3600 + 59), "3 days 4 hours");
    is(words(3600 + 5), "1 hour");
    is(ago(1), "just now");
    is(ago(61), "1 minute ago");
  },
  "a time until the disk is full is told as far as it can be known": () => {
    is(spaced(about(12.345)), "about 12 days");
    is([123.4, 2, 1.99, 0.0512].map(about), ["about 120 days", "about 2 days", "about 48 hours", "less than 2 hours"]);
    const known = { full_share: 0.75, free_bytes: 2 ** 30 };
    is(spaced(left({ ...known, days_left: null })), "disk 75 % full, 1 GiB free");
    is(spaced(left({ ...known, days_left: 12.345 })), "disk 75 % full, full in about 12 days");
  },
  "the parts of a disk add up, and one that cannot be asked is told as such": () => {
    const drawn = (data) => {
      const place = document.createElement("div");
      render(place, disk(data));
      return spaced(place.textContent);
    };
    const data = {
      used_bytes: 10 * 1024, set_aside_bytes: 1024, free_bytes: 30 * 1024, root_bytes: 40 * 1024, total_bytes: 100 * 1024,
      reserve_bytes: 0, refuses: false, full_share: 0.5, growth_bytes_per_day: null, days_left: null,
    };
    for (const part of ["This store10 KiB 10 %", "set aside1 KiB", "Others20 KiB 20 %", "root40 KiB 40 %", "Free30 KiB 30 %", "Full inknown after ten minutes"]) {
      is([part, drawn(data).includes(part)], [part, true]);
    }
    is(drawn({ ...data, growth_bytes_per_day: 123456, days_left: 12.345 }).includes("Full inabout 12 days"), true);
    is(drawn(null).includes("cannot be asked"), true);
  },
  "shares tell a little from nothing": () => {
    is(spaced(share(0)), "0 %");
    is(spaced(share(0.0001)), "< 0.1 %");
    is(spaced(share(0.9996)), "99.96 %");
    is(spaced(share(1)), "100 %");
  },
  "texts for charts have no markup left": () => is(plain("<a href='x'>&b</a>"), "&lt;a href='x'&gt;&amp;b&lt;/a&gt;"),
  "values that are no numbers are not plotted": () => is([1, true, "nan", "-inf", null, "12"].map(number), [1, 1, null, null, null, 12]),
  "typed numbers may have separators, but not in the wrong places": () => {
    is(typedNumber("x", " 1,000,000 "), 1000000);
    is(typedNumber("x", ""), null);
    is(typedNumber("x", "0.5", false), 0.5);
    for (const text of ["7000,9000", "1e", "0.5", "Infinity"]) {
      let raised = false;
      try {
        typedNumber("x", text);
      } catch {
        raised = true;
      }
      if (!raised) throw new Error(`${text} was taken as a number`);
    }
  },
  "addresses escape names": () => is(hash(["episodes", "a/b"], { actor: "<x>&y", end: "" }), "#/episodes/a%2Fb?actor=%3Cx%3E%26y"),
  "few values are lines and many are colours": () => {
    is(plotted({ values: [[1, "nan"], [3, 4]] }, { kind: "vector" }).lines, [[1, 3], [null, 4]]);
    is(plotted({ values: [Array(9).fill(1)] }, { kind: "vector" }).rows.length, 1);
    is(plotted({ values: [[[1, 2]], []] }, { kind: "ragged" }).lines, [[1, 0]]);
  },
  "markup in data stays text": () => {
    const box = document.createElement("div");
    render(box, h("p", { title: '"><img src=x>' }, "<img src=x onerror=alert(1)>"));
    is(box.querySelectorAll("img").length, 0);
    is(box.textContent, "<img src=x onerror=alert(1)>");
  },
  "what stays keeps its element": () => {
    const box = document.createElement("div");
    const list = (names) => render(box, names.map((name) => h("li", { key: name }, name)));
    list(["a", "b", "c"]);
    const c = box.children[2];
    list(["c", "a"]);
    is([...box.children].map((child) => child.textContent), ["c", "a"]);
    is(box.children[0] === c, true);
  },
  "what was typed outlives a refresh": () => {
    const box = document.createElement("div");
    const draw = (text) => render(box, h("p", null, text), h("input", { value: "given" }));
    draw("one");
    box.querySelector("input").value = "typed";
    draw("two");
    is(box.querySelector("input").value, "typed");
    is(box.querySelector("p").textContent, "two");
  },
  "listeners are the newest": () => {
    const box = document.createElement("div");
    const heard = [];
    for (const name of ["old", "new"]) render(box, h("button", { onclick: () => heard.push(name) }));
    box.firstChild.click();
    is(heard, ["new"]);
  },
  "a hook is told when its element goes": () => {
    const box = document.body.appendChild(document.createElement("div"));
    const told = [];
    const hook = { mount: () => ({ unmount: () => told.push("gone") }) };
    render(box, h("section", null, h("div", { hook })));
    render(box);
    box.remove();
    is(told, ["gone"]);
  },
  "steps come in pages, and the final observation once": async () => {
    const answer = (where) => {
      const query = new URLSearchParams(where.split("?")[1]);
      const [start, stop] = [Number(query.get("start")), Number(query.get("stop"))];
      const numbers = (n) => Array.from({ length: n }, (_, i) => start + i);
      return { start, stop, note: "", columns: { reward: { values: numbers(stop - start) }, seen: { values: numbers(stop - start + 1) } } };
    };
    await answering(answer, async (asked) => {
      const steps = new Steps({ table: "t", id: "3", first: 0, length: 5, page: 2, onChange: () => {} });
      await steps.want(4, ["reward", "seen"], false);
      is(asked.length, 3);
      is(steps.columns.get("reward").values, [0, 1, 2, 3, 4]);
      is(steps.columns.get("seen").values, [0, 1, 2, 3, 4, 5]);
    });
  },
  "a window begins at the first stored step": () => {
    const steps = new Steps({ table: "t", id: "3", first: 7, length: 4000, page: 100, onChange: () => {} });
    is([steps.window, steps.windowOf(7), steps.windowOf(806), steps.windowOf(807), steps.windowOf(99999)], [800, 7, 7, 807, 3207]);
  },
};
