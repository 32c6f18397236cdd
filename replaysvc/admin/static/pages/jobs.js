// Long pieces of work, the newest first.

import { ago, bytes, count, share, span, when } from "../format.js";
import { bar, card, empty, known, pill, rows, settled, skeleton } from "../parts.js";
import { h } from "../view.js";

const KINDS = {
  snapshot: "Snapshot", compact: "Compaction", delete_table: "Deletion of a table", delete_episodes: "Deletion of episodes", scrub: "Scrub", set_capacity: "Change of capacity",
};
const STATES = { running: ["accent", "Running"], done: ["ok", "Done"], failed: ["failing", "Failed"] };
const IN_BYTES = new Set(["snapshot", "compact", "scrub"]);

export function jobs(ctx) {
  return {
    title: "Jobs",
    queries: () => [{ key: "jobs", path: "jobs" }],
    view: () => settled(ctx.got("jobs"), (data) => {
      const list = ctx.table ? data.jobs.filter((job) => !job.table || job.table === ctx.table) : data.jobs;
      return card({ title: "Jobs", sub: "The last 100 since the service started.", key: "jobs" }, rows({
        caption: "Jobs, the newest first", list, key: (job) => job.number, page: 100,
        empty: empty("No jobs", "Snapshots, compactions and deletions show here while they run, and after."),
        columns: [
          {
            label: "Job", main: true,
            cell: (job) => [`${KINDS[job.kind] ?? job.kind} `, h("span", { class: "quiet" }, `#${job.number}`)],
          },
          { label: "State", cell: (job) => pill(STATES[job.state]?.[0] ?? "off", STATES[job.state]?.[1] ?? job.state) },
          { label: "Table", cell: (job) => known(job.table, "It is about the whole store.") },
          {
            label: "Asked by",
            cell: (job) => known(job.who, "Nobody asked: the service did it by itself, or the caller has no name."),
          },
          {
            label: "Started", hint: "When it started.",
            cell: (job) => h("span", { title: when(job.started_at_s) }, ago(Date.now() / 1000 - job.started_at_s)),
          },
          { label: "Took", hint: "How long it took, or has been running.", cell: (job) => span(job.seconds) },
          {
            label: "Outcome", wrap: true, wide: true,
            cell: (job) => (job.state === "running" ? progress(job) : known(job.message, "It left no message.")),
          },
        ],
      }));
    }, skeleton(5)),
  };
}

function progress(job) {
  if (job.whole <= 0) return job.message || "Its size is not known beforehand.";
  const write = IN_BYTES.has(job.kind) ? bytes : count;
  const text = `${share(job.done / job.whole)}, ${write(job.done)} of ${write(job.whole)}`;
  return h(
    "span", { class: "bar-cell" }, bar({ parts: [{ share: job.done / job.whole, tone: "accent" }], label: text }),
    h("span", { class: "quiet" }, text)
  );
}
