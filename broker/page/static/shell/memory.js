/** What the browser remembers for this page: the theme, columns, the last message that was published. No secrets. */

/**
 * @param {string} name
 * @param {any} otherwise
 * @returns {any}
 */
export function recall(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(`leveret.${name}`) ?? "null") ?? otherwise;
  } catch {
    return otherwise;
  }
}

/**
 * @param {string} name
 * @param {unknown} value
 */
export function remember(name, value) {
  try {
    localStorage.setItem(`leveret.${name}`, JSON.stringify(value));
  } catch {
    // without storage it is forgotten
  }
}
