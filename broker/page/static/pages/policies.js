/** Policies: settings for all queues and exchanges whose names match, with a look at which those are. */
import { get, path, send } from "../shell/api.js";
import { ask } from "../shell/dialog.js";
import { h } from "../shell/elements.js";
import { counted } from "../shell/format.js";
import { live } from "../shell/live.js";
import { done } from "../shell/notices.js";
import { badge, button } from "../shell/parts.js";
import { listPage } from "./list_page.js";
import { matching } from "./policy_matches.js";

/** @typedef {import("../app.js").Place} Place */

export const title = "Policies";
const APPLY = ["all", "queues", "classic_queues", "quorum_queues", "exchanges"];
const SHOWN = 8;

/** @param {Place} place */
export function show(place) {
  const { user, vhost } = place;
  const again = listPage(place, {
    title: "Policies", noun: "policy", id: "policies", path: vhost ? `policies/${path(vhost)}` : "policies", key: (row) => `${row.vhost.length}:${row.vhost}${row.name}`, sort: "priority", descending: true,
    text: (row) => `${row.name} ${row.pattern}`, empty: () => "There are no policies. One sets, for instance, a maximum length for all queues whose names begin with tmp.",
    actions: user.sets ? button("New policy", () => edit(place, null, () => again()), "primary") : [],
    intro: "Of the policies that match a queue, the one with the highest priority applies, alone.",
    columns: [
      { name: "name", title: "Name", head: true, value: (row) => row.name },
      { name: "vhost", title: "Virtual host", value: (row) => row.vhost, extra: Boolean(vhost) },
      { name: "pattern", title: "Pattern", value: (row) => row.pattern, show: (row) => h("code", null, row.pattern) },
      { name: "apply", title: "Applies to", value: (row) => row["apply-to"] },
      { name: "definition", title: "Settings", value: (row) => JSON.stringify(row.definition), show: (row) => Object.entries(row.definition).map(([key, value]) => badge(`${key} = ${JSON.stringify(value)}`)) },
      { name: "priority", title: "Priority", number: true, value: (row) => row.priority },
      ...(user.sets ? [{ name: "actions", title: "Actions", unsorted: true, value: () => "", show: (/** @type {any} */ row) => h("span", { class: "row" }, button("Edit", async () => edit(place, await get(`policies/${path(row.vhost, row.name)}`), () => again())), button("Delete", () => remove(row, () => again()), "danger")) }] : []),
    ],
  });
}

/**
 * @param {Place} place
 * @param {any} row
 * @param {() => void} again
 */
async function edit({ vhost }, row, again) {
  const vhosts = row ? [row.vhost] : vhost ? [vhost] : (await get("vhosts", { columns: "name" })).map((/** @type {any} */ each) => each.name);
  const preview = h("p", { class: "faint small", role: "status" });
  const question = ask({
    title: row ? `Policy ${row.name}` : "New policy", action: "Save", text: preview,
    fields: [
      ...(row ? [] : [{ name: "name", label: "Name", required: true }, { name: "vhost", label: "Virtual host", type: "select", options: vhosts, value: vhosts[0] }]),
      { name: "pattern", label: "Pattern of names", value: row?.pattern ?? "^", required: true, hint: "A regular expression, which may match anywhere: ^tmp\\." },
      { name: "apply", label: "Applies to", type: "select", options: APPLY, value: row?.["apply-to"] ?? "queues" },
      { name: "priority", label: "Priority", type: "number", value: row?.priority ?? 0 },
      { name: "definition", label: "Settings (JSON)", type: "textarea", rows: 4, value: JSON.stringify(row?.definition ?? { "max-length": 10000 }, null, 2) },
    ],
    submit: async (values) => {
      let definition;
      try {
        definition = JSON.parse(values.definition);
      } catch {
        throw new Error("The settings are not JSON.");
      }
      await send("PUT", `policies/${path(row?.vhost ?? values.vhost, row?.name ?? values.name)}`, { pattern: values.pattern, "apply-to": values.apply, priority: values.priority ?? 0, definition });
      done("The policy is in effect.");
      again();
    },
  });
  const dialog = document.querySelector("dialog form");
  const show = () => {
    if (!(dialog instanceof HTMLFormElement)) return;
    const value = (/** @type {string} */ name) => /** @type {HTMLInputElement | null} */ (dialog.elements.namedItem(name))?.value ?? "";
    if (!live.queues.at) {
      preview.textContent = "Reading queues…";
      return;
    }
    const found = matching([...live.queues.byKey.values()], value("pattern"), value("apply"), row?.vhost ?? value("vhost"));
    preview.textContent = found === null ? "The pattern is not complete." : `Matches ${counted(found.length, "queue")} now${found.length ? `: ${found.slice(0, SHOWN).map((each) => each.name).join(", ")}${found.length > SHOWN ? ", …" : ""}` : ""}`;
  };
  dialog?.addEventListener("input", show);
  live.addEventListener("queues", show);
  show();
  try {
    await question;
  } finally {
    live.removeEventListener("queues", show);
  }
}

/**
 * @param {any} row
 * @param {() => void} again
 */
function remove(row, again) {
  return ask({
    title: `Delete the policy ${row.name}`, action: "Delete", danger: true, text: "Its settings end at once for all queues and exchanges that it applies to: a limit or a dead letter exchange, for instance.",
    submit: async () => {
      await send("DELETE", `policies/${path(row.vhost, row.name)}`);
      done(`${row.name} is deleted.`);
      again();
    },
  });
}
