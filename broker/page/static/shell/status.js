/** In the bar: whether the page is up to date, and whether the broker raises an alarm. */
import { fill } from "./elements.js";
import { live } from "./live.js";
import { badge } from "./parts.js";

/**
 * @param {HTMLElement} place
 * @param {HTMLElement} name
 */
export function bindStatus(place, name) {
  let last = "";
  const show = () => {
    const node = live.overview?.node;
    if (node) name.textContent = node.name;
    const [text, kind] = state(node);
    if (text === last) return;
    last = text;
    fill(place, badge(text, kind));
  };
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
  if (live.state === "live") return ["Live", "good"];
  return [live.state === "paused" ? "Paused" : "Connecting", "warn"];
}
