/** Live tail: messages as they are published to an exchange. Publishers and queues notice nothing. */
import { follow, get, path } from "../shell/api.js";
import { fill, h, reasonOf, setText } from "../shell/elements.js";
import { count, counted, zone } from "../shell/format.js";
import { badge, button, heading, queueLink, time } from "../shell/parts.js";
import { link } from "../shell/route.js";
import { TailLines } from "../shell/tail_lines.js";
import { messageView } from "./message_view.js";

const MOST = 200;
const PAINT_MS = 250;
const SHOWN_OCTETS = 20000;
const QUEUES = 5;
export const title = "Live tail";

/** @param {import("../app.js").Place} place */
export async function show({ main, route, vhost, signal }) {
  main.append(heading("Live tail"));
  const vhosts = (await get("vhosts", { columns: "name" }, signal)).map((/** @type {any} */ each) => each.name);
  const [givenVhost, givenExchange] = route.names;
  const where = h("select", { "aria-label": "Virtual host", hidden: vhosts.length < 2 }, options(vhosts, givenVhost ?? (vhost || "/")));
  const exchange = h("select", { "aria-label": "Exchange" });
  const pattern = h("input", { type: "search", "aria-label": "Pattern of the routing key", placeholder: "#", spellcheck: "false", title: "As in a binding to a topic exchange: * is one word, # any number of them", value: route.query.get("pattern") ?? "" });
  const condition = h("input", { type: "search", "aria-label": "Condition", "data-filter": "", placeholder: "headers.tenant == 'eu'", spellcheck: "false", value: route.query.get("where") ?? "" });
  const problem = h("p", { class: "error", role: "alert", hidden: true });
  const list = h("div");
  const counts = h("span", { class: "faint small", "data-counts": "" });
  const start = h("button", { class: "primary" }, "Follow");
  const pause = button("Pause", () => setPaused(!isPaused));
  list.addEventListener("toggle", (event) => {
    if (event.target instanceof HTMLDetailsElement && event.target.open) setPaused(true); // what one reads stays where it is
  }, { capture: true });
  const clear = button("Clear", () => fill(list, empty()));
  const labelled = (/** @type {string} */ text, /** @type {HTMLElement} */ control) => h("label", { class: "field", hidden: control.hidden }, h("span", null, text), control);
  const form = h("form", { class: "toolbar fielded", submit: begin }, labelled("Virtual host", where), labelled("Exchange", exchange), labelled("Pattern of the routing key", pattern), labelled("Condition", condition), start, pause, clear);
  main.append(
    h("p", { class: "faint intro" }, "Messages as they are published. Nothing is taken from a queue, and publishers do not wait for this page."),
    h("section", { class: "panel", "aria-label": "Messages" }, form, h("div", { class: "toolbar" }, counts), problem, list),
  );
  let lines = new TailLines(MOST);
  let stopped = new AbortController();
  let isPaused = false;
  let isFollowing = false;
  let beyond = 0;

  where.addEventListener("change", () => fillExchanges().catch(say));
  signal.addEventListener("abort", () => stopped.abort());
  const timer = setInterval(paint, PAINT_MS);
  signal.addEventListener("abort", () => clearInterval(timer));
  setPaused(false);
  await fillExchanges();
  fill(list, empty());
  if (givenExchange && exchange.value === givenExchange && where.value === givenVhost) begin();
  else if (givenExchange) say(new Error(`There is no exchange ${givenExchange} in the virtual host ${givenVhost}.`));

  async function fillExchanges() {
    const found = await get(`exchanges/${path(where.value)}`, { columns: "name,message_stats.publish_in_details.rate" }, signal);
    const busy = (/** @type {any} */ each) => each.message_stats?.publish_in_details?.rate || (each.name && !each.name.startsWith("amq.") ? 0 : -1);
    const [busiest] = [...found].sort((one, other) => busy(other) - busy(one));
    fill(exchange, options(found.map((/** @type {any} */ each) => each.name || "amq.default"), givenExchange ?? (busiest?.name || "amq.default")));
  }

  /** @param {Event} [event] */
  async function begin(event) {
    event?.preventDefault();
    stopped.abort();
    stopped = new AbortController();
    const own = stopped;
    lines = new TailLines(MOST);
    beyond = 0;
    problem.hidden = true;
    setPaused(false);
    const asked = { pattern: pattern.value.trim(), where: condition.value.trim() };
    const query = Object.fromEntries(Object.entries(asked).filter(([, value]) => value));
    history.replaceState(null, "", link("tail", [where.value, exchange.value], query));
    fill(list, empty());
    try {
      const pieces = follow(`leveret/exchanges/${path(where.value, exchange.value)}/tail`, { ...query, truncate: SHOWN_OCTETS }, own.signal);
      for await (const piece of pieces) {
        if (own.signal.aborted) return;
        if (!isFollowing) setFollowing(true);
        lines.take(piece);
      }
      if (!own.signal.aborted) say(new Error(lines.end || "The broker has ended the tail."));
    } catch (error) {
      if (!own.signal.aborted) say(error);
    }
    if (own === stopped) setFollowing(false);
  }

  /** @param {boolean} is */
  function setFollowing(is) {
    isFollowing = is;
    if (is && !lines.seen) fill(list, empty());
    setText(counts, summary());
  }

  /** @param {boolean} is */
  function setPaused(is) {
    isPaused = is;
    setText(pause, is ? "Go on" : "Pause");
    pause.setAttribute("aria-pressed", String(is));
  }

  /** @param {unknown} error */
  function say(error) {
    if (signal.aborted) return;
    problem.textContent = reasonOf(error);
    problem.hidden = false;
    setText(counts, summary());
  }

  function empty() {
    return h("div", { class: "empty" }, isFollowing ? `Following ${exchange.selectedOptions[0]?.text ?? ""}: nothing has been published yet.` : "Choose an exchange, and follow it.");
  }

  function paint() {
    setText(counts, summary());
    if (isPaused || !lines.count) return;
    list.querySelector(".empty")?.remove();
    list.prepend(...lines.shown().reverse().map((message) => view(message, where.value)));
    while (list.children.length > MOST) {
      list.lastElementChild?.remove();
      beyond += 1;
    }
  }

  function summary() {
    if (!isFollowing && !lines.seen) return "Not following.";
    return [
      counted(lines.seen, "message"), isPaused ? `${count(lines.count + lines.passed)} of them not shown` : lines.passed ? `${count(lines.passed)} too fast to show` : "",
      beyond ? `the newest ${count(MOST)} are here` : "",
      isPaused ? "paused" : "", lines.lost ? `${count(lines.lost)} left out by the broker, because this page reads too slowly` : "", isFollowing ? "" : "ended", `times in ${zone()}`,
    ].filter(Boolean).join(", ");
  }
}

/**
 * @param {string[]} names
 * @param {string} chosen
 */
function options(names, chosen) {
  return names.map((name) => h("option", { value: name, selected: name === chosen }, name === "amq.default" ? "(default exchange)" : name));
}

/**
 * @param {any} message
 * @param {string} vhost
 */
function view(message, vhost) {
  const queues = message.routed_queues;
  const mark = queues.length ? badge(counted(queues.length, "queue"), "good") : badge("to no queue", "warn", "No binding matched: the message is gone, or was returned to its publisher.");
  return messageView({ ...message, age: null }, vhost, [], {
    mark, when: message.time,
    facts: [
      ["Published", time(message.time)],
      ["Went to", queues.length ? h("span", { class: "row" }, queues.slice(0, QUEUES).map((/** @type {string} */ name) => queueLink(vhost, name)), queues.length > QUEUES ? `and ${count(queues.length - QUEUES)} more` : "") : "no queue"],
      ["By", message.user ? h("span", null, `${message.user}, on `, h("a", { href: link("connections", [message.connection]) }, message.connection)) : "the broker itself"],
    ],
  });
}
