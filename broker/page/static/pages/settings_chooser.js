/**
 * The settings of a queue or a policy in a form: chosen from those that the broker has, each with its values and its help.
 *
 * @typedef {{
 *   name: string, argument: string | null, policy: boolean, operator_policy: boolean, kinds: string[],
 *   type: "integer" | "text" | "boolean" | "choice" | "json", minimum: number, maximum: number | null, choices: string[], unit: string, help: string,
 * }} Setting
 */
import { fieldOf } from "../shell/dialog.js";
import { fill, h } from "../shell/elements.js";
import { button } from "../shell/parts.js";

const NOT_SET = "not set";

export class SettingsChooser {
  /**
   * @param {Setting[]} known
   * @param {Record<string, unknown>} given the values so far, by name
   * @param {(setting: Setting) => boolean} isOffered which of the settings suit what the form is about now
   */
  constructor(known, given, isOffered) {
    this.known = known;
    this.isOffered = isOffered;
    /** @type {Map<string, {setting: Setting, element: HTMLElement, control: HTMLInputElement | HTMLSelectElement}>} */
    this.chosen = new Map();
    this.rows = h("div", { class: "fields" });
    this.select = h("select", { "aria-label": "Add a setting", change: () => this.choose() });
    this.element = h("div", { class: "stack settings" }, h("h3", null, "Settings"), this.rows, this.select);
    for (const [name, value] of Object.entries(given)) this.add(known.find((each) => each.name === name) ?? strange(name), value);
    this.offer();
  }

  /** Offer what suits the form now; what was chosen and does not suit it any more goes. */
  offer() {
    for (const [name, { setting, element }] of this.chosen) {
      if (setting.type === "json" || this.isOffered(setting)) continue;
      element.remove();
      this.chosen.delete(name);
    }
    const left = this.known.filter((each) => this.isOffered(each) && !this.chosen.has(each.name));
    fill(this.select, h("option", { value: "" }, "Add a setting…"), left.map((each) => h("option", { value: each.name, title: each.help }, each.name)));
  }

  choose() {
    const setting = this.known.find((each) => each.name === this.select.value);
    if (setting) this.add(setting).focus();
    this.changed();
  }

  /**
   * @param {Setting} setting
   * @param {unknown} [value]
   */
  add(setting, value = undefined) {
    const field = fieldOf(described(setting, value));
    const control = /** @type {HTMLInputElement | HTMLSelectElement} */ (field.querySelector("input, select"));
    if (setting.type === "integer") {
      control.setAttribute("min", String(setting.minimum));
      if (setting.maximum !== null) control.setAttribute("max", String(setting.maximum));
    }
    const remove = button("Remove", () => {
      element.remove();
      this.chosen.delete(setting.name);
      this.changed();
    }, "quiet");
    remove.setAttribute("aria-label", `Remove ${setting.name}`);
    const element = h("div", { class: "setting" }, field, remove);
    this.chosen.set(setting.name, { setting, element, control });
    this.rows.append(element);
    return control;
  }

  changed() {
    this.offer();
    this.element.dispatchEvent(new Event("input", { bubbles: true }));
  }

  /** The settings that have a value, by name. */
  values() {
    /** @type {Record<string, unknown>} */
    const found = {};
    for (const [name, { setting, control }] of this.chosen) {
      const value = valueOf(setting, control);
      if (value !== undefined) found[name] = value;
    }
    return found;
  }
}

/**
 * A key that this broker stores without an effect, or does not know: its value is kept as it is.
 * @param {string} name
 * @returns {Setting}
 */
function strange(name) {
  return { name, argument: null, policy: true, operator_policy: true, kinds: [], type: "json", minimum: 0, maximum: null, choices: [], unit: "", help: "It has no effect here. The value is JSON." };
}

/**
 * The field of a setting.
 * @param {Setting} setting
 * @param {any} value
 * @returns {import("../shell/dialog.js").Field}
 */
function described({ name, type, unit, choices, help }, value) {
  const common = { name: `setting-${name}`, label: unit ? `${name} (${unit})` : name, hint: help };
  if (type === "boolean") return { ...common, type: "checkbox", value: value ?? true };
  if (type === "choice") return { ...common, type: "select", options: [NOT_SET, ...choices], value: value ?? NOT_SET };
  if (type === "integer") return { ...common, type: "number", required: true, value };
  return { ...common, value: type === "json" ? JSON.stringify(value) : value };
}

/**
 * @param {Setting} setting
 * @param {HTMLInputElement | HTMLSelectElement} control
 */
function valueOf({ type }, control) {
  if (control instanceof HTMLInputElement && type === "boolean") return control.checked;
  if (type === "integer") return control.value === "" ? undefined : Number(control.value);
  if (type === "json") return JSON.parse(control.value);
  return type === "choice" && control.value === NOT_SET ? undefined : control.value;
}
