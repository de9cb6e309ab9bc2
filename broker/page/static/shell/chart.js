/**
 * Lines over time, as a picture and, for those who want the numbers, as a table.
 *
 * @typedef {{name: string, colour: 1 | 2 | 3 | 4 | 5, show: (value: number, as?: number) => string}} Line `as`: what chooses the unit
 */
import { fill, h, s, setText } from "./elements.js";
import { zone } from "./format.js";
import { ceiling, points } from "./series.js";

const WIDTH = 600;
const HEIGHT = 170;
const ROWS = 12;
const COLOURS = ["one", "two", "three", "four", "bad"];

export class Chart {
  /**
   * @param {string} label what it shows
   * @param {Line[]} lines
   */
  constructor(label, lines) {
    this.lines = lines;
    this.areas = lines.map(({ colour }) => s("path", { class: "area", fill: `var(--${COLOURS[colour - 1]})` }));
    this.paths = lines.map(({ colour }) => s("path", { stroke: `var(--${COLOURS[colour - 1]})` }));
    this.values = lines.map(() => h("b", null, "–"));
    this.tick = h("span", { class: "tick" });
    this.half = h("span", { class: "tick" });
    this.from = h("span");
    this.to = h("span");
    this.table = h("div", { class: "scroll" });
    const rules = [0.5, HEIGHT / 2, HEIGHT - 0.5].map((y) => s("path", { class: "rule", d: `M0 ${y}H${WIDTH}` }));
    this.tick.style.top = "13px";
    this.half.style.top = `${HEIGHT / 2 + 13}px`;
    this.details = h("details", { class: "small faint" }, h("summary", null, "Numbers"), this.table);
    this.element = h(
      "figure", { class: "chart", "aria-label": label },
      h("div", { class: "plot" }, s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" }, rules, this.areas, this.paths), this.tick, this.half),
      h("div", { class: "times" }, this.from, this.to),
      h("figcaption", { class: "legend" }, lines.map((line, at) => h("span", { class: `key c${line.colour}` }, line.name, " ", this.values[at])), this.details),
    );
    this.details.addEventListener("toggle", () => this.numbers());
    /** @type {{at: number, values: number[]}[]} */
    this.samples = [];
  }

  /**
   * Show samples, the oldest first.
   * @param {{at: number, values: number[]}[]} samples
   * @param {number} seconds the time that the width stands for
   */
  set(samples, seconds) {
    this.samples = samples;
    const end = samples.at(-1)?.at ?? 0;
    const top = ceiling(Math.max(0, ...samples.flatMap((each) => each.values)));
    this.lines.forEach((line, at) => {
      const found = points(samples, at, end - seconds * 1000, end, top, WIDTH, HEIGHT);
      const path = found.map(([x, y], place) => `${place ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
      this.paths[at].setAttribute("d", path);
      this.areas[at].setAttribute("d", found.length ? `${path}V${HEIGHT}H${found[0][0].toFixed(1)}Z` : "");
      const last = samples.at(-1);
      setText(this.values[at], last ? line.show(last.values[at]) : "–");
    });
    setText(this.from, end ? timeOf(end - seconds * 1000) : "");
    setText(this.to, end ? `${timeOf(end)} ${zone()}` : "");
    setText(this.tick, this.lines[0].show(top));
    setText(this.half, half(top, this.lines[0].show));
    this.numbers();
  }

  numbers() {
    if (!this.details.open) return;
    const step = Math.max(1, Math.floor(this.samples.length / ROWS));
    const rows = this.samples.filter((_, at) => (this.samples.length - 1 - at) % step === 0).reverse();
    fill(this.table, h(
      "table", null,
      h("thead", null, h("tr", null, h("th", { scope: "col" }, "Time"), this.lines.map((line) => h("th", { scope: "col", class: "number" }, line.name)))),
      h("tbody", null, rows.map((row) => h("tr", null, h("th", { scope: "row" }, timeOf(row.at)), row.values.map((value, at) => h("td", { class: "number" }, this.lines[at].show(value)))))),
    ));
  }
}

/**
 * The label in the middle of an axis; none if it is not half of the one at the top.
 * @param {number} top
 * @param {(value: number, as?: number) => string} show
 */
export function half(top, show) {
  const middle = show(top / 2, top);
  const [low, high] = [middle, show(top)].map((label) => parseFloat(label.replace(",", "")));
  return 2 * low === high ? middle : "";
}

/** @param {number} milliseconds */
function timeOf(milliseconds) {
  return new Date(milliseconds).toLocaleTimeString(undefined, { hour12: false });
}
