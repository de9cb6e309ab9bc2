/** What has been done, or could not be, in the corner for some seconds. */
import { byId, h, reasonOf } from "./elements.js";

const SECONDS = 6;

/**
 * Say that something is done.
 * @param {string} text
 */
export function done(text) {
  notice(text, "");
}

/**
 * Say what could not be done, and why.
 * @param {unknown} error
 * @param {string} [what]
 */
export function failed(error, what = "") {
  const reason = reasonOf(error);
  notice(what ? `${what}: ${reason}` : reason, "bad");
}

/**
 * @param {string} text
 * @param {string} kind
 */
function notice(text, kind) {
  const made = h("div", { class: `notice ${kind}` }, text);
  byId("notices", HTMLElement).append(made);
  setTimeout(() => made.remove(), (kind ? 2 : 1) * SECONDS * 1000);
}
