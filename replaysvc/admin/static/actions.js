// The actions of the page, in the words of their dialogs.

import { act, ask, typedNumber } from "./dialogs.js";
import { bytes, count, plural } from "./format.js";

export function deleteTable(row, done) {
  ask({
    title: `Delete ${row.name}`, verb: "Delete the table", danger: true, typed: row.name, done,
    sentence: `All ${plural(row.steps, "step")} and ${plural(row.episodes, "episode")} of this table are deleted from disk (${bytes(row.disk_bytes)}). Its actors and learners get an error. This cannot be undone; a snapshot made before still has them.`,
    send: () => act(["tables", row.name, "delete"], { confirm: row.name }),
  });
}

export function deleteEpisodes(table, ids, open, done) {
  ask({
    title: `Delete ${plural(ids.length, "episode")} of ${table}`, verb: `Delete ${plural(ids.length, "episode")}`, danger: true, typed: table, done,
    sentence: `${ids.length === 1 ? `Episode ${count(ids[0])} is` : `${count(ids.length)} episodes are`} deleted with all their steps and priorities${open ? ", also those that are still open: their actors get an error at the next step" : ""}. This cannot be undone.`,
    send: () => act(["tables", table, "delete-episodes"], { episode_ids: ids, open_episodes: open, confirm: table }),
  });
}

export function changeLimiter(table, done) {
  const now = table.limiter;
  const buffer = Array.isArray(now.error_buffer) ? now.error_buffer.join(", ") : (now.error_buffer ?? "");
  ask({
    title: `Limiter of ${table.name}`, verb: "Change the limiter", done,
    sentence: "The new limiter holds at once for all who wait, and after a restart. What was inserted and sampled so far goes on counting.",
    fields: [
      {
        name: "min_steps", label: "Least steps", value: now.min_steps, kind: "number",
        hint: "Steps that must be stored before anything is sampled.",
      },
      {
        name: "ratio", label: "Samples per insert", value: now.samples_per_insert ?? "", kind: "number", optional: true,
        hint: "Items sampled for each step inserted, on average. Empty: only the least steps limit.",
      },
      {
        name: "buffer", label: "Error buffer", value: buffer, optional: true,
        hint: "How far one side may run ahead, in items: one number, or the least and the most, as in “7000, 9000”. Empty without samples per insert.",
      },
    ],
    send: (values) => {
      const parts = String(values.buffer).split(/[,;]\s+|;|\s+to\s+/).filter((part) => part.trim() !== "").map(
        (part) => typedNumber("Error buffer", part, false)
      );
      const limiter = {
        min_steps: typedNumber("Least steps", values.min_steps), samples_per_insert: typedNumber(
          "Samples per insert", values.ratio, false
        ),
        error_buffer: parts.length === 0 ? null : parts.length === 1 ? parts[0] : parts,
      };
      return act(["tables", table.name, "limiter"], { limiter, confirm: table.name });
    },
  });
}

export function changeCapacity(table, done) {
  const bounds = [["steps", table.steps], ["bytes", table.stored_bytes], ["episodes", table.episodes]];
  const smaller = (values) => bounds.filter(([name, stored]) => {
    try {
      return (typedNumber(name, values[name]) ?? Infinity) < stored;
    } catch {
      return false; // not a number: told when it is sent
    }
  });
  ask({
    title: `Capacity of ${table.name}`, verb: "Change the capacity", danger: true, done,
    sentence: "What is beyond the new capacity is removed at once, by the table's remover. The new capacity holds after a restart, too.",
    fields: bounds.map(([name, stored]) => ({
      name, label: `Most ${name}`, value: table.capacity[name] ?? "", kind: "number", optional: true,
      hint: `Stored now: ${name === "bytes" ? `${count(stored)} (${bytes(stored)})` : count(stored)}. Empty: no bound.`,
    })),
    changes: (values) => smaller(values).map(
      ([name, stored]) => `This is less than the ${count(stored)} ${name} stored: the excess is removed and cannot be brought back.`
    ).join(" "),
    typed: (values) => (smaller(values).length > 0 ? table.name : null),
    send: (values) => act(["tables", table.name, "capacity"], {
      capacity_steps: typedNumber("Most steps", values.steps), capacity_bytes: typedNumber("Most bytes", values.bytes),
      capacity_episodes: typedNumber("Most episodes", values.episodes), confirm: table.name,
    }),
  });
}

export function compact(table, done) {
  ask({
    title: `Compact ${table}`, verb: "Compact", done,
    sentence: "Segments that hold removed chunks are written anew without them, so that the disk gets the room back. Nothing that can be sampled changes; reading and writing go on, a little slower.",
    send: () => act(["tables", table, "compact"], { confirm: table }),
  });
}

export function makeSnapshot(where, done) {
  const day = new Date().toISOString().slice(0, 16).replace(/[:T]/g, "-");
  ask({
    title: "Make a snapshot", verb: "Make the snapshot", done,
    sentence: `The whole store as it is now is kept under ${where}. Sealed files are shared with the store, so it takes little room at first; reading and writing go on.`,
    fields: [{ name: "name", label: "Name", value: `store-${day}`, hint: "Letters, digits, “_”, “.” and “-”." }],
    send: (values) => act(["snapshots"], { name: values.name.trim(), confirm: values.name.trim() }),
  });
}

export function startScrub(done) {
  ask({
    title: "Scrub now", verb: "Start the round", done,
    sentence: "A round begins from the start: every chunk is read from disk and its checksum is checked, at the scrub's own pace. Damaged chunks are set aside.",
    send: () => act(["scrub"], { confirm: "scrub" }),
  });
}
