/** Messages of a queue without consuming them, chosen by a condition. */
import { get, path } from "../shell/api.js";
import { fill, h, reasonOf } from "../shell/elements.js";
import { counted } from "../shell/format.js";
import { button, panel } from "../shell/parts.js";
import { messageView } from "./message_view.js";
import { transfer } from "./transfer.js";

const PAGE = 25;
const SHOWN_OCTETS = 20000;

/**
 * @param {string} vhost
 * @param {string} queue
 * @param {import("../app.js").User} user
 * @param {AbortSignal} signal
 */
export function browser(vhost, queue, user, signal) {
  const where = h("input", { type: "search", placeholder: "headers.tenant == 'eu'", "aria-label": "Condition", "data-filter": "", spellcheck: "false" });
  const end = h("select", { "aria-label": "Order" }, h("option", { value: "head" }, "Oldest first"), h("option", { value: "tail" }, "Newest first"));
  const list = h("div");
  const problem = h("p", { class: "error", role: "alert", hidden: true });
  const summary = h("span", { class: "faint small", role: "status" });
  const more = button("More", () => read(next));
  more.hidden = true;
  let next = "";
  let shown = 0;

  /** @param {string} after */
  async function read(after) {
    problem.hidden = true;
    try {
      const found = await get(
        `leveret/queues/${path(vhost, queue)}/messages`,
        { count: PAGE, from: end.value, where: where.value, after, truncate: SHOWN_OCTETS }, signal,
      );
      if (!after) {
        fill(list);
        shown = 0;
      }
      list.append(...found.messages.map((/** @type {any} */ message) => messageView(message, vhost)));
      shown += found.messages.length;
      if (ofHeld && found.messages.some((/** @type {any} */ each) => each.state === "held")) ofHeld.hidden = false;
      next = found.next ?? "";
      more.hidden = !next;
      summary.textContent = `${counted(shown, "message")} shown${found.complete ? "" : ", there are more"}`;
      if (!shown) fill(list, h("div", { class: "empty" }, where.value ? "No message meets the condition." : "The queue is empty."));
    } catch (error) {
      if (signal.aborted) return;
      problem.textContent = reasonOf(error);
      problem.hidden = false;
    }
  }
  const form = h("form", { class: "toolbar", submit: (/** @type {Event} */ event) => (event.preventDefault(), read("")) }, where, end, h("button", null, "Look"), summary);
  end.addEventListener("change", () => read(""));
  const act = (/** @type {import("./transfer.js").Action} */ action) => async () => {
    await transfer(action, [{ vhost, name: queue }], where.value);
    read("");
  };
  const actions = user.mayChange
    ? [button("Retry…", act("retry")), button("Move…", act("move")), button("Copy…", act("copy")), button("Discard…", act("discard"), "danger")]
    : [];
  const ofHeld = user.mayChange && h("div", { class: "toolbar", hidden: true }, h("span", { class: "faint small" }, "Held messages:"), button("Release…", act("release")), button("Reschedule…", act("reschedule")), button("Cancel…", act("cancel"), "danger"));
  read("");
  return h("div", { class: "stack" },
    h("p", { class: "faint small" }, "Nothing is consumed: the order and the redelivered flags do not change."),
    panel("Messages", [form, ofHeld, problem, list, h("div", { class: "toolbar" }, more)], actions, true));
}
