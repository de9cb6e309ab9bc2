/** Bindings as a picture: boxes in columns, and lines with their keys between them. */
import { h, s } from "../shell/elements.js";
import { link } from "../shell/route.js";

/** @typedef {{name: string, kind: "exchange" | "queue", key: string}} End */

const BOX = 200;
const GAP = 170;
const ROW = 44;
const STEP = 70;
const KEYED = 62;
const MOST = 30;

/**
 * Draw what leads to something and what leads from it.
 * @param {string} vhost
 * @param {string} name
 * @param {"exchange" | "queue"} kind
 * @param {End[]} before
 * @param {End[]} after
 */
export function picture(vhost, name, kind, before, after) {
  const left = before.slice(0, MOST);
  const right = after.slice(0, MOST);
  const hidden = before.length - left.length + after.length - right.length;
  const drawn = matchMedia("(max-width: 640px)").matches ? below : beside;
  const [width, height, parts] = drawn(vhost, name, kind, left, right);
  const svg = s("svg", { viewBox: `-2 0 ${width + 4} ${height}`, role: "group", "aria-label": `Bindings of ${name || "the default exchange"}; the table has the same` }, parts);
  svg.style.maxWidth = `${width * 1.15}px`;
  return h("div", { class: "picture" }, left.length || right.length ? svg : null, hidden ? h("p", { class: "faint small" }, `${hidden} more are in the table only.`) : null);
}

/**
 * In three columns; returns width, height and parts.
 * @param {string} vhost
 * @param {string} name
 * @param {"exchange" | "queue"} kind
 * @param {End[]} left
 * @param {End[]} right
 * @returns {[number, number, Element[]]}
 */
function beside(vhost, name, kind, left, right) {
  const rows = Math.max(left.length, right.length, 1);
  const height = rows * ROW + 10;
  const x = left.length ? BOX + GAP : 0;
  const y = height / 2;
  const width = x + BOX + (right.length ? BOX + GAP : 0);
  const place = (/** @type {number} */ at, /** @type {number} */ count) => (height - count * ROW) / 2 + at * ROW + ROW / 2;
  return [width, height, [
    ...left.map((each, at) => edge(BOX, place(at, left.length), x, y, each.key, true)),
    ...right.map((each, at) => edge(x + BOX, y, x + BOX + GAP, place(at, right.length), each.key, false)),
    box(x, y, name || "(default)", kind, null, true),
    ...left.map((each, at) => box(0, place(at, left.length), each.name || "(default)", each.kind, href(vhost, each), false)),
    ...right.map((each, at) => box(x + BOX + GAP, place(at, right.length), each.name, each.kind, href(vhost, each), false)),
  ]];
}

/**
 * One below another, as a phone is narrow; the key of a binding is above the box that it comes from or leads to.
 * @type {typeof beside}
 */
function below(vhost, name, kind, left, right) {
  const x = left.length ? STEP : 0;
  const y = left.length ? left.length * KEYED + 34 : 22;
  const place = (/** @type {number} */ at) => at * KEYED + 44;
  const after = (/** @type {number} */ at) => y + 16 + place(at);
  const line = (/** @type {string} */ d, /** @type {number} */ atX, /** @type {number} */ atY, /** @type {string} */ key) =>
    s("g", {}, s("path", { class: "link", d }), s("text", { class: "faint", x: atX, y: atY - 21 }, clipped(key, 26)));
  return [x + BOX + (right.length ? STEP : 0), y + 22 + right.length * KEYED, [
    ...left.map((each, at) => line(`M${BOX} ${place(at)}H${BOX + 35}V${y - 16}`, 4, place(at), each.key)),
    ...right.map((each, at) => line(`M${x + 35} ${y + 16}V${after(at)}H${x + STEP}`, x + STEP + 4, after(at), each.key)),
    box(x, y, name || "(default)", kind, null, true),
    ...left.map((each, at) => box(0, place(at), each.name || "(default)", each.kind, href(vhost, each), false)),
    ...right.map((each, at) => box(x + STEP, after(at), each.name, each.kind, href(vhost, each), false)),
  ]];
}

/**
 * @param {string} vhost
 * @param {End} end
 */
function href(vhost, { name, kind }) {
  return link(kind === "queue" ? "queues" : "exchanges", [vhost, kind === "queue" ? name : name || "amq.default"]);
}

/**
 * @param {number} x
 * @param {number} y
 * @param {string} name
 * @param {"exchange" | "queue"} kind
 * @param {string | null} to
 * @param {boolean} isSelf
 */
function box(x, y, name, kind, to, isSelf) {
  const shown = [
    s("title", {}, `${kind} ${name}`),
    s("rect", { class: `box${isSelf ? " self" : ""}`, x, y: y - 16, width: BOX, height: 32, rx: kind === "queue" ? 4 : 16 }),
    s("text", { x: x + BOX / 2, y: y + 4.5, "text-anchor": "middle" }, clipped(name, 25)),
  ];
  return to ? s("a", { href: to }, shown) : s("g", {}, shown);
}

/**
 * @param {number} x1
 * @param {number} y1
 * @param {number} x2
 * @param {number} y2
 * @param {string} key
 * @param {boolean} isLeft whether the other end is at the left: the key is there, where the lines are apart
 */
function edge(x1, y1, x2, y2, key, isLeft) {
  const middle = (x1 + x2) / 2;
  const label = isLeft
    ? s("text", { class: "faint", x: x1 + 8, y: y1 - 5, "text-anchor": "start" }, clipped(key, 24))
    : s("text", { class: "faint", x: x2 - 8, y: y2 - 5, "text-anchor": "end" }, clipped(key, 24));
  return s("g", {}, s("path", { class: "link", d: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}` }), key ? label : null);
}

/**
 * @param {string} text
 * @param {number} most
 */
function clipped(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}
