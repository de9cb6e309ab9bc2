/**
 * Logging in by an identity provider: authorization code flow with PKCE (RFC 7636).
 *
 * The browser is sent to the provider with a hash of a secret, and comes back with a code. The broker gets both, and changes them
 * into a token: no script ever has it. What must be known when the browser comes back is kept for this window only, and once.
 */
import { get, send } from "./api.js";
import { reasonOf } from "./elements.js";

const KEY = "leveret.provider";
const LONGEST_MS = 600_000;
const OCTETS = 32;

/** Octets as text that needs no escaping in an address. @param {Uint8Array} octets */
export function asText(octets) {
  return btoa(String.fromCharCode(...octets)).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

/**
 * The address to which the browser is sent.
 * @param {{authorization_endpoint: string, client_id: string, scopes: string}} provider
 * @param {{state: string, challenge: string, back: string}} given
 */
export function addressOf(provider, given) {
  const url = new URL(provider.authorization_endpoint);
  const values = {
    response_type: "code", client_id: provider.client_id, redirect_uri: given.back, scope: provider.scopes, state: given.state,
    code_challenge: given.challenge, code_challenge_method: "S256",
  };
  for (const [name, value] of Object.entries(values)) if (value) url.searchParams.set(name, value);
  return url.href;
}

/**
 * What an address says to which the provider has sent the browser: null if it has not.
 * @param {string} search the query
 * @param {any} begun what was kept; null for nothing
 * @param {number} now
 * @returns {{code: string, verifier: string, error: string} | null}
 */
export function answerIn(search, begun, now) {
  const given = new URLSearchParams(search);
  const [state, code, error] = ["state", "code", "error"].map((name) => given.get(name) ?? "");
  if (!state || !(code || error)) return null;
  const refused = (/** @type {string} */ why) => ({ code: "", verifier: "", error: why });
  if (!begun || begun.state !== state) return refused("This login was not begun in this window: begin it again.");
  if (now - begun.at > LONGEST_MS) return refused("The login took too long: begin it again.");
  if (error) return refused(`The identity provider refuses: ${given.get("error_description") || error}`);
  return { code, verifier: begun.verifier, error: "" };
}

/** The address of the page, to which the provider sends the browser back. */
function back() {
  return location.origin + location.pathname;
}

/** Send the browser to the provider. */
export async function leave() {
  if (!globalThis.crypto?.subtle) throw new Error("Browsers allow this login over https only, or on the broker's own host.");
  const provider = await get("leveret/oauth");
  const [verifier, state] = [0, 1].map(() => asText(crypto.getRandomValues(new Uint8Array(OCTETS))));
  const hash = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier));
  sessionStorage.setItem(KEY, JSON.stringify({ state, verifier, hash: location.hash, at: Date.now() }));
  location.assign(addressOf(provider, { state, challenge: asText(new Uint8Array(hash)), back: back() }));
}

/**
 * Finish a login if the browser comes back from the provider.
 * @returns {Promise<string | null>} what went wrong; "" for nothing, null if it does not
 */
export async function arrive() {
  let begun = null;
  try {
    begun = JSON.parse(sessionStorage.getItem(KEY) ?? "null");
  } catch { /* as if nothing had been kept */ }
  const answer = answerIn(location.search, begun, Date.now());
  if (!answer) return null;
  sessionStorage.removeItem(KEY);
  history.replaceState(null, "", location.pathname + (begun?.hash ?? ""));
  if (answer.error) return answer.error;
  try {
    await send("POST", "leveret/oauth", { code: answer.code, code_verifier: answer.verifier, redirect_uri: back() });
    return "";
  } catch (error) {
    const reason = reasonOf(error);
    return reason === "Not_Authorized" ? "The broker does not take the login of the identity provider: its log has the reason." : reason;
  }
}
