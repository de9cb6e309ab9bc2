/** A page that is a list of the API: read again and again, filtered as one types, sorted. */
import { get } from "../shell/api.js";
import { h, setText } from "../shell/elements.js";
import { count, counted } from "../shell/format.js";
import { heading } from "../shell/parts.js";
import { poll } from "../shell/poll.js";
import { keyOf } from "../shell/rows.js";
import { Table } from "../shell/table.js";
import { matcher } from "../shell/table_rows.js";

/** @typedef {import("../shell/elements.js").Children} Children */
/** @typedef {import("../shell/table.js").Column<any>} Column */

/** The key of something that has a name in a virtual host. @param {any} row */
export const keyOfRow = (row) => keyOf(row.vhost, row.name);

/**
 * The column of virtual hosts, which is left out where one is chosen.
 * @param {import("../app.js").Place} place
 * @returns {Column}
 */
export const vhostColumn = ({ vhost }) => ({ name: "vhost", title: "Virtual host", value: (row) => row.vhost, extra: Boolean(vhost) });

/**
 * The column of what may be done with a row; none for those who may not.
 * @param {boolean} may
 * @param {(row: any) => Children} show
 * @returns {Column[]}
 */
export const actionColumn = (may, show) => (may ? [{ name: "actions", title: "Actions", unsorted: true, value: () => "", show: (row) => h("span", { class: "row" }, ...[show(row)].flat()) }] : []);

/**
 * Show a list; returns what reads it at once.
 * @param {import("../app.js").Place} place
 * @param {{
 *   title: string, noun: string, path: string, query?: Record<string, string>, id: string, key: (row: any) => string,
 *   columns: Column[], text: (row: any) => string, actions?: Children, empty?: () => Children,
 *   sort?: string, descending?: boolean, seconds?: number, intro?: Children, keep?: (row: any) => boolean,
 * }} settings `text`: the text of a row in which is searched; `keep`: which rows belong to the list
 */
export function listPage({ main, route, signal }, { title, noun, path, query, id, key, columns, text, actions, empty, sort, descending, seconds, intro, keep = () => true }) {
  const filter = h("input", { type: "search", placeholder: "Filter or /regex/", "aria-label": "Filter", "data-filter": "", value: route.query.get("filter") ?? "" });
  const total = h("span", { class: "faint small", role: "status" }, "Reading…");
  const table = new Table({ id, label: title, columns, key, sort, descending, virtual: true, empty: () => (rows.length ? "Nothing matches." : empty?.() ?? `There are no ${noun}s.`) });
  /** @type {any[]} */
  let rows = [];
  const paint = () => {
    const isWanted = matcher(filter);
    const found = rows.filter((row) => isWanted(text(row)));
    table.set(found);
    setText(total, found.length === rows.length ? counted(rows.length, noun) : `${count(found.length)} of ${counted(rows.length, noun)}`);
  };
  filter.addEventListener("input", paint);
  const box = h("section", { class: "panel" }, h("div", { class: "toolbar" }, filter, table.chooser()), table.element);
  main.append(heading(title, { actions, beside: total }), ...(intro ? [h("p", { class: "faint intro" }, ...[intro].flat())] : []), box);
  return poll({
    read: (aborted) => get(path, query, aborted), place: box, signal, seconds,
    show: (found) => {
      rows = found.filter(keep);
      paint();
    },
  });
}
