/** Where the reports of the analysis are, or how to make some. */
import { get } from "../shell/api.js";
import { h, leadOutside } from "../shell/elements.js";
import { heading, panel } from "../shell/parts.js";

export const title = "Reports";

/** @param {import("../app.js").Place} place */
export async function show({ main, signal }) {
  main.append(heading("Reports"));
  const found = await get("leveret/reports", {}, signal);
  main.append(
    h("p", { class: "faint intro" }, "The analysis of the telemetry that this broker exports: what is wrong, capacity, latencies, anomalies, and so on."),
    found.url
      ? h("p", null, "The reports are at ", leadOutside(h("a", null, found.url), found.url), ".")
      : panel("To make some, serve them, and have a link here", h("pre", null, steps(found.export))),
  );
}

/**
 * The steps to a first report.
 * @param {string | null} exported directory of the export
 */
export function steps(exported) {
  return [
    "# leveret.conf, then restart the broker", ...(exported ? [] : ["export.dir = EXPORT"]), "management.reports_url = http://127.0.0.1:15693/", "",
    "pip install 'leveret[analytics]'", `leveret analyze all --serve --input ${quoted(exported ?? "EXPORT")} --output REPORTS`,
  ].join("\n");
}

/** @param {string} text */
function quoted(text) {
  return /^[\w./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
