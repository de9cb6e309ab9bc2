/** Alarms, with their reason and what to do. */
import { h } from "../shell/elements.js";
import { size } from "../shell/format.js";

/**
 * @param {any} overview the last event
 * @returns {HTMLElement[]}
 */
export function alarms({ node }) {
  const found = [];
  if (node?.mem_alarm) {
    found.push(alarm(
      "Memory alarm: publishers are paused",
      `The broker uses ${size(node.mem_used)}, the limit is ${size(node.mem_limit)}. Messages wait in memory because they are not consumed, or consumers do not acknowledge: look at the queues with most messages. Start consumers, set a maximum length by a policy, or raise vm_memory_high_watermark.`,
    ));
  }
  if (node?.disk_free_alarm) {
    found.push(alarm(
      "Disk alarm: publishers are paused",
      `${size(node.disk_free)} are free, the limit is ${size(node.disk_free_limit)}. Make space on the disk of the data directory: delete logs or other files there, or purge queues that nobody needs.`,
    ));
  }
  return found;
}

/**
 * @param {string} title
 * @param {string} text
 */
function alarm(title, text) {
  return h("div", { class: "error", role: "alert" }, h("h2", null, title), h("p", null, text));
}
