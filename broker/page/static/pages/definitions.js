/** Definitions: saved as a file, and imported after a look at what would change. */
import { send } from "../shell/api.js";
import { ask } from "../shell/dialog.js";
import { fill, h, reasonOf } from "../shell/elements.js";
import { done } from "../shell/notices.js";
import { badge, button, heading, panel } from "../shell/parts.js";

export const title = "Definitions";
const KINDS = /** @type {Record<string, "good" | "warn" | "bad" | "">} */ ({ added: "good", changed: "warn", refused: "bad" });

/** @param {import("../app.js").Place} place */
export function show({ main }) {
  const file = h("input", { type: "file", accept: ".json,application/json", "aria-label": "File with definitions" });
  const answer = h("div", { "aria-live": "polite" });
  const skips = h("input", { type: "checkbox" });
  const compare = async () => {
    const chosen = file.files?.[0];
    fill(answer);
    if (!chosen) return;
    try {
      const definitions = JSON.parse(await chosen.text());
      const query = skips.checked ? "on_unsupported=skip" : "";
      fill(answer, planOf(await send("POST", `leveret/definitions?dry_run=true&${query}`, definitions), definitions, answer, query));
    } catch (error) {
      fill(answer, h("p", { class: "error", role: "alert" }, error instanceof SyntaxError ? "The file is not JSON." : reasonOf(error)));
    }
  };
  for (const each of [file, skips]) each.addEventListener("change", compare);
  main.append(heading("Definitions"), h("div", { class: "stack" },
    panel("Save", h("div", { class: "stack" }, h("p", null, "Users, virtual hosts, permissions, policies, queues, exchanges and bindings as one file, as RabbitMQ writes it; no messages, and passwords as hashes."), h("p", { class: "row" }, h("a", { class: "button", href: "api/definitions?download=definitions.json", download: "definitions.json" }, "Save definitions.json")))),
    panel("Import", h("div", { class: "stack" }, h("p", null, "A file of Leveret or RabbitMQ. The page shows what would change before it imports anything."), h("p", { class: "row" }, file, h("label", null, skips, " Leave out what cannot exist here")), answer))));
}

/**
 * @param {any} plan
 * @param {unknown} definitions
 * @param {HTMLElement} place
 * @param {string} query
 */
function planOf(plan, definitions, place, query) {
  const skipped = (plan.skipped ?? []).map((/** @type {string} */ each) => h("li", null, each));
  const problems = (plan.problems ?? []).map((/** @type {any} */ each) => h("li", null, typeof each === "string" ? each : JSON.stringify(each)));
  const changes = (plan.changes ?? []).map((/** @type {any} */ each) => h(
    "tr", null, h("td", null, badge(each.action, KINDS[each.action] ?? "")), h("td", null, each.kind), h("td", null, each.vhost ?? ""), h("td", { class: "wide" }, each.entry),
    h("td", { class: "wide faint small" }, (each.differences ?? []).map((/** @type {any} */ one) => (typeof one === "string" ? one : JSON.stringify(one))).join("; ")),
  ));
  return h("div", { class: "stack" },
    h("p", { class: plan.valid ? "note" : "error" }, plan.summary || "Nothing would change."), problems.length ? h("ul", null, problems) : null,
    skipped.length ? h("div", null, h("p", null, "Left out:"), h("ul", null, skipped)) : null,
    changes.length ? h("div", { class: "scroll" }, h("table", { class: "cards", "aria-label": "Changes" }, h("tbody", null, changes))) : null,
    plan.changes_left_off ? h("p", { class: "faint" }, `${plan.changes_left_off} more changes are not shown.`) : null,
    plan.valid && changes.length ? h("p", null, button("Import", () => run(definitions, place, query), "primary")) : null);
}

/**
 * @param {unknown} definitions
 * @param {HTMLElement} place
 * @param {string} query
 */
function run(definitions, place, query) {
  return ask({
    title: "Import these definitions", action: "Import", text: "Entirely or not at all.",
    submit: async () => {
      const found = await send("POST", `leveret/definitions?${query}`, definitions);
      done(`Imported: ${found.summary}`);
      fill(place, h("p", { class: "note" }, found.summary));
    },
  });
}
