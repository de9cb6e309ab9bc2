/** Numbers, sizes and times as people read them. Pure. */

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
const COMMA = ",";

/**
 * A whole number with its thousands apart; "–" for none.
 * @param {number | null | undefined} value
 */
export function count(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, COMMA);
}

/**
 * A number in few characters: 12,345,678 is 12.3M, and 10,000 is 10k.
 * @param {number} value
 * @param {number} [as] the number that chooses the unit: that at the top of an axis
 */
export function short(value, as = value) {
  for (const [least, unit] of /** @type {[number, string][]} */ ([[1e9, "G"], [1e6, "M"], [1e4, "k"]])) {
    if (Math.abs(as) >= least) {
      const scaled = value / (unit === "k" ? 1e3 : least);
      return `${scaled.toFixed(Math.abs(scaled) < 100 ? 1 : 0).replace(/\.0$/, "")}${unit}`;
    }
  }
  return count(value);
}

/**
 * A rate without its unit, with a fraction if it is small.
 * @param {number} value per second
 * @param {number} [as] as for `short`
 */
export function rate(value, as = value) {
  if (!value) return "0";
  if (value < 0.05) return "<0.1";
  return as < 10 ? value.toFixed(1).replace(/\.0$/, "") : short(value, as);
}

/**
 * A rate with its unit, for charts.
 * @param {number} value
 * @param {number} [as]
 */
export const perSecond = (value, as = value) => `${rate(value, as)}/s`;

/**
 * A size in bytes.
 * @param {number | null | undefined} octets
 */
export function size(octets) {
  if (octets === null || octets === undefined) return "–";
  let value = octets;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`;
}

/**
 * A duration in its two largest units.
 * @param {number | null | undefined} seconds
 */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const parts = /** @type {[number, string][]} */ ([[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]]);
  const at = parts.findIndex(([length]) => seconds >= length);
  const [length, unit] = parts[at];
  const whole = Math.floor(seconds / length);
  const next = parts[at + 1];
  const rest = next ? Math.floor((seconds % length) / next[0]) : 0;
  return rest && next ? `${whole} ${unit} ${rest} ${next[1]}` : `${whole} ${unit}`;
}

/**
 * A latency.
 * @param {number | null | undefined} microseconds
 */
export function latency(microseconds) {
  if (microseconds === null || microseconds === undefined) return "–";
  if (microseconds < 1000) return `${microseconds} µs`;
  const ms = microseconds / 1000;
  return ms < 1000 ? `${ms.toFixed(ms < 10 ? 1 : 0)} ms` : duration(ms / 1000);
}

/**
 * A moment in the zone of the viewer.
 * @param {number} milliseconds since 1970
 */
export function moment(milliseconds) {
  const time = new Date(milliseconds);
  if (Number.isNaN(time.getTime())) return utc(milliseconds) || "–";
  return time.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long", hour12: false });
}

/**
 * The time of day in the zone of the viewer, to the millisecond.
 * @param {number} milliseconds since 1970
 */
export function clock(milliseconds) {
  const time = new Date(milliseconds);
  return Number.isNaN(time.getTime()) ? "–" : `${time.toLocaleTimeString(undefined, { hour12: false })}.${String(time.getMilliseconds()).padStart(3, "0")}`;
}

/** The zone of the viewer, for times that do not have it themselves. */
export function zone() {
  return new Intl.DateTimeFormat(undefined, { timeZoneName: "short" }).formatToParts(new Date()).find(({ type }) => type === "timeZoneName")?.value ?? "";
}

/**
 * A moment in UTC.
 * @param {number} milliseconds since 1970
 */
export function utc(milliseconds) {
  const time = new Date(milliseconds);
  if (Number.isNaN(time.getTime())) return Number.isFinite(milliseconds) ? `year ${1970 + Math.floor(milliseconds / 31_556_952_000)}` : "";
  return `${time.toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

/**
 * A share in hundredths.
 * @param {number} part
 * @param {number} whole
 */
export function percent(part, whole) {
  return whole > 0 ? `${Math.round((100 * part) / whole)} %` : "–";
}

/**
 * A number and its noun: 1 message, 2 messages.
 * @param {number} number
 * @param {string} noun
 */
export function counted(number, noun) {
  const several = noun.endsWith("y") ? `${noun.slice(0, -1)}ies` : `${noun}s`;
  return `${count(number)} ${number === 1 ? noun : several}`;
}
