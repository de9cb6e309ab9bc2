/** Messages that are published again and again, kept by name in this browser: routing key, type, body and headers. */
import { setValues, values } from "../shell/dialog.js";
import { fill, h } from "../shell/elements.js";
import { recall, remember } from "../shell/memory.js";
import { button } from "../shell/parts.js";

/** @typedef {{name: string, values: Record<string, any>}} Template */

const KEPT = ["routing_key", "content_type", "payload", "headers", "persistent"];
const MOST = 50;

/**
 * What chooses, keeps and forgets templates, below the fields of a message.
 * @param {HTMLFormElement} form
 * @param {import("../shell/dialog.js").Field[]} fields
 */
export function templates(form, fields) {
  const choice = h("select", { "aria-label": "Template" });
  const name = h("input", { "aria-label": "Name of the template", placeholder: "Name of a template", autocomplete: "off" });
  const forget = button("Forget", () => update(without(kept(), choice.value), ""));
  const keep = button("Keep", () => {
    if (name.value.trim()) update(added(kept(), name.value.trim(), values(form, fields)), name.value.trim());
    name.value = "";
  });
  const show = (/** @type {string} */ chosen) => {
    fill(choice, h("option", { value: "" }, kept().length ? "Templates…" : "No templates yet"), kept().map((each) => h("option", { value: each.name, selected: each.name === chosen }, each.name)));
    forget.disabled = !choice.value;
  };
  const update = (/** @type {Template[]} */ list, /** @type {string} */ chosen) => {
    remember("templates", list);
    show(chosen);
  };
  choice.addEventListener("change", () => {
    forget.disabled = !choice.value;
    const found = kept().find((each) => each.name === choice.value);
    if (found) setValues(form, fields, found.values);
  });
  name.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    keep.click();
  });
  show("");
  return h("div", { class: "row" }, choice, forget, name, keep);
}

/** @returns {Template[]} */
function kept() {
  const found = recall("templates", []);
  return Array.isArray(found) ? found.filter((each) => typeof each?.name === "string" && each.values && typeof each.values === "object") : [];
}

/**
 * The templates with one more, or another of its name: the newest first, and no more than fit.
 * @param {Template[]} list
 * @param {string} name
 * @param {Record<string, any>} values
 * @returns {Template[]}
 */
export function added(list, name, values) {
  const own = Object.fromEntries(KEPT.filter((key) => key in values).map((key) => [key, values[key]]));
  return [{ name, values: own }, ...without(list, name)].slice(0, MOST);
}

/**
 * @param {Template[]} list
 * @param {string} name
 */
function without(list, name) {
  return list.filter((each) => each.name !== name);
}
