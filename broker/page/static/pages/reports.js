/** Reports that the analysis has written, and how to make one. */
import { get, path } from "../shell/api.js";
import { h } from "../shell/elements.js";
import { size } from "../shell/format.js";
import { heading, time } from "../shell/parts.js";
import { Table } from "../shell/table.js";

export const title = "Reports";

/** @param {import("../app.js").Place} place */
export async function show({ main, user, signal }) {
  main.append(heading("Reports"));
  if (!user.monitors) {
    main.append(h("p", { class: "note" }, "Reports are about the whole broker, so they need the tag monitoring."));
    return;
  }
  const found = await get("leveret/reports", {}, signal);
  const table = new Table({
    id: "reports", label: "Reports", key: (row) => row.name, sort: "time", descending: true,
    columns: [
      { name: "title", title: "Report", head: true, wide: true, value: (row) => row.title, show: (row) => h("a", { href: `api/leveret/reports/${path(row.name)}`, target: "_blank", rel: "noopener" }, row.title) },
      { name: "name", title: "Name", value: (row) => row.name },
      { name: "time", title: "Written", number: true, value: (row) => row.time, show: (row) => time(row.time) },
      { name: "size", title: "Size", number: true, value: (row) => row.size, show: (row) => size(row.size) },
    ],
    empty: () => howTo(found.directory),
  });
  table.set(found.reports);
  main.append(
    h("p", { class: "faint intro" }, "What the analysis found in the telemetry that this broker exports: capacity, latencies, anomalies, and so on. Each opens in a window of its own."),
    h("section", { class: "panel" }, table.element),
  );
}

/**
 * The steps to a first report.
 * @param {string | null} directory in which they are looked for
 */
export function steps(directory) {
  const isOfExport = directory?.endsWith("/reports");
  const input = isOfExport ? directory?.slice(0, -"/reports".length) : "EXPORT";
  return [
    ...(directory ? [] : ["# leveret.conf: export telemetry, then restart the broker", "export.dir = EXPORT", ""]),
    "pip install 'leveret[analytics]'", `leveret analyze all --input ${quoted(input ?? "EXPORT")} --output ${quoted(directory ?? "EXPORT/reports")}`,
  ].join("\n");
}

/** @param {string} text */
function quoted(text) {
  return /^[\w./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** @param {string | null} directory */
function howTo(directory) {
  return [
    directory ? h("p", null, "There are no reports in ", h("code", null, directory), " yet. To make them:") : h("p", null, "There are no reports: this broker exports no telemetry. To make some:"),
    h("pre", null, steps(directory)),
  ];
}
