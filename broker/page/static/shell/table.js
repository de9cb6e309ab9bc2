/**
 * Tables: of many rows only those in sight are in the document. Columns can be sorted and left out, which is remembered.
 *
 * @template T
 * @typedef {{
 *   name: string, title: string, value: (row: T) => string | number | boolean | null, show?: (row: T) => Children,
 *   number?: boolean, head?: boolean, hint?: string, extra?: boolean, unsorted?: boolean, wide?: boolean, above?: () => Children,
 * }} Column `above`: what is shown instead of the title
 */
/** @typedef {import("./elements.js").Children} Children */
/** @typedef {import("./table_rows.js").Group} Group */
import { fill, h, refresh } from "./elements.js";
import { recall, remember } from "./memory.js";
import { grouped, isGroup, reconcile, sorted, spacer } from "./table_rows.js";

/** Pixels of a row, until one has been measured. */
const HEIGHT = 34;
/** Rows beyond those in sight that are in the document. */
const BEYOND = 8;

/** @template T */
export class Table {
  /**
   * @param {{id: string, label: string, columns: Column<T>[], key: (row: T) => string, sort?: string, descending?: boolean,
   *   empty?: () => Children, virtual?: boolean, groupText?: (name: string, rows: T[]) => Children}} settings `sort`: "" for the order
   *   of the rows as they come
   */
  constructor({ id, label, columns, key, sort = "", descending = false, empty, virtual = false, groupText = (name) => name }) {
    this.id = id;
    this.columns = columns;
    this.key = key;
    this.virtual = virtual;
    this.empty = empty ?? (() => "There is nothing here.");
    const saved = recall(`table.${id}`, {});
    this.sort = columns.some((each) => each.name === saved.sort) || saved.sort === "" ? saved.sort : sort;
    this.descending = saved.sort === this.sort ? Boolean(saved.descending) : descending;
    /** @type {Set<string>} */
    this.hidden = new Set(saved.hidden ?? columns.filter((each) => each.extra).map((each) => each.name));
    this.groupText = groupText;
    /** @type {((row: T) => string) | null} The name of the group of a row; null for no groups. */
    this.groupOf = null;
    /** @type {Set<string>} Groups whose rows are hidden. */
    this.folded = new Set();
    /** @type {T[]} */
    this.rows = [];
    /** @type {(T | Group)[]} What is shown: the rows, below their groups. */
    this.items = [];
    /** @type {Map<string, HTMLTableRowElement>} */
    this.shown = new Map();
    this.height = HEIGHT;
    this.headRow = h("tr");
    this.body = h("tbody");
    this.table = h("table", { class: "cards", "aria-label": label, "aria-rowcount": "0" }, h("thead", null, this.headRow), this.body);
    this.nothing = h("div", { class: "empty", hidden: true });
    this.element = h(
      "div", { class: `scroll${virtual ? " virtual" : ""}`, tabindex: virtual ? "0" : null, role: virtual ? "region" : null, "aria-label": virtual ? label : null },
      this.table, this.nothing,
    );
    if (virtual) {
      this.element.addEventListener("scroll", () => this.paint(), { passive: true });
      new ResizeObserver(() => this.paint()).observe(this.element);
    }
    this.head();
  }

  /**
   * Show these rows, in the order of the table.
   * @param {T[]} rows
   */
  set(rows) {
    const column = this.columns.find((each) => each.name === this.sort);
    this.rows = column ? sorted(rows, column.value, this.descending, this.columns.find((each) => each.head)?.value) : rows;
    this.items = this.groupOf ? grouped(this.rows, this.groupOf, this.groupText, this.folded) : this.rows;
    this.table.setAttribute("aria-rowcount", String(this.items.length));
    this.nothing.hidden = rows.length > 0;
    this.table.hidden = !rows.length;
    if (!rows.length) fill(this.nothing, this.empty());
    this.paint();
  }

  get visible() {
    return this.columns.filter((each) => !this.hidden.has(each.name));
  }

  head() {
    fill(this.headRow, this.visible.map((column) => this.heading(column)));
  }

  /** @param {Column<T>} column */
  heading(column) {
    const isSorted = column.name === this.sort;
    const title = `${column.title}${isSorted ? (this.descending ? " ↓" : " ↑") : ""}`;
    return h(
      "th", {
        scope: "col", class: column.number ? "number" : null, title: column.hint,
        "aria-sort": isSorted ? (this.descending ? "descending" : "ascending") : null,
      },
      column.above ? column.above() : column.unsorted ? title : h("button", { type: "button", click: () => this.sortBy(column) }, title),
    );
  }

  /** @param {Column<T>} column */
  sortBy(column) {
    this.descending = this.sort === column.name ? !this.descending : Boolean(column.number);
    this.sort = column.name;
    this.save();
    const at = this.visible.indexOf(column);
    this.head();
    this.shown.clear();
    this.set(this.rows);
    const button = this.headRow.children[at]?.firstElementChild;
    if (button instanceof HTMLElement) button.focus();
  }

  save() {
    remember(`table.${this.id}`, { sort: this.sort, descending: this.descending, hidden: [...this.hidden] });
  }

  /** A menu in which columns are chosen. */
  chooser() {
    const boxes = this.columns.filter((each) => !each.head && !each.above).map((column) => {
      const box = h("input", { type: "checkbox", checked: !this.hidden.has(column.name) });
      box.addEventListener("change", () => {
        if (box.checked) this.hidden.delete(column.name);
        else this.hidden.add(column.name);
        this.save();
        this.head();
        this.shown.clear();
        this.set(this.rows);
      });
      return h("label", null, box, column.title);
    });
    return h("details", { class: "menu" }, h("summary", { class: "button" }, "Columns"), h("div", { class: "menu-body" }, boxes));
  }

  /** Put those rows into the document that are in sight, and reuse what is there. */
  paint() {
    const all = this.items;
    let from = 0;
    let to = all.length;
    if (this.virtual) {
      from = Math.max(0, Math.floor(this.element.scrollTop / this.height) - BEYOND);
      to = Math.min(all.length, from + Math.ceil((this.element.clientHeight || 600) / this.height) + 2 * BEYOND);
    }
    const before = this.shown;
    this.shown = new Map();
    /** @type {HTMLTableRowElement[]} */
    const made = [];
    const columns = this.visible;
    for (let at = from; at < to; at += 1) {
      const item = all[at];
      const key = isGroup(item) ? `\0${item.group}` : this.key(item);
      const row = before.get(key) ?? h("tr", isGroup(item) ? { class: "group" } : { "data-key": key });
      if (isGroup(item)) this.updateGroup(row, item, columns.length);
      else this.update(row, item, columns);
      if (this.virtual) row.setAttribute("aria-rowindex", String(at + 2));
      this.shown.set(key, row);
      made.push(row);
    }
    if (this.virtual) {
      made.unshift(spacer(from * this.height, columns.length));
      made.push(spacer((all.length - to) * this.height, columns.length));
    }
    reconcile(this.body, made);
    const heights = [...this.shown.values()].map((row) => row.getBoundingClientRect().height);
    this.height = heights.reduce((sum, each) => sum + each, 0) / heights.length || this.height; // cards on a phone differ
  }

  /**
   * @param {HTMLTableRowElement} row
   * @param {Group} item
   * @param {number} columns
   */
  updateGroup(row, { group, text }, columns) {
    const isFolded = this.folded.has(group);
    const fold = () => {
      if (isFolded) this.folded.delete(group);
      else this.folded.add(group);
      this.set(this.rows);
    };
    refresh(row, h("th", { scope: "rowgroup", colspan: columns }, h("button", { type: "button", class: "quiet", "aria-expanded": String(!isFolded), click: fold }, isFolded ? "▸ " : "▾ ", ...[text].flat())));
  }

  /**
   * @param {HTMLTableRowElement} row
   * @param {T} value
   * @param {Column<T>[]} columns
   */
  update(row, value, columns) {
    columns.forEach((column, at) => {
      let cell = row.children[at];
      if (!cell) {
        cell = h(column.head ? "th" : "td", { scope: column.head ? "row" : null, "data-label": column.head || column.unsorted ? null : column.title, class: [column.number && "number", column.head && "name", column.wide && "wide", column.above && "choose"].filter(Boolean).join(" ") || null });
        row.append(cell);
      }
      if (column.number) cell.classList.toggle("zero", !column.value(value));
      const shown = column.show ? column.show(value) : String(column.value(value) ?? "");
      if (typeof shown === "string" || typeof shown === "number") {
        if (cell.textContent !== String(shown) || cell.firstElementChild) cell.textContent = String(shown);
      } else refresh(cell, shown);
    });
  }
}
