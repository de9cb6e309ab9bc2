/** One message: what is in it, where it came from, where it died. */
import { address } from "../shell/address.js";
import { fill, h } from "../shell/elements.js";
import { clock, counted, duration, moment, size } from "../shell/format.js";
import { done, failed } from "../shell/notices.js";
import { badge, button, facts, time } from "../shell/parts.js";
import { asCurl, asHex, asJson, asPika, octets } from "./message_text.js";

const PREVIEW = 160;
/** Headers that the chain of deaths says already. */
const OF_DEATHS = /^x-(death|(first|last)-death-(exchange|queue|reason))$/;

/**
 * A message that opens when it is clicked.
 * @param {any} message
 * @param {string} vhost
 * @param {import("../shell/elements.js").Children} [actions]
 * @param {{mark?: Node, when?: number, facts?: [string, import("../shell/elements.js").Children][]}} [more] what is known beside the
 *   message; `mark`: instead of its state, `when`: the time that is shown with it
 */
export function messageView(message, vhost, actions = [], { mark, when, facts: first = [] } = {}) {
  const kind = message.state === "ready" ? "" : "warn";
  const death = message.properties.headers?.["x-death"]?.[0];
  const task = message.properties.headers?.task; // of Celery
  const body = h("div", { class: "body" });
  const whole = h(
    "details", { class: "message" },
    h(
      "summary", null, message.number ? h("b", { class: "mono" }, `#${message.number}`) : null, mark ?? badge(message.state, kind),
      message.redelivered ? badge("redelivered", "warn") : null, death ? badge(`${death.reason} in ${death.queue}`, "bad") : null,
      typeof task === "string" ? badge(task) : null, h("span", { class: "mono" }, message.routing_key || "(no routing key)"), h("span", { class: "preview" }, preview(message)),
      h("span", { class: "faint small" }, [size(message.payload_bytes), message.age === null ? "" : `${duration(message.age)} old`, message.due ? `due ${moment(message.due)}` : "", when ? clock(when) : ""].filter(Boolean).join(", ")),
    ), body,
  );
  whole.addEventListener("toggle", () => {
    if (whole.open && !body.hasChildNodes()) fill(body, inside(message, vhost, first), h("div", { class: "row" }, copies(message, vhost), ...[actions].flat()));
  });
  return whole;
}

/** @param {any} message */
function preview({ payload, payload_encoding: encoding }) {
  return encoding === "base64" ? "(binary)" : payload.slice(0, PREVIEW);
}

/**
 * @param {any} message
 * @param {string} vhost
 * @param {[string, import("../shell/elements.js").Children][]} first
 */
function inside(message, vhost, first) {
  const { headers = {}, ...properties } = message.properties;
  const others = Object.entries(headers).filter(([name]) => !OF_DEATHS.test(name));
  return [
    facts([
      ...first, ["Exchange", message.exchange || "(default exchange)"], ["Routing key", h("code", null, message.routing_key)],
      ["Expires", message.expires ? time(message.expires) : null], ["Due", message.due ? time(message.due) : null],
      ["Held by", message.consumer_tag ? `consumer ${message.consumer_tag}, for ${duration(message.unacked_for)}` : null],
      .../** @type {[string, string][]} */ (Object.entries(properties).map(([name, value]) => [name, shown(value)])),
    ]),
    others.length ? h("div", null, h("h3", null, "Headers"), facts(others.map(([name, value]) => [name, h("code", null, shown(value))]))) : null,
    deaths(headers["x-death"], vhost), bodyView(message),
  ];
}

/** @param {unknown} value */
function shown(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

/**
 * The deaths of a message, the first first.
 * @param {any} found
 * @param {string} _vhost
 */
function deaths(found, _vhost) {
  if (!Array.isArray(found) || !found.length) return null;
  const steps = [...found].reverse().map((death) => h(
    "span", { class: "row" }, badge(`${death.reason}${death.count > 1 ? ` ${counted(Number(death.count), "time")}` : ""}`, "bad"),
    h("span", null, "in ", h("b", null, String(death.queue))), death.time ? h("span", { class: "faint small" }, time(Number(death.time) * 1000)) : null,
  ));
  return h("div", null, h("h3", null, "Died"), h("div", { class: "chain" }, steps.flatMap((step, at) => (at ? ["→", step] : [step]))));
}

/** @param {any} message */
function bodyView(message) {
  const json = asJson(message);
  const views = /** @type {[string, () => string][]} */ ([
    ...(json === null ? [] : [["JSON", () => json]]), ...(message.payload_encoding === "base64" ? [] : [["Text", () => message.payload]]),
    ["Hex", () => asHex(octets(message))],
  ]);
  const text = h("pre", { tabindex: "0", "aria-label": "Body" });
  const buttons = views.map(([name, make]) => {
    const made = button(name, () => {
      text.textContent = make();
      for (const each of buttons) each.setAttribute("aria-pressed", String(each === made));
    });
    return made;
  });
  buttons[0].click();
  return h("div", { class: "stack" }, h("div", { class: "row" }, h("h3", null, "Body"), buttons, message.truncated ? h("span", { class: "warn small" }, `the first part of ${size(message.payload_bytes)}`) : null), text);
}

/**
 * @param {any} message
 * @param {string} vhost
 */
function copies(message, vhost) {
  const base = new URL("api/", document.baseURI).href;
  return [
    copy("Copy as curl", () => asCurl(message, base, vhost)), copy("Copy as pika", async () => asPika(message, await address(), vhost)),
    copy("Copy the body", () => message.payload),
  ];
}

/**
 * @param {string} text
 * @param {() => string | Promise<string>} make
 */
function copy(text, make) {
  return button(text, async () => {
    try {
      await navigator.clipboard.writeText(await make());
      done("Copied.");
    } catch {
      failed(new Error("The browser does not let this page copy: it is not loopback, nor HTTPS."));
    }
  });
}
