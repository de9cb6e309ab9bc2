/** What a policy would change, as the broker says, while somebody types it. */
import { path, send } from "../shell/api.js";
import { h, refresh } from "../shell/elements.js";
import { count, counted } from "../shell/format.js";
import { live } from "../shell/live.js";
import { badge } from "../shell/parts.js";

const PAUSE_MS = 250;
const SHOWN = 8;

/**
 * @param {boolean} operator
 * @param {AbortSignal} signal
 */
export function policyPreview(operator, signal) {
  const element = h("div", { class: "stack", role: "status" });
  const over = new AbortController();
  /** @type {[string, string, object | null | undefined] | null} */
  let asked = null;
  let waiting = 0;
  const say = async () => {
    waiting = 0;
    if (!asked) return;
    const question = asked;
    const [vhost, name, policy] = question;
    if (policy === undefined) return refresh(element, h("p", { class: "faint small" }, "Type a pattern and add a setting: what they would change is shown here."));
    const made = await send("POST", `leveret/explain/policy/${path(vhost)}`, { name, operator, ...(policy ? { policy } : {}) }).then(said, (error) => [h("p", { class: "error" }, error.message)]);
    if (asked === question && !over.signal.aborted) refresh(element, made);
  };
  const soon = () => {
    if (!waiting) waiting = setTimeout(say, PAUSE_MS);
  };
  live.addEventListener("queues", soon, { signal: AbortSignal.any([signal, over.signal]) });
  return {
    element, end: () => over.abort(),
    /**
     * @param {string} vhost
     * @param {string} name
     * @param {object | null | undefined} policy null if it is removed; undefined if it is not complete
     */
    show: (vhost, name, policy) => {
      asked = [vhost, name, policy];
      soon();
    },
  };
}

/** @param {any} found */
function said({ matched, changed, dropped, queues, exchanges }) {
  const value = (/** @type {unknown} */ each) => (each === null || each === undefined ? "not set" : JSON.stringify(each));
  const lost = dropped ? h("p", { class: "error", role: "alert" }, h("b", null, `Deletes ${counted(dropped, "message")} at once.`), " They do not fit, and there is no dead letter exchange.") : null;
  const others = changed - Math.min(SHOWN, queues.length);
  return [
    h("p", { class: "faint small" }, `Matches ${counted(matched, "queue")} now; changes ${counted(changed, "queue")}${exchanges.length ? ` and ${counted(exchanges.length, "exchange")}` : ""}.`), lost,
    queues.length ? h("ul", { class: "changes" }, queues.slice(0, SHOWN).map((/** @type {any} */ each) => h(
      "li", null, h("b", null, each.name), ": ", each.changes.map((/** @type {any} */ one) => `${one.key}: ${value(one.now)} → ${value(one.then)}`).join(", "), " ",
      each.dropped ? badge(each.dead_lettered ? `${count(each.dropped)} dead-lettered` : `${count(each.dropped)} deleted`, each.dead_lettered ? "warn" : "bad") : null,
    )), others > 0 ? h("li", null, `and ${counted(others, "other queue")}`) : null) : null,
  ];
}
