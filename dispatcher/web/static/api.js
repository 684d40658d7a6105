// Requests to the server. Everything that goes wrong is an ApiError with a text for people.

const TIMEOUT_MS = 20_000;
const LOADING_MS = 500;

export class ApiError extends Error {
  /** `status` 0: no answer came. */
  constructor(status, text) {
    super(text);
    this.status = status;
  }

  /** The server reads the workspace for the first time. */
  isLoading = false;
  // Which filter makes no sense: {name, number}, its number among those of this name; null when it is another error.
  filter = null;

  get isUnreachable() {
    return this.status === 0 || this.status === 502 || this.status === 503 || this.status === 504;
  }
}

/** The JSON at `path`, when the server has read the workspace; `params` are URLSearchParams or an object, whose undefined and null values are left out. */
export async function get(path, params = {}, signal = undefined) {
  const query = toQuery(params).toString();
  for (;;) {
    try {
      return await request(query ? `${path}?${query}` : path, {}, signal);
    } catch (error) {
      if (!error.isLoading) throw error;
      await pause(LOADING_MS, signal);
    }
  }
}

function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}

export function post(path, body) {
  return request(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Dispatcher-Request": "1" },
    body: JSON.stringify(body),
  });
}

/** The path of a job's resource; ids are file names, but the URL must not take them apart. */
export function jobPath(job, rest = "") {
  return `api/jobs/${encodeURIComponent(job)}${rest}`;
}

function toQuery(params) {
  if (params instanceof URLSearchParams) return params;
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    for (const one of Array.isArray(value) ? value : [value])
      if (one !== undefined && one !== null && one !== "") query.append(name, one);
  }
  return query;
}

async function request(url, options, signal) {
  const limit = AbortSignal.timeout(TIMEOUT_MS);
  const signals = signal ? AbortSignal.any([signal, limit]) : limit;
  let response, body;
  try {
    response = await fetch(url, { ...options, signal: signals, credentials: "same-origin", cache: "no-store" });
    body = await response.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, limit.aborted ? `no answer within ${TIMEOUT_MS / 1000} s` : "no answer");
  }
  const found = parsed(body);
  if (response.ok && found !== undefined) return found;
  const failure = new ApiError(response.ok ? 502 : response.status, found?.error ?? `HTTP status ${response.status}`);
  failure.isLoading = Boolean(found?.loading);
  failure.filter = found?.filter ?? null;
  throw failure;
}

function parsed(body) {
  try {
    return JSON.parse(body);
  } catch {
    return undefined;
  }
}

/** Whether an error only says that a newer request took the place of this one. */
export function isAborted(error) {
  return error?.name === "AbortError";
}

/** Keeps the newest answer of one kind of question: a newer question ends the one before. */
export class Loader {
  data = null;
  error = null;
  isLoading = false;
  #controller = null;

  constructor(onChange) {
    this.onChange = onChange;
  }

  async load(path, params) {
    this.#controller?.abort();
    const controller = (this.#controller = new AbortController());
    this.isLoading = true;
    try {
      this.data = await get(path, params, controller.signal);
      this.error = null;
    } catch (error) {
      if (controller.signal.aborted) return null;
      this.error = error;
    }
    this.isLoading = false;
    this.onChange();
    return this.error ? null : this.data;
  }

  stop() {
    this.#controller?.abort();
  }
}
