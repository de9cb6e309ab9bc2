// Tables that sort and filter. Names come from clients of the broker: they are only ever read and written as text.
"use strict";

(() => {
  // Plotly adds rules to a style element, which the policy of `--serve` forbids; to a sheet like this one it may.
  const holder = document.createElement("div");
  const sheet = new CSSStyleSheet();
  holder.id = "plotly.js-style-global";
  holder.hidden = true;
  Object.defineProperty(holder, "sheet", { value: sheet });
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  document.head.append(holder);

  const FEW = 8;
  const collator = new Intl.Collator(undefined, { numeric: true });

  const valueOf = (row, place) => {
    const cell = row.cells[place];
    const sorted = cell.dataset.sort;
    if (sorted !== undefined) return sorted === "" ? null : Number(sorted);
    return cell.textContent.trim();
  };

  const compare = (a, b) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return typeof a === "number" && typeof b === "number" ? a - b : collator.compare(a, b);
  };

  const sortable = (table) => {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const before = head.getAttribute("aria-sort");
        const first = head.classList.contains("n") ? "descending" : "ascending";
        const other = first === "ascending" ? "descending" : "ascending";
        const order = before === first ? other : first;
        heads.forEach((each) => each.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", order);
        const sign = order === "ascending" ? 1 : -1;
        const rows = [...table.tBodies[0].rows].map((row) => [valueOf(row, place), row]);
        rows.sort(([a], [b]) => (a === null || b === null ? compare(a, b) : sign * compare(a, b)));
        table.tBodies[0].append(...rows.map(([, row]) => row));
      });
    });
  };

  const filterable = (table) => {
    const rows = [...table.tBodies[0].rows];
    if (rows.length < FEW) return;
    const label = document.createElement("label");
    const input = document.createElement("input");
    const number = document.createElement("span");
    label.className = "filter";
    input.type = "search";
    number.setAttribute("role", "status");
    label.append("Filter", input, number);
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        shown += !row.hidden;
      }
      number.textContent = words.length ? `${shown} of ${rows.length} rows` : "";
    });
    table.closest(".wide").before(label);
  };

  for (const table of document.querySelectorAll("table")) {
    sortable(table);
    filterable(table);
  }
})();
