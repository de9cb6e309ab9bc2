/**
 * Rows of tables: their order, their groups, and their places in the document.
 *
 * @typedef {{group: string, text: import("./elements.js").Children}} Group a row above others
 */
import { h } from "./elements.js";

/**
 * Rows below their groups, of which the one with the first row is the first.
 * @template R
 * @param {R[]} rows
 * @param {(row: R) => string} groupOf
 * @param {(name: string, rows: R[]) => import("./elements.js").Children} groupText
 * @param {Set<string>} folded groups whose rows are left out
 * @returns {(R | Group)[]}
 */
export function grouped(rows, groupOf, groupText, folded) {
  /** @type {Map<string, R[]>} */
  const groups = new Map();
  for (const row of rows) {
    const group = groupOf(row);
    const known = groups.get(group);
    if (known) known.push(row);
    else groups.set(group, [row]);
  }
  return [...groups].flatMap(([group, own]) => [{ group, text: groupText(group, own) }, ...(folded.has(group) ? [] : own)]);
}

/**
 * The group of a row by the beginning of its name, up to the first separator; of those that nobody shares, one group.
 * @param {{name: string}[]} rows
 * @returns {(row: {name: string}) => string}
 */
export function prefixes(rows) {
  const prefix = (/** @type {{name: string}} */ { name }) => /^[^.:/_-]+[.:/_-]/.exec(name)?.[0] ?? "";
  /** @type {Map<string, number>} */
  const known = new Map();
  for (const row of rows) known.set(prefix(row), (known.get(prefix(row)) ?? 0) + 1);
  return (row) => (prefix(row) && (known.get(prefix(row)) ?? 0) > 1 ? `${prefix(row)}*` : "others");
}

/**
 * @param {any} item
 * @returns {item is Group}
 */
export function isGroup(item) {
  return typeof item.group === "string" && "text" in item;
}

/**
 * @param {number} height
 * @param {number} columns
 */
export function spacer(height, columns) {
  const cell = h("td", { colspan: Math.max(1, columns) });
  cell.style.height = `${height}px`;
  return h("tr", { class: "spacer", "aria-hidden": "true" }, cell);
}

/**
 * Make these the children of an element, and move no more of them than necessary.
 * @param {Element} parent
 * @param {Element[]} wanted
 */
export function reconcile(parent, wanted) {
  const kept = new Set(wanted);
  for (const each of [...parent.children]) if (!kept.has(each)) each.remove();
  wanted.forEach((each, at) => {
    if (parent.children[at] !== each) parent.insertBefore(each, parent.children[at] ?? null);
  });
}

/**
 * Rows in the order of a value; equal ones in that of their names, if they have some, else in theirs.
 * @template R
 * @param {R[]} rows
 * @param {(row: R) => string | number | boolean | null} value
 * @param {boolean} descending
 * @param {(row: R) => any} [name]
 * @returns {R[]}
 */
export function sorted(rows, value, descending, name = () => 0) {
  const sign = descending ? -1 : 1;
  return rows
    .map((row) => /** @type {[R, string | number | boolean | null]} */ ([row, value(row)]))
    .sort(([first, one], [second, other]) => {
      if (one === other) return name(first) < name(second) ? -1 : name(first) > name(second) ? 1 : 0;
      if (typeof one === "string" && typeof other === "string") return sign * inOrder(one, other);
      return sign * (Number(one ?? -Infinity) < Number(other ?? -Infinity) ? -1 : 1);
    })
    .map(([row]) => row);
}

/**
 * What a filter lets through: texts with these words, or those that match a /regular expression/; the case does not matter.
 * @param {HTMLInputElement} filter
 * @returns {(text: string) => boolean}
 */
export function matcher(filter) {
  const wanted = filter.value.trim().toLowerCase();
  const [, pattern] = /^\/(.+?)\/?$/.exec(filter.value.trim()) ?? [];
  filter.setCustomValidity("");
  if (!pattern) return (text) => text.toLowerCase().includes(wanted);
  try {
    const expression = new RegExp(pattern, "iu");
    return (text) => expression.test(text);
  } catch (error) {
    filter.setCustomValidity(String(error));
    return () => false;
  }
}

/** @type {Intl.Collator | undefined} Made when texts are first compared, as that takes some time. */
let collator;

/**
 * @param {string} one
 * @param {string} other
 */
function inOrder(one, other) {
  collator ??= new Intl.Collator(undefined, { numeric: true });
  return collator.compare(one, other);
}
