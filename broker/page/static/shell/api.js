/** Requests to the API, which is all that the page knows of the broker. */

/** An answer that is an error: its text is for people. */
export class ApiError extends Error {
  /**
   * @param {number} status 0 if there was no answer
   * @param {string} reason
   */
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

const HEADERS = { "x-requested-with": "leveret", accept: "application/json" };

/** Fires `logged-out` when a request finds no session. */
export const session = new EventTarget();

/**
 * A path of the API, made of segments that are encoded.
 * @param {...string} segments
 */
export function path(...segments) {
  return segments.map(encodeURIComponent).join("/");
}

/**
 * Get an object or a list.
 * @param {string} where path below `api/`
 * @param {Record<string, string | number | boolean | undefined>} [query]
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export async function get(where, query = {}, signal = undefined) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  const asked = new URLSearchParams(given.map(([key, value]) => [key, String(value)])).toString();
  return request("GET", asked ? `${where}?${asked}` : where, undefined, signal);
}

/**
 * Change something.
 * @param {"POST" | "PUT" | "DELETE"} method
 * @param {string} where
 * @param {unknown} [body]
 * @returns {Promise<any>}
 */
export async function send(method, where, body) {
  return request(method, where, body === undefined ? undefined : JSON.stringify(body));
}

/**
 * @param {string} method
 * @param {string} where
 * @param {BodyInit} [body]
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
async function request(method, where, body, signal) {
  let answer;
  let text = "";
  try {
    answer = await fetch(`api/${where}`, { method, body, signal, headers: HEADERS, credentials: "same-origin" });
    text = await answer.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, "The broker does not answer.");
  }
  const value = decoded(text);
  if (answer.ok) return value;
  throw refused(answer.status, value);
}

/**
 * @param {number} status
 * @param {any} value
 */
function refused(status, value) {
  if (status === 401 && value?.error === "not_authorized") session.dispatchEvent(new Event("logged-out"));
  return new ApiError(status, reasonOf(status, value));
}

/**
 * Follow an answer that goes on: yields its texts as they come.
 * @param {string} where
 * @param {Record<string, string | number>} query
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<string, void>}
 */
export async function* follow(where, query, signal) {
  const asked = new URLSearchParams(Object.entries(query).map(([key, value]) => [key, String(value)]));
  let reader;
  try {
    const answer = await fetch(`api/${where}?${asked}`, { signal, headers: HEADERS, credentials: "same-origin" });
    if (!answer.ok || !answer.body) throw refused(answer.status, decoded(await answer.text()));
    reader = answer.body.getReader();
    const decoder = new TextDecoder();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield decoder.decode(value, { stream: true });
    }
  } catch (error) {
    if (signal.aborted || error instanceof ApiError) throw error;
    throw new ApiError(0, "The connection to the broker is lost.");
  } finally {
    reader?.cancel().catch(() => undefined);
  }
}

/**
 * Log in; the browser keeps the session, and no script sees it.
 * @param {FormData} form
 */
export async function login(form) {
  const body = new URLSearchParams();
  for (const [name, value] of form) body.append(name, String(value));
  return request("POST", "login", body);
}

/** @param {string} text */
function decoded(text) {
  try {
    return text ? JSON.parse(text) : null;
  } catch {
    return text;
  }
}

/**
 * The reason of an error in words.
 * @param {number} status
 * @param {any} value
 */
export function reasonOf(status, value) {
  const reason = value?.reason ?? value;
  if (status === 404) return "It does not exist (any more).";
  if (typeof reason === "string" && reason) return reason;
  return reason ? JSON.stringify(reason) : `The broker answers with status ${status}.`;
}
