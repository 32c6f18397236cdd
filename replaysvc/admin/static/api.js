// Asking the service: each call carries the token as a header; there are no cookies.

const BASE = new URL("../api/v1/", import.meta.url);
const KEY = "replaysvc.token";

// Why a call failed. status 0: the service did not answer at all.
export class ApiError extends Error {
  constructor(status, kind, message) {
    super(message);
    this.status = status;
    this.kind = kind;
  }

  // Whether it is worth asking again, since the service is gone or on its way up or down.
  get gone() {
    return this.status === 0 || this.status === 502 || this.status === 503 || this.status === 504;
  }
}

let kept = null; // for browsers that keep no session storage

export function token() {
  try {
    return sessionStorage.getItem(KEY) ?? kept;
  } catch {
    return kept;
  }
}

// Keeps a token until the tab is closed; null forgets it.
export function keepToken(secret) {
  kept = secret;
  try {
    if (secret === null) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, secret);
  } catch {
    // kept in memory alone
  }
}

// Returns a path with its arguments; those that are null or "" are left out.
export function path(parts, query = {}) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") search.append(name, one);
    }
  }
  const text = search.toString();
  return parts.map(encodeURIComponent).join("/") + (text ? `?${text}` : "");
}

async function ask(where, options) {
  const headers = { ...options.headers };
  if (token() !== null) headers.Authorization = `Bearer ${token()}`;
  let answer;
  try {
    answer = await fetch(
      new URL(where, BASE), { ...options, headers, credentials: "omit", cache: "no-store", redirect: "error" }
    );
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "Unreachable", "The service does not answer.");
  }
  if (answer.ok) return answer;
  let told = {};
  try {
    told = await answer.json();
  } catch {
    // not from us: a proxy between, say
  }
  const message = typeof told.message === "string" && told.message ? told.message : `The service answered with status ${answer.status}.`;
  throw new ApiError(answer.status, typeof told.error === "string" ? told.error : "", message);
}

// Returns the JSON of a GET.
export async function get(where, signal) {
  const answer = await ask(where, { signal });
  try {
    return await answer.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "Unreachable", "The answer of the service could not be read.");
  }
}

// Returns a picture and how many planes its column has.
export async function picture(where, signal) {
  const answer = await ask(where, { signal });
  return { blob: await answer.blob(), planes: Number(answer.headers.get("X-Replaysvc-Planes") ?? 1) || 1 };
}

// Returns the JSON of a POST.
export async function post(where, body) {
  const answer = await ask(
    where,
    { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }
  );
  return answer.json();
}
