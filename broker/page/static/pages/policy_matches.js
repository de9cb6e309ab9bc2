/** Which queues a policy would match. Pure. */

/**
 * Return the queues whose names match; null if the pattern is no regular expression (here: the broker's are RE2's, which
 * differ in rare things).
 * @param {{vhost: string, name: string, type: string}[]} rows
 * @param {string} pattern
 * @param {string} applyTo
 * @param {string} vhost
 */
export function matching(rows, pattern, applyTo, vhost) {
  let expression;
  try {
    expression = new RegExp(pattern);
  } catch {
    return null;
  }
  if (applyTo === "exchanges") return [];
  return rows.filter((row) => row.vhost === vhost && (!/^(classic|quorum)_/.test(applyTo) || applyTo === `${row.type}_queues`) && expression.test(row.name));
}
