// The columns that a table was made with.

import { shape } from "../format.js";
import { card, known, rows } from "../parts.js";
import { h } from "../view.js";

function leaves(tree, path, out) {
  const [kind, body] = Object.entries(tree ?? {})[0] ?? [];
  if (kind === "leaf") out.push({ path, ...body });
  else if (kind === "dict") for (const [key, child] of Object.entries(body)) leaves(child, `${path}/${key}`, out);
  else if (kind === "tuple") body.forEach((child, i) => leaves(child, `${path}/${i}`, out));
  return out;
}

// Returns the leaves of a signature in JSON, as rows.
export function columnsOf(signature) {
  return [
    ...leaves(
      signature.observation, "observation", []
    ), ...leaves(signature.action, "action", []), { path: "reward", ...signature.reward },
    ...Object.entries(signature.extras ?? {}).flatMap(([name, tree]) => leaves(tree, name, [])),
  ];
}

export const signatureCard = (signature) => card({
  title: "Signature", hint: "What a step of this table holds.", key: "signature",
}, rows({
  caption: "Columns of the signature", list: columnsOf(signature), key: (column) => column.path,
  columns: [
    { label: "Column", main: true, wrap: true, cell: (column) => column.path },
    { label: "Dtype", cell: (column) => h("code", null, column.dtype) },
    { label: "Shape", hint: "Of one step.", cell: (column) => shape(column.shape) },
    {
      label: "Precision", hint: "How it is stored: bit for bit, or as float16 where the loss is small enough.",
      cell: (column) => column.precision,
    },
    {
      label: "Largest error", number: true, hint: "The most that float16 may change a value by.",
      cell: (column) => known(
        column.max_error === null || column.max_error === undefined ? "" : String(column.max_error), "No bound was given."
      ),
    },
    {
      label: "Ragged", hint: "Whether steps may differ in their first dimension.",
      cell: (column) => (column.ragged ? "yes" : "no"),
    },
  ],
}));
