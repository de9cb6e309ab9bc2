/**
 * Addresses of pages, in the fragment: `#/queues/%2F/orders?tab=messages`. Pure.
 *
 * @typedef {{page: string, names: string[], query: URLSearchParams}} Route
 */

/**
 * Read a fragment.
 * @param {string} hash
 * @returns {Route}
 */
export function parse(hash) {
  const [path, query = ""] = split(hash.replace(/^#\/?/, ""), "?");
  const [page, ...names] = path.split("/").map(decoded);
  return { page: page || "overview", names, query: new URLSearchParams(query) };
}

/**
 * Return the fragment of a page.
 * @param {string} page
 * @param {string[]} [names]
 * @param {Record<string, string>} [query]
 */
export function link(page, names = [], query = {}) {
  const path = [page, ...names].map(encodeURIComponent).join("/");
  const found = new URLSearchParams(query).toString();
  return `#/${path}${found ? `?${found}` : ""}`;
}

/**
 * @param {string} text
 * @param {string} at
 * @returns {[string, string?]}
 */
function split(text, at) {
  const place = text.indexOf(at);
  return place < 0 ? [text] : [text.slice(0, place), text.slice(place + 1)];
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
