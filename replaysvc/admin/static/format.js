// Numbers, sizes and times as words. What is not known (null) is an en dash.

export const DASH = "–";
const GROUPED = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
export const NARROW = "\u202f"; // a narrow space that does not break, between a number and its unit

const unknown = (value) => value === null || value === undefined || (typeof value === "number" && Number.isNaN(value));

// Returns a whole number with separators; a string of digits is one that is too large for a number.
export function count(value) {
  if (unknown(value)) return DASH;
  if (typeof value === "string") return /^-?\d+$/.test(value) ? value.replace(/\B(?=(\d{3})+$)/g, ",") : value;
  return GROUPED.format(value);
}

// Returns a count that fits a tile: 1,234 or 48.2 M.
export function short(value) {
  if (unknown(value)) return DASH;
  const size = Math.abs(Number(value));
  if (size < 99_999.5) return count(value);
  for (const [limit, unit] of [[1e6, "k"], [1e9, "M"], [1e12, "G"], [Infinity, "T"]]) {
    const scaled = Number(value) / { k: 1e3, M: 1e6, G: 1e9, T: 1e12 }[unit];
    if (size < limit * 0.9995) return `${digits(scaled)}${NARROW}${unit}`;
  }
  return DASH;
}

// Returns three significant digits, with separators.
export function digits(value, significant = 3) {
  if (unknown(value)) return DASH;
  if (typeof value === "string") return value;
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e15 || size < 1e-4) return tenPower(value, significant);
  const after = Math.max(0, significant - 1 - Math.floor(Math.log10(size)));
  return new Intl.NumberFormat("en-US", { maximumFractionDigits: Math.min(after, 20) }).format(value);
}

const RAISED = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

function tenPower(value, significant) {
  const [head, power] = value.toExponential(significant - 1).split("e");
  return `${Number(head)}${NARROW}×${NARROW}10${[...power.replace("+", "")].map((sign) => RAISED[sign]).join("")}`;
}

export function bytes(value) {
  if (unknown(value)) return DASH;
  const { scale, unit } = byteUnit(value);
  const scaled = value / scale;
  return `${unit === "B" ? count(scaled) : digits(scaled)}${NARROW}${unit}`;
}

// Returns the unit that fits sizes up to `largest`, and how many bytes it is.
export function byteUnit(largest) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let power = 0;
  while (power < units.length - 1 && Math.abs(largest) >= 1023.5 * 1024 ** power) power++;
  return { scale: 1024 ** power, unit: units[power] };
}

export const rate = (value, unit) => (
  unknown(value) ? DASH : `${value >= 1000 ? short(Math.round(value)) : digits(value)}${NARROW}${unit}/s`
);
export const byteRate = (value) => (unknown(value) ? DASH : `${bytes(value)}/s`);
export const ratio = (value) => (unknown(value) ? DASH : `${digits(value)}×`);

export function share(value) {
  if (unknown(value)) return DASH;
  const percent = value * 100;
  if (percent > 0 && percent < 0.05) return `<${NARROW}0.1${NARROW}%`;
  return `${new Intl.NumberFormat("en-US", { maximumFractionDigits: percent >= 99.95 && percent < 100 ? 2 : 1 }).format(percent)}${NARROW}%`;
}

// Returns a time span with one unit: 3.2 ms, 4.1 s, 12 min, 3.5 h, 2 days.
export function span(seconds) {
  if (unknown(seconds)) return DASH;
  const size = Math.abs(seconds);
  if (size === 0) return `0${NARROW}s`;
  if (size < 0.9995e-3) return `${digits(seconds * 1e6)}${NARROW}µs`;
  if (size < 0.9995) return `${digits(seconds * 1e3)}${NARROW}ms`;
  if (size < 99.95) return `${digits(seconds)}${NARROW}s`;
  if (size < 5970) return `${digits(seconds / 60)}${NARROW}min`;
  if (size < 48 * 3600) return `${digits(seconds / 3600)}${NARROW}h`;
  if (size < 730 * 86400) return `${digits(seconds / 86400)}${NARROW}days`;
  return `${digits(seconds / 86400 / 365.25)}${NARROW}years`;
}

// Returns a time span in words, its two largest units: "3 days 4 hours".
export function words(seconds) {
  if (unknown(seconds)) return DASH;
  if (seconds < 1) return "less than a second";
  const parts = [];
  let rest = Math.round(seconds);
  for (const [size, name] of [[86400, "day"], [3600, "hour"], [60, "minute"], [1, "second"]]) {
    const many = Math.floor(rest / size);
    rest -= many * size;
    if (many > 0) parts.push(plural(many, name));
    else if (parts.length > 0) break;
    if (parts.length === 2) break;
  }
  return parts.join(" ");
}

export const plural = (many, name, names = `${name}s`) => `${count(many)} ${Number(many) === 1 ? name : names}`;

// Returns how long ago something was, given in seconds.
export function ago(seconds) {
  if (unknown(seconds)) return DASH;
  if (seconds < 2) return "just now";
  for (const [size, name] of [[86400, "day"], [3600, "hour"], [60, "minute"], [1, "second"]]) {
    if (seconds >= size) return `${plural(Math.floor(seconds / size), name)} ago`;
  }
  return DASH;
}

const WHEN = new Intl.DateTimeFormat(
  "en-GB",
  { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit" }
);
export const when = (at_s) => (unknown(at_s) || at_s === 0 ? DASH : WHEN.format(new Date(at_s * 1000)));

// Returns local time in the form that an axis of dates takes.
export function axisTime(at_s) {
  const date = new Date(at_s * 1000);
  const two = (value, width = 2) => String(value).padStart(width, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${two(date.getMilliseconds(), 3)}`;
}

// Returns a value of a step as text: numbers may come as "nan", "inf" or a string of digits.
export function value(one) {
  if (Array.isArray(one)) return `[${one.slice(0, 16).map(value).join(", ")}${one.length > 16 ? `, … ${one.length - 16} more` : ""}]`;
  if (typeof one === "number") return Number.isInteger(one) ? count(one) : digits(one, 4);
  return unknown(one) ? DASH : String(one);
}

export const shape = (sizes) => (sizes.length === 0 ? "one number" : sizes.map((size) => size ?? "any").join(" × "));

// Returns what Plotly shows as it is: it reads its texts as a kind of HTML, with links.
export const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
