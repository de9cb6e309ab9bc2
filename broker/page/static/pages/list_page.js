/** A page that is a list of the API: read again and again, filtered as one types, sorted. */
import { get } from "../shell/api.js";
import { h, setText } from "../shell/elements.js";
import { counted } from "../shell/format.js";
import { heading } from "../shell/parts.js";
import { poll } from "../shell/poll.js";
import { Table } from "../shell/table.js";

/** @typedef {import("../shell/elements.js").Children} Children */

/**
 * Show a list; returns what reads it at once.
 * @param {import("../app.js").Place} place
 * @param {{
 *   title: string, noun: string, path: string, query?: Record<string, string>, id: string, key: (row: any) => string,
 *   columns: import("../shell/table.js").Column<any>[], text: (row: any) => string, actions?: Children, empty?: () => Children,
 *   sort?: string, descending?: boolean, seconds?: number, intro?: Children,
 * }} settings `text`: the text of a row in which is searched
 */
export function listPage({ main, route, signal }, { title, noun, path, query, id, key, columns, text, actions, empty, sort, descending, seconds, intro }) {
  const filter = h("input", { type: "search", placeholder: "Filter", "aria-label": "Filter", "data-filter": "", value: route.query.get("filter") ?? "" });
  const total = h("span", { class: "faint small", role: "status" }, "Reading…");
  const table = new Table({ id, label: title, columns, key, sort, descending, virtual: true, empty: () => (rows.length ? "Nothing matches." : empty?.() ?? `There are no ${noun}s.`) });
  /** @type {any[]} */
  let rows = [];
  const paint = () => {
    const wanted = filter.value.trim().toLowerCase();
    const found = wanted ? rows.filter((row) => text(row).toLowerCase().includes(wanted)) : rows;
    table.set(found);
    setText(total, found.length === rows.length ? counted(rows.length, noun) : `${found.length} of ${counted(rows.length, noun)}`);
  };
  filter.addEventListener("input", paint);
  const box = h("section", { class: "panel" }, h("div", { class: "toolbar" }, filter, table.chooser(), total), table.element);
  main.append(heading(title, { actions }), ...(intro ? [h("p", { class: "faint intro" }, ...[intro].flat())] : []), box);
  return poll({
    read: (aborted) => get(path, query, aborted), place: box, signal, seconds,
    show: (found) => {
      rows = found;
      paint();
    },
  });
}
