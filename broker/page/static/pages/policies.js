/** Policies and operator policies: settings for all queues and exchanges whose names match, with what they would change. */
import { get, path, send } from "../shell/api.js";
import { ask } from "../shell/dialog.js";
import { h } from "../shell/elements.js";
import { done } from "../shell/notices.js";
import { badge, button } from "../shell/parts.js";
import { actionColumn, keyOfRow, listPage, vhostColumn } from "./list_page.js";
import { placeFields } from "./place_fields.js";
import { policyPreview } from "./policy_preview.js";
import { SettingsChooser } from "./settings_chooser.js";

/** @typedef {import("../app.js").Place} Place */

export const title = "Policies";
const APPLY = ["all", "queues", "classic_queues", "quorum_queues", "streams", "exchanges"];

/** @typedef {{title: string, noun: string, path: "policies" | "operator-policies", intro: string, empty: string}} Kind */
/** @type {Kind} */
const POLICY = {
  title, noun: "policy", path: "policies", intro: "Of the policies that match a queue, only the one with the highest priority applies.",
  empty: "There are no policies. One sets, for instance, a maximum length for all queues whose names begin with tmp.",
};
/** @type {Kind} */
const OPERATOR = {
  title: "Operator policies", noun: "operator policy", path: "operator-policies", intro: "Limits that only an administrator can lift. If a policy or an argument sets the same limit, the smaller value applies.",
  empty: "There are no operator policies. One limits, for instance, the length of all queues of a virtual host.",
};

/** @param {Place} place */
export const show = (place) => showPolicies(place, POLICY, place.user.sets);

/** @param {Place} place */
export const showOperator = (place) => showPolicies(place, OPERATOR, place.user.administers);

/**
 * Ask for a policy, and set it.
 * @param {Place} place
 * @param {{vhost: string, pattern: string}} given
 */
export const newPolicy = (place, given) => edit(place, POLICY, null, () => undefined, given);

/**
 * @param {Place} place
 * @param {Kind} kind
 * @param {boolean} maySet
 */
function showPolicies(place, kind, maySet) {
  const { vhost } = place;
  const again = listPage(place, {
    title: kind.title, noun: kind.noun, id: kind.path, path: vhost ? `${kind.path}/${path(vhost)}` : kind.path, key: keyOfRow, sort: "priority", descending: true,
    text: (row) => `${row.name} ${row.pattern}`, empty: () => kind.empty, intro: kind.intro,
    actions: maySet ? button(`New ${kind.noun}`, () => edit(place, kind, null, () => again()), "primary") : [],
    columns: [
      { name: "name", title: "Name", head: true, value: (row) => row.name },
      vhostColumn(place),
      { name: "pattern", title: "Pattern", value: (row) => row.pattern, show: (row) => h("code", null, row.pattern) },
      { name: "apply", title: "Applies to", value: (row) => row["apply-to"] },
      { name: "definition", title: "Settings", value: (row) => JSON.stringify(row.definition), wide: true, show: (row) => Object.entries(row.definition).map(([key, value]) => badge(`${key} = ${JSON.stringify(value)}`)) },
      { name: "priority", title: "Priority", number: true, value: (row) => row.priority },
      ...actionColumn(maySet, (row) => [button("Edit", async () => edit(place, kind, await get(`${kind.path}/${path(row.vhost, row.name)}`), () => again())), button("Delete", () => remove(kind, row, () => again()), "danger")]),
    ],
  });
}

/**
 * @param {Place} place
 * @param {Kind} kind
 * @param {any} row
 * @param {() => void} again
 * @param {{vhost: string, pattern: string}} given what is filled in
 */
async function edit({ vhost, signal }, kind, row, again, given = { vhost, pattern: "" }) {
  const [known, fields] = await Promise.all([get("leveret/settings"), row ? [] : placeFields(given.vhost)]);
  const isOperator = kind === OPERATOR;
  let applyTo = row?.["apply-to"] ?? "queues";
  const suits = (/** @type {string} */ each) => applyTo === "all" || (applyTo === "queues" ? each !== "exchanges" : each === applyTo);
  const chooser = new SettingsChooser(known, row?.definition ?? {}, (each) => (isOperator ? each.operator_policy : each.policy) && each.kinds.some(suits));
  const preview = policyPreview(isOperator, signal);
  const typed = (/** @type {HTMLFormElement} */ form, /** @type {string} */ name) => /** @type {HTMLInputElement | null} */ (form.elements.namedItem(name))?.value ?? "";
  await ask({
    title: row ? `${kind.noun} ${row.name}`.replace(/^./, (first) => first.toUpperCase()) : `New ${kind.noun}`, action: "Save",
    fields: [
      ...fields,
      { name: "pattern", label: "Pattern of names", value: row?.pattern ?? given.pattern, required: true, hint: "A regular expression, which may match anywhere: ^tmp\\." },
      { name: "apply", label: "Applies to", type: "select", options: APPLY, value: applyTo }, { name: "priority", label: "Priority", type: "number", value: row?.priority ?? 0 },
    ],
    below: (form) => {
      const changed = () => {
        applyTo = typed(form, "apply");
        chooser.offer();
        const definition = chooser.values();
        const isComplete = typed(form, "pattern") && Object.keys(definition).length > 0;
        const policy = { pattern: typed(form, "pattern"), "apply-to": applyTo, priority: Number(typed(form, "priority")), definition };
        preview.show(row?.vhost ?? typed(form, "vhost"), row?.name ?? (typed(form, "name") || "new"), isComplete ? policy : undefined);
      };
      form.addEventListener("input", (event) => event.target !== chooser.select && changed());
      changed();
      return h("div", { class: "stack" }, chooser.element, preview.element);
    },
    submit: async (values) => {
      const policy = { pattern: values.pattern, "apply-to": values.apply, priority: values.priority ?? 0, definition: chooser.values() };
      await send("PUT", `${kind.path}/${path(row?.vhost ?? values.vhost, row?.name ?? values.name)}`, policy);
      done(`The ${kind.noun} is in effect.`);
      again();
    },
  }).finally(preview.end);
}

/**
 * @param {Kind} kind
 * @param {any} row
 * @param {() => void} again
 */
function remove(kind, row, again) {
  const preview = policyPreview(kind === OPERATOR, new AbortController().signal);
  preview.show(row.vhost, row.name, null);
  return ask({
    title: `Delete the ${kind.noun} ${row.name}`, action: "Delete", danger: true, text: h("div", { class: "stack" }, "Its settings end at once for all queues and exchanges that it applies to.", preview.element),
    submit: async () => {
      await send("DELETE", `${kind.path}/${path(row.vhost, row.name)}`);
      done(`${row.name} is deleted.`);
      again();
    },
  }).finally(preview.end);
}
