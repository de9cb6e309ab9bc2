/** One queue: what moves and waits in it, its settings, consumers, bindings and messages, and what can be done with it. */
import { get, path, send } from "../shell/api.js";
import { ask } from "../shell/dialog.js";
import { h, refresh, setText } from "../shell/elements.js";
import { count, counted } from "../shell/format.js";
import { keyOf } from "../shell/rows.js";
import { live } from "../shell/live.js";
import { done, failed } from "../shell/notices.js";
import { badge, button, chips, heading } from "../shell/parts.js";
import { link } from "../shell/route.js";
import { bindingsOf } from "./bindings.js";
import { browser } from "./browse.js";
import { publish } from "./publish.js";
import { queueOverview } from "./queue_overview.js";

/** Names of queues that a question lists. */
const NAMES = 8;
const TABS = /** @type {[string, string][]} */ ([["", "Overview"], ["messages", "Messages"], ["bindings", "Bindings"]]);

/**
 * @param {import("../app.js").Place} place
 */
export async function showQueue(place) {
  const { main, route, user, signal } = place;
  const [vhost, name] = route.names;
  const tab = route.query.get("tab") ?? "";
  const facts = await get(`queues/${path(vhost, name)}`, {}, signal);
  const actions = user.mayChange
    ? [
        button("Publish", () => publish(vhost, "", name), "primary"), pauseButton(vhost, name, facts.state === "paused"),
        button("Purge", () => purgeQueues([{ vhost, name }]), "danger"),
        button("Delete", () => removeQueues([{ vhost, name }]).then((is) => is && (location.hash = link("queues"))), "danger"),
      ]
    : [];
  const marks = h("span", { class: "row" });
  const mark = () => {
    const row = live.queues.byKey.get(keyOf(vhost, name));
    if (row) refresh(marks, chips(row));
  };
  live.addEventListener("queues", mark, { signal });
  mark();
  main.append(
    heading(name || "(no name)", { above: [["Queues", link("queues")]], beside: [vhost !== "/" ? badge(`virtual host ${vhost}`) : null, badge(facts.type), marks], actions }),
    h("nav", { class: "tabs", "aria-label": "Parts of the queue" }, TABS.map(([each, text]) => h("a", { href: link("queues", [vhost, name], each ? { tab: each } : {}), "aria-current": each === tab ? "page" : null }, text))),
  );
  if (tab === "messages") main.append(browser(vhost, name, user, signal));
  else if (tab === "bindings") main.append(bindingsOf(vhost, name, "queue", user, signal));
  else main.append(queueOverview(vhost, name, facts, signal));
}

/** @typedef {{vhost: string, name: string}} Queue */

/**
 * Ask with the number of ready messages as of now and the name of the queue, or with their number, and do it to each.
 * @param {Queue[]} queues
 * @param {{verb: string, button: (messages: string) => string, text: (messages: string) => string, past: string, path: string}} act
 */
async function confirmed(queues, { verb, button: label, text, past, path: end }) {
  const ready = async (/** @type {Queue} */ { vhost, name }) => live.queues.byKey.get(keyOf(vhost, name))?.messages_ready ?? (await get(`queues/${path(vhost, name)}`, { columns: "messages_ready" })).messages_ready;
  const number = (await Promise.all(queues.map(ready))).reduce((sum, each) => sum + each, 0);
  const whom = queues.length === 1 ? queues[0].name : counted(queues.length, "queue");
  return ask({
    title: `${verb} ${whom}`, action: label(counted(number, "message")), danger: true, typed: whom,
    text: [text(counted(number, "ready message")), queues.length > 1 ? h("p", { class: "faint small" }, queues.slice(0, NAMES).map(({ name }) => name).join(", "), queues.length > NAMES ? ` and ${count(queues.length - NAMES)} more` : "") : null],
    submit: async () => {
      for (const { vhost, name } of queues) await send("DELETE", `queues/${path(vhost, name)}${end}`);
      done(`${whom} ${queues.length === 1 ? "is" : "are"} ${past}.`);
    },
  });
}

/** @param {Queue[]} queues */
export const purgeQueues = (queues) => confirmed(queues, {
  verb: "Purge", past: "purged", path: "/contents", button: (messages) => `Delete ${messages}`,
  text: (messages) => `${messages} will be deleted, which cannot be undone. Messages that consumers hold stay.`,
});

/** @param {Queue[]} queues */
export const removeQueues = (queues) => confirmed(queues, {
  verb: "Delete", past: "deleted", path: "", button: (messages) => `Delete with ${messages}`,
  text: (messages) => `${queues.length === 1 ? "The queue, its bindings" : "The queues, their bindings"} and ${messages} will be deleted, which cannot be undone.`,
});

/**
 * A button that pauses the queue, or resumes it if it is paused.
 * @param {string} vhost
 * @param {string} name
 * @param {boolean} isPaused
 */
function pauseButton(vhost, name, isPaused) {
  const made = button("", async () => {
    try {
      await send("PUT", `leveret/queues/${path(vhost, name)}/${isPaused ? "resume" : "pause"}`);
      isPaused = !isPaused;
      done(isPaused ? `${name} delivers nothing until it is resumed.` : `${name} delivers again.`);
    } catch (error) {
      failed(error, isPaused ? "Not resumed" : "Not paused");
    }
    setText(made, isPaused ? "Resume" : "Pause");
  });
  setText(made, isPaused ? "Resume" : "Pause");
  return made;
}
