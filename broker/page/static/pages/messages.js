/** Messages: a queue is chosen, and looked into; and what is being moved. */
import { get, send } from "../shell/api.js";
import { fill, h, refresh } from "../shell/elements.js";
import { count, moment } from "../shell/format.js";
import { live } from "../shell/live.js";
import { failed } from "../shell/notices.js";
import { badge, button, heading, listed, panel } from "../shell/parts.js";
import { poll } from "../shell/poll.js";
import { link } from "../shell/route.js";

export const title = "Messages";
const MOST = 500;

/** @param {import("../app.js").Place} place */
export function show({ main, user, signal }) {
  const names = h("datalist", { id: "queue-names" });
  const queue = h("input", { type: "search", list: "queue-names", "data-filter": "", placeholder: "Name of a queue", "aria-label": "Queue", required: true });
  const problem = h("p", { class: "error", role: "alert", hidden: true });
  const look = (/** @type {Event} */ event) => {
    event.preventDefault();
    const row = [...live.queues.byKey.values()].find((each) => each.name === queue.value);
    problem.hidden = Boolean(row);
    problem.textContent = "There is no queue of this name.";
    if (row) location.hash = link("queues", [row.vhost, row.name], { tab: "messages" });
  };
  const suggest = () => fill(names, [...live.queues.byKey.values()].filter((row) => row.messages).sort((one, other) => other.messages - one.messages).slice(0, MOST).map((row) => h("option", { value: row.name }, `${count(row.messages)} messages`)));
  const transfers = h("div");
  main.append(heading("Messages"), h("div", { class: "stack" },
    panel("Look into a queue", [h("form", { class: "row", submit: look }, queue, names, h("button", { class: "primary" }, "Look")), problem, h("p", { class: "faint small" }, "Nothing is consumed: the order and the redelivered flags do not change.")]),
    panel("Messages being moved, copied, retried and discarded", transfers, [], true)));
  live.addEventListener("queues", suggest, { signal, once: true });
  suggest();
  const again = poll({ read: (aborted) => get("leveret/transfers", {}, aborted), place: main, signal, seconds: 2, show: (rows) => refresh(transfers, transferTable(rows, user, () => again())) });
}

/**
 * @param {any[]} rows
 * @param {import("../app.js").User} user
 * @param {() => void} again
 */
function transferTable(rows, user, again) {
  if (!rows.length) return h("div", { class: "empty" }, "None since the start of the broker. Retry, move, copy and discard are on the page of a queue, under Messages.");
  const cancel = (/** @type {number} */ id) => async () => {
    try {
      await send("DELETE", `leveret/transfers/${id}`);
      again();
    } catch (error) {
      failed(error, "Not stopped");
    }
  };
  return listed("Transfers", ["What", "Began", "From", "To", "State", "Done", "Actions"], [...rows].reverse().map((row) => [
    `${row.action}${row.dry_run ? " (counted)" : ""}`, moment(row.began), row.queue, row.destination ?? "",
    badge(row.state, row.state === "done" ? "good" : row.state === "running" ? "warn" : "bad", row.error), `${count(row.done)} of ${count(row.matched)}`,
    row.state === "running" && user.mayChange ? button("Stop", cancel(row.id)) : "",
  ]));
}
