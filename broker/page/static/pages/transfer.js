/** Messages moved, copied, retried and discarded by the broker: first counted, then done, with progress. */
import { get, path, send } from "../shell/api.js";
import { ask } from "../shell/dialog.js";
import { count, counted } from "../shell/format.js";
import { done, failed } from "../shell/notices.js";

/** @typedef {"move" | "copy" | "retry" | "discard"} Action */

const TITLES = { move: "Move messages", copy: "Copy messages", retry: "Retry dead letters", discard: "Discard messages" };
const DONE = { move: "moved", copy: "copied", retry: "put back where they died", discard: "discarded" };
const TO = "Name of a queue, or exchange:NAME, or exchange:NAME/KEY";
const WHERE = "Such as headers.tenant == 'eu' and death.reason == 'rejected'; empty for all";
const STEP_MS = 250;

/**
 * Ask which messages, count them, ask again with the number, and do it; resolves when it is over or was given up.
 * @param {Action} action
 * @param {string} vhost
 * @param {string} queue
 * @param {string} [where] a condition to begin with
 */
export async function transfer(action, vhost, queue, where = "") {
  const needsPlace = action === "move" || action === "copy";
  /** @type {any} */
  let counting = null;
  /** @type {Record<string, any>} */
  let body = {};
  await ask({
    title: `${TITLES[action]} of ${queue}`, action: "Count them",
    text: action === "retry" ? "Each goes back to the queue in which it died. Nothing happens before you have seen how many there are." : "Nothing happens before you have seen how many there are.",
    fields: [
      ...(needsPlace ? [{ name: "destination", label: "To", required: true, hint: TO }] : []),
      { name: "where", label: "Which", value: where, hint: WHERE },
      { name: "limit", label: "At most", type: "number", hint: "Empty for all" },
    ],
    submit: async (values) => {
      body = Object.fromEntries(Object.entries(values).filter(([, value]) => value !== ""));
      counting = await finished(await send("POST", where_(vhost, queue, action), { ...body, dry_run: true }));
    },
  });
  if (!counting) return;
  const number = counting.matched ?? 0;
  const others = counting.refused ? ` ${counted(counting.refused, "message")} cannot: ${Object.keys(counting.causes ?? {}).join("; ")}.` : "";
  const agreed = await ask({
    title: `${TITLES[action]} of ${queue}`, danger: action === "discard", typed: action === "discard" && number ? queue : undefined,
    action: number ? `${TITLES[action].split(" ")[0]} ${counted(number, "message")}` : "Close",
    text: number ? `${counted(number, "message")} of ${count(counting.examined)} ${body.destination ? `go to ${body.destination}` : action === "retry" ? "go back to their origins" : "will be deleted, which cannot be undone"}.${others}` : `No message meets this.${others}`,
    submit: async () => true,
  });
  if (!agreed || !number) return;
  try {
    const over = await finished(await send("POST", where_(vhost, queue, action), body));
    done(`${counted(over.done, "message")} ${DONE[action]}.${over.refused ? ` ${counted(over.refused, "message")} left: ${Object.keys(over.causes).join("; ")}` : ""}`);
  } catch (error) {
    failed(error, TITLES[action]);
  }
}

/**
 * @param {string} vhost
 * @param {string} queue
 * @param {Action} action
 */
function where_(vhost, queue, action) {
  return `leveret/queues/${path(vhost, queue)}/${action}`;
}

/**
 * Wait for the end of a transfer, which goes on in the broker whether or not the page does.
 * @param {any} started
 */
async function finished(started) {
  let now = started;
  while (now.state === "running") {
    await new Promise((resolve) => setTimeout(resolve, STEP_MS));
    now = await get(`leveret/transfers/${now.id}`);
  }
  if (now.error) throw new Error(now.error);
  return now;
}
