/** One queue: what moves and waits in it, its settings, consumers, bindings and messages, and what can be done with it. */
import { get, path, send } from "../shell/api.js";
import { ask } from "../shell/dialog.js";
import { h, setText } from "../shell/elements.js";
import { counted } from "../shell/format.js";
import { keyOf } from "../shell/rows.js";
import { live } from "../shell/live.js";
import { done, failed } from "../shell/notices.js";
import { badge, button, heading } from "../shell/parts.js";
import { link } from "../shell/route.js";
import { bindingsOf } from "./bindings.js";
import { browser } from "./browse.js";
import { publish } from "./publish.js";
import { queueOverview } from "./queue_overview.js";

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
        button("Purge", () => purge(vhost, name), "danger"),
        button("Delete", () => remove(vhost, name), "danger"),
      ]
    : [];
  const marks = [facts.type, facts.durable && "durable", facts.auto_delete && "auto-delete", facts.exclusive && "exclusive", facts.confirm_mode !== "standard" && facts.confirm_mode];
  main.append(
    heading(name || "(no name)", { above: [["Queues", link("queues")]], beside: [vhost !== "/" ? badge(`virtual host ${vhost}`) : null, ...marks.filter(Boolean).map((each) => badge(String(each)))], actions }),
    h("nav", { class: "tabs", "aria-label": "Parts of the queue" }, TABS.map(([each, text]) => h("a", { href: link("queues", [vhost, name], each ? { tab: each } : {}), "aria-current": each === tab ? "page" : null }, text))),
  );
  if (tab === "messages") main.append(browser(vhost, name, user, signal));
  else if (tab === "bindings") main.append(bindingsOf(vhost, name, "queue", user, signal));
  else main.append(queueOverview(vhost, name, facts, signal));
}

/**
 * The number of ready messages as of now.
 * @param {string} vhost
 * @param {string} name
 */
async function ready(vhost, name) {
  return live.queues.byKey.get(keyOf(vhost, name))?.messages_ready ?? (await get(`queues/${path(vhost, name)}`, { columns: "messages_ready" })).messages_ready;
}

/**
 * @param {string} vhost
 * @param {string} name
 */
async function purge(vhost, name) {
  const number = await ready(vhost, name);
  await ask({
    title: `Purge ${name}`, action: `Delete ${counted(number, "message")}`, danger: true, typed: name,
    text: `${counted(number, "ready message")} will be deleted, which cannot be undone. Messages that consumers hold stay.`,
    submit: async () => {
      await send("DELETE", `queues/${path(vhost, name)}/contents`);
      done(`${name} is purged.`);
    },
  });
}

/**
 * @param {string} vhost
 * @param {string} name
 */
async function remove(vhost, name) {
  const number = await ready(vhost, name);
  await ask({
    title: `Delete the queue ${name}`, action: `Delete it with ${counted(number, "message")}`, danger: true, typed: name,
    text: `The queue, its bindings and ${counted(number, "ready message")} will be deleted, which cannot be undone.`,
    submit: async () => {
      await send("DELETE", `queues/${path(vhost, name)}`);
      done(`${name} is deleted.`);
      location.hash = link("queues");
    },
  });
}

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
