/** The last lines of the log of the broker, and new ones as they are written. */
import { get } from "../shell/api.js";
import { h, setText } from "../shell/elements.js";
import { clock, count, counted, zone } from "../shell/format.js";
import { badge, button, heading, time } from "../shell/parts.js";
import { poll } from "../shell/poll.js";
import { Table } from "../shell/table.js";
import { matcher } from "../shell/table_rows.js";

const KEPT = 1000;
const SHOWN = 300;
const SECONDS = 2;
const LEVELS = ["info", "notice", "warning", "error", "critical"];
export const title = "Logs";

/** @typedef {{number: number, time: number, level: string, category: string, message: string}} Line */

/** @param {import("../app.js").Place} place */
export function show({ main, route, signal }) {
  main.append(heading("Logs"));
  const filter = h("input", { type: "search", placeholder: "Filter or /regex/", "aria-label": "Filter", "data-filter": "", value: route.query.get("filter") ?? "" });
  const level = h("select", { "aria-label": "Level" }, LEVELS.map((each) => h("option", { value: each }, each === "info" ? "All levels" : `${each} and above`)));
  const total = h("span", { class: "faint small" }, "Reading…");
  const pause = button("Pause", () => {
    isPaused = !isPaused;
    setText(pause, isPaused ? "Go on" : "Pause");
    pause.setAttribute("aria-pressed", String(isPaused));
    if (!isPaused) again();
  });
  /** @type {Table<Line>} */
  const table = new Table({
    id: "logs", label: "Lines of the log", key: (line) => String(line.number), sort: "",
    columns: [
      { name: "time", title: `Time (${zone()})`, value: (line) => line.number, show: (line) => h("span", { class: "mono" }, dated(line.time)) },
      { name: "level", title: "Level", value: (line) => line.level, show: (line) => levelBadge(line.level) },
      { name: "category", title: "Category", value: (line) => line.category },
      { name: "message", title: "Message", head: true, wide: true, value: (line) => line.message, show: (line) => h("span", { class: "lines mono" }, line.message) },
    ],
    empty: () => (lines.length ? "No line has that." : "Nothing has been logged at this level since the broker began. What is logged is set by log.console.level, log.file.level and log.*.level."),
  });
  /** @type {Line[]} */
  let lines = [];
  let last = -1;
  let missed = 0;
  let isPaused = false;
  const paint = () => {
    const isWanted = matcher(filter);
    const found = lines.filter((line) => isWanted(`${line.level} ${line.category} ${line.message}`));
    const newest = found.slice(-SHOWN).reverse();
    table.set(newest);
    setText(total, [
      newest.length < found.length ? `the newest ${count(newest.length)} of ${counted(found.length, "line")}` : counted(found.length, "line"),
      missed ? `${count(missed)} were too many to keep` : "", isPaused ? "paused" : "",
    ].filter(Boolean).join(", "));
  };
  const box = h("section", { class: "panel" }, h("div", { class: "toolbar" }, filter, level, pause, total), table.element);
  main.append(box);
  filter.addEventListener("input", paint);
  const again = poll({
    place: box, signal, seconds: SECONDS,
    read: async (aborted) => (isPaused ? null : get("leveret/logs", { level: level.value, count: KEPT, after: last < 0 ? undefined : last }, aborted)),
    show: (found) => {
      if (!found) return paint();
      if (found.last < last) lines = [];
      const known = lines.at(-1)?.number ?? 0;
      lines = [...lines, ...found.lines.filter((/** @type {Line} */ line) => line.number > known)].slice(-KEPT);
      missed += found.missed;
      last = found.last;
      paint();
    },
  });
  level.addEventListener("change", () => {
    lines = [];
    last = -1;
    missed = 0;
    again();
  });
}

/** @param {number} milliseconds */
function dated(milliseconds) {
  const whole = time(milliseconds);
  const day = new Date(milliseconds).toLocaleDateString();
  whole.textContent = `${day === new Date().toLocaleDateString() ? "" : `${day} `}${clock(milliseconds)}`;
  return whole;
}

/** @param {string} level */
function levelBadge(level) {
  return badge(level, level === "warning" ? "warn" : level === "info" || level === "notice" ? "" : "bad");
}
