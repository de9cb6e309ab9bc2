/** In the bar: whether the page is up to date, whether the broker raises an alarm, and a button that has the page stay as it is. */
import { fill } from "./elements.js";
import { live } from "./live.js";
import { badge } from "./parts.js";

/**
 * @param {HTMLElement} place
 * @param {HTMLElement} name
 * @param {HTMLElement} pause
 */
export function bindStatus(place, name, pause) {
  let last = "";
  const show = () => {
    const node = live.overview?.node;
    if (node) name.textContent = node.name;
    const [text, kind] = state(node);
    if (text === last) return;
    last = text;
    fill(place, badge(text, kind));
  };
  pause.addEventListener("click", () => {
    live.pause(!live.isPaused);
    pause.setAttribute("aria-pressed", String(live.isPaused));
  });
  live.addEventListener("state", show);
  live.addEventListener("overview", show);
  show();
}

/**
 * @param {any} node
 * @returns {[string, "good" | "warn" | "bad"]}
 */
function state(node) {
  if (live.state === "lost") return ["No connection, trying again", "bad"];
  if (live.state === "live" && node?.mem_alarm) return ["Memory alarm", "bad"];
  if (live.state === "live" && node?.disk_free_alarm) return ["Disk alarm", "bad"];
  const missing = live.overview?.missing_processes;
  if (live.state === "live" && missing) return [`Without process ${missing.join(", ")}`, "bad"];
  if (live.state === "live") return ["Live", "good"];
  return [live.state === "paused" ? "Paused" : "Connecting", "warn"];
}
