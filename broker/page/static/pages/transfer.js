/** Messages moved, copied, retried and discarded by the broker: first counted, then done, with progress. */
import { get, path, send } from "../shell/api.js";
import { ask } from "../shell/dialog.js";
import { count, counted } from "../shell/format.js";
import { done, failed } from "../shell/notices.js";

/** @typedef {"move" | "copy" | "retry" | "discard" | "release" | "cancel" | "reschedule"} Action */
/** @typedef {{vhost: string, name: string}} Queue */

/** What an action is called, what has been done then, and what would be done to the messages; the last three are for held messages. */
const ACTIONS = /** @type {Record<Action, [title: string, past: string, future: string]>} */ ({
  move: ["Move messages", "moved", "go to"], copy: ["Copy messages", "copied", "are copied to"], retry: ["Retry dead letters", "put back where they died", "go back to their origins"],
  discard: ["Discard messages", "discarded", "will be deleted, which cannot be undone"], release: ["Release held messages", "released", "are delivered now"],
  cancel: ["Cancel held messages", "cancelled", "will be deleted, which cannot be undone"], reschedule: ["Reschedule held messages", "rescheduled", "are held until then"],
});
const HELD = new Set(["release", "cancel", "reschedule"]);
const TO = "Name of a queue, or exchange:NAME, or exchange:NAME/KEY";
const WHERE = "Such as headers.tenant == 'eu' and death.reason == 'rejected'; empty for all";
const STEP_MS = 250;

/**
 * Ask which messages, count them, ask again with the number, and do it; resolves when it is over, to true, or was given up.
 * @param {Action} action
 * @param {Queue[]} queues
 * @param {string} [where] a condition to begin with
 */
export async function transfer(action, queues, where = "") {
  const [name, past, future] = ACTIONS[action];
  const needsPlace = action === "move" || action === "copy";
  const isLoss = action === "discard" || action === "cancel";
  const whom = queues.length === 1 ? queues[0].name : counted(queues.length, "queue");
  /** @type {any} */
  let counting = null;
  /** @type {Record<string, any>} */
  let body = {};
  await ask({
    title: `${name} of ${whom}`, action: "Count them",
    text: `${action === "retry" ? "Each goes back to the queue in which it died. " : ""}Nothing happens before you have seen how many there are.`,
    fields: [
      ...(needsPlace ? [{ name: "destination", label: "To", required: true, hint: TO }] : []),
      ...(action === "reschedule" ? [{ name: "to", label: "Until", type: "datetime-local", required: true, hint: "In your own time zone" }] : []),
      { name: "where", label: "Which", value: where, hint: WHERE },
      { name: "limit", label: "At most", type: "number", hint: `Empty for all${queues.length > 1 ? "; of each queue" : ""}` },
    ],
    submit: async (values) => {
      body = Object.fromEntries(Object.entries(values).filter(([, value]) => value !== ""));
      if (body.to) body.to = new Date(body.to).getTime();
      counting = await all(action, queues, { ...body, dry_run: true });
    },
  });
  if (!counting) return;
  const number = counting.matched;
  const others = counting.refused ? ` ${counted(counting.refused, "message")} cannot: ${[...counting.causes].join("; ")}.` : "";
  const agreed = await ask({
    title: `${name} of ${whom}`, danger: isLoss, typed: isLoss && number ? whom : undefined,
    action: number ? `${name.split(" ")[0]} ${counted(number, "message")}` : "Close",
    text: number ? `${counted(number, "message")} of ${count(counting.examined)} ${future}${body.destination ? ` ${body.destination}` : ""}.${others}` : `No message meets this.${others}`,
    submit: async () => true,
  });
  if (!agreed || !number) return;
  try {
    const over = await all(action, queues, body);
    done(`${counted(over.done, "message")} ${past}.${over.refused ? ` ${counted(over.refused, "message")} left: ${[...over.causes].join("; ")}` : ""}`);
    return true;
  } catch (error) {
    failed(error, name);
  }
}

/**
 * Do it to one queue after the other, and add up what has come of it.
 * @param {Action} action
 * @param {Queue[]} queues
 * @param {Record<string, any>} body
 */
async function all(action, queues, body) {
  const sum = { examined: 0, matched: 0, done: 0, refused: 0, causes: new Set() };
  for (const { vhost, name } of queues) {
    const where = `leveret/queues/${path(vhost, name)}/`;
    const found = HELD.has(action) ? await send("POST", `${where}held`, { ...body, action }) : await finished(await send("POST", `${where}${action}`, body));
    for (const key of /** @type {const} */ (["examined", "matched", "done", "refused"])) sum[key] += found[key] ?? 0;
    for (const cause of Object.keys(found.causes ?? {})) sum.causes.add(cause);
  }
  return sum;
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
