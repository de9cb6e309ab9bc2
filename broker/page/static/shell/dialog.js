/**
 * Dialogs: a form that sends something, and the confirmation of what cannot be undone.
 *
 * @typedef {{
 *   name: string, label: string, type?: string, value?: string | number | boolean, hint?: string, required?: boolean,
 *   options?: string[], placeholder?: string, rows?: number,
 * }} Field
 * @typedef {{
 *   title: string, text?: import("./elements.js").Children, fields?: Field[], action: string, danger?: boolean, typed?: string,
 *   submit: (values: Record<string, any>) => Promise<unknown>, below?: (form: HTMLFormElement, fields: Field[]) => Node,
 * }} Question `below`: makes what is below the fields
 */
import { h, reasonOf } from "./elements.js";

/**
 * Ask in a dialog; resolves to what `submit` returned, or to undefined if it was closed. While `submit` fails, the dialog stays
 * open and says why. With `typed` this text must be typed first.
 * @param {Question} question
 * @returns {Promise<unknown>}
 */
export function ask(question) {
  return new Promise((resolve) => {
    /** @type {unknown} */
    let result;
    const error = h("p", { class: "error", role: "alert", hidden: true });
    const ok = h("button", { class: `primary${question.danger ? " danger" : ""}`, disabled: Boolean(question.typed) }, question.action);
    const fields = question.fields ?? [];
    const typed = question.typed ? h("input", { autocomplete: "off", spellcheck: "false", name: "typed" }) : null;
    typed?.addEventListener("input", () => (ok.disabled = typed.value !== question.typed));
    const form = h(
      "form", { method: "dialog" },
      h("h2", { id: "dialog-title" }, question.title),
      question.text && h("div", null, ...[question.text].flat()),
      fields.length ? h("div", { class: "fields" }, fields.map(fieldOf)) : null,
      typed && h("label", { class: "field" }, h("span", null, "To confirm, type ", h("code", null, question.typed)), typed),
      error,
      h("div", { class: "buttons" }, h("button", { type: "button", click: () => dialog.close() }, "Cancel"), ok),
    );
    if (question.below) error.before(question.below(form, fields));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (ok.disabled) return;
      ok.disabled = true;
      error.hidden = true;
      try {
        result = (await question.submit(values(form, fields))) ?? true;
        dialog.close();
      } catch (problem) {
        error.textContent = reasonOf(problem);
        error.hidden = false;
      }
      ok.disabled = false;
    });
    const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, form);
    const before = document.activeElement;
    dialog.addEventListener("close", () => {
      dialog.remove();
      if (before instanceof HTMLElement && before.isConnected) before.focus();
      resolve(result);
    });
    document.body.append(dialog);
    dialog.showModal();
    const first = form.querySelector("input, select, textarea");
    if (first instanceof HTMLElement) first.focus();
  });
}

/**
 * A field with its label.
 * @param {Field} field
 */
export function fieldOf(field) {
  const { name, label, type = "text", value, hint, required, placeholder } = field;
  const id = `field-${name}`;
  const described = hint ? `${id}-hint` : undefined;
  const common = { id, name, required, "aria-describedby": described };
  let control;
  if (type === "select") {
    control = h("select", common, (field.options ?? []).map((each) => h("option", { value: each, selected: each === value }, each || "–")));
  } else if (type === "textarea") {
    control = h("textarea", { ...common, rows: field.rows ?? 6, spellcheck: "false", value: value ?? "" });
  } else if (type === "checkbox") {
    control = h("input", { ...common, type, checked: Boolean(value) });
  } else {
    control = h("input", { ...common, type, value: value ?? "", placeholder, autocomplete: "off", spellcheck: "false" });
  }
  const said = h("span", { class: "label" }, label);
  const made = h("label", { class: `field${type === "checkbox" ? " check" : ""}`, for: id });
  made.append(...(type === "checkbox" ? [control, said] : [said, control]));
  if (hint) made.append(h("span", { class: "hint", id: described }, hint));
  return made;
}

/**
 * Put values into the fields of a form that has them.
 * @param {HTMLFormElement} form
 * @param {Field[]} fields
 * @param {Record<string, any>} values
 */
export function setValues(form, fields, values) {
  for (const { name, type } of fields) {
    const control = form.elements.namedItem(name);
    if (!(name in values)) continue;
    if (control instanceof HTMLInputElement && type === "checkbox") control.checked = Boolean(values[name]);
    else if (control instanceof HTMLInputElement || control instanceof HTMLSelectElement || control instanceof HTMLTextAreaElement) {
      control.value = String(values[name]);
    }
  }
}

/**
 * The values of a form by the names of its fields: numbers and booleans as such, and no key for an empty number.
 * @param {HTMLFormElement} form
 * @param {Field[]} fields
 * @returns {Record<string, any>}
 */
export function values(form, fields) {
  /** @type {Record<string, any>} */
  const found = {};
  for (const { name, type } of fields) {
    const control = form.elements.namedItem(name);
    if (control instanceof HTMLInputElement && type === "checkbox") found[name] = control.checked;
    else if (control instanceof HTMLInputElement && type === "number") {
      if (control.value !== "") found[name] = Number(control.value);
    } else if (control instanceof HTMLInputElement || control instanceof HTMLSelectElement || control instanceof HTMLTextAreaElement) {
      found[name] = control.value;
    }
  }
  return found;
}
