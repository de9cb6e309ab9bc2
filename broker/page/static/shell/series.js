/**
 * Samples over time: rates from counts, ranges of the API, and the points of a line. Pure.
 *
 * @typedef {{at: number, values: number[]}} Sample
 */

/**
 * Return the rates between two events with counts since the start; null if a count went back, as after a restart.
 * @param {{at: number, counts: Record<string, number>}} before
 * @param {{at: number, counts: Record<string, number>}} now
 * @param {string[]} names
 * @returns {number[] | null}
 */
export function rates(before, now, names) {
  const seconds = (now.at - before.at) / 1000;
  if (seconds <= 0) return null;
  const found = names.map((name) => ((now.counts[name] ?? 0) - (before.counts[name] ?? 0)) / seconds);
  return found.some((rate) => rate < 0) ? null : found;
}

/**
 * Return samples of values from `*_details` with samples of the API (newest first), the oldest first.
 * @param {any} source
 * @param {string[]} names
 * @param {boolean} isRate true for the rates between samples, false for their values
 * @returns {Sample[]}
 */
export function history(source, names, isRate) {
  const lists = names.map((name) => [...(source?.[`${name}_details`]?.samples ?? [])].reverse());
  const first = lists.find((list) => list.length) ?? [];
  /** @type {Sample[]} */
  const found = [];
  first.forEach((sample, at) => {
    if (isRate && !at) return;
    const seconds = isRate ? (sample.timestamp - first[at - 1].timestamp) / 1000 : 1;
    const values = lists.map((list) => (isRate ? Math.max(0, ((list[at]?.sample ?? 0) - (list[at - 1]?.sample ?? 0)) / seconds) : list[at]?.sample ?? 0));
    found.push({ at: sample.timestamp, values });
  });
  return found;
}

/**
 * Add a sample, and drop those that are too old; returns the samples.
 * @param {Sample[]} samples
 * @param {Sample} sample
 * @param {number} seconds
 */
export function added(samples, sample, seconds) {
  samples.push(sample);
  while (samples.length > 2 && samples[1].at < sample.at - seconds * 1000) samples.shift();
  return samples;
}

/**
 * Return the top of a scale: a round number that is not below a value.
 * @param {number} value
 */
export function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  for (const factor of [1, 2, 5]) if (value <= factor * power) return factor * power;
  return 10 * power;
}

/**
 * The points of a line: x from the left, y from the top.
 * @param {Sample[]} samples
 * @param {number} at which value
 * @param {number} from
 * @param {number} to
 * @param {number} top
 * @param {number} width
 * @param {number} height
 * @returns {[number, number][]}
 */
export function points(samples, at, from, to, top, width, height) {
  const span = Math.max(1, to - from);
  return samples
    .filter((each) => each.at >= from - 10000)
    .map((each) => [((each.at - from) / span) * width, height - (Math.min(top, each.values[at]) / top) * (height - 4)]);
}
