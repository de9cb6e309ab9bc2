/** Keys: / for the filter, g and a letter for a page, j and k for rows, ? for help. */
import { h } from "./elements.js";
import { link } from "./route.js";

const PAGES = /** @type {Record<string, string>} */ ({
  o: "overview", q: "queues", e: "exchanges", c: "connections", h: "channels", d: "dead-letters", l: "logs", m: "messages", p: "policies", t: "tail", u: "users",
});
const HELP = [
  ["/", "to the filter"], ["j, k", "to the next or the previous row; Enter opens it"], ["Esc", "leave the filter, close a dialog"],
  ["g o", "Overview"], ["g q", "Queues"], ["g e", "Exchanges"], ["g c", "Connections"], ["g h", "Channels"], ["g d", "Dead letters"],
  ["g l", "Logs"], ["g m", "Messages"], ["g p", "Policies"], ["g t", "Live tail"], ["g u", "Users"], ["?", "this help"],
];

export function bindKeys() {
  let began = 0;
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const at = event.target;
    if (at instanceof HTMLInputElement || at instanceof HTMLTextAreaElement || at instanceof HTMLSelectElement) {
      if (event.key === "Escape") at.blur();
      return;
    }
    if (!document.body.classList.contains("inside")) return;
    if (performance.now() - began < 1500 && PAGES[event.key]) {
      began = 0;
      location.hash = link(PAGES[event.key]);
    } else if (event.key === "g") began = performance.now();
    else if (event.key === "/") focus("[data-filter]");
    else if (event.key === "?") help();
    else if (event.key === "j" || event.key === "k") step(event.key === "j" ? 1 : -1);
    else return;
    event.preventDefault();
  });
}

/** @param {string} selector */
function focus(selector) {
  const found = document.querySelector(selector);
  if (found instanceof HTMLElement) found.focus();
}

/** @param {number} by */
function step(by) {
  const links = [...document.querySelectorAll("main tbody th a, main details.message > summary")];
  const at = links.indexOf(/** @type {Element} */ (document.activeElement));
  const next = links[at < 0 ? 0 : Math.min(links.length - 1, Math.max(0, at + by))];
  if (next instanceof HTMLElement) next.focus();
}

function help() {
  const dialog = h("dialog", { "aria-labelledby": "keys-title" }, h(
    "form", { method: "dialog" }, h("h2", { id: "keys-title" }, "Keys"),
    h("dl", { class: "facts" }, HELP.flatMap(([keys, what]) => [h("dt", null, h("kbd", null, keys)), h("dd", null, what)])),
    h("div", { class: "buttons" }, h("button", { class: "primary" }, "Close")),
  ));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
