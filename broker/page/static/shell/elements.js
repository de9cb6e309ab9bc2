/**
 * Elements are made of names, attributes and texts: nothing is ever parsed as markup, so no text can become any.
 *
 * @typedef {Node | string | number | null | undefined | false} Child
 * @typedef {Child | Child[]} Children
 * @typedef {Record<string, unknown>} Attributes
 */

const SVG = "http://www.w3.org/2000/svg";
const FOCUSABLE = "a, button, input, select, textarea, summary";

/**
 * Make an element of HTML. Attributes that are functions are listeners of the event of that name, `true` is an empty
 * attribute, and `false`, `null` and `undefined` are none.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} name
 * @param {Attributes | null} [attributes]
 * @param {...Children} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(name, attributes, ...children) {
  const made = document.createElement(name);
  dress(made, attributes ?? {});
  made.append(...nodes(children));
  return made;
}

/**
 * Make an element of SVG.
 * @param {string} name
 * @param {Attributes} [attributes]
 * @param {...Children} children
 * @returns {SVGElement}
 */
export function s(name, attributes, ...children) {
  const made = /** @type {SVGElement} */ (document.createElementNS(SVG, name));
  dress(made, attributes ?? {});
  made.append(...nodes(children));
  return made;
}

/**
 * Replace everything in an element.
 * @param {Element} parent
 * @param {...Children} children
 */
export function fill(parent, ...children) {
  parent.replaceChildren(...nodes(children));
}

/**
 * Replace everything in an element if it would look different, and keep the focus at its place: for what is shown again and
 * again while somebody reads it.
 * @param {Element} parent
 * @param {...Children} children
 */
export function refresh(parent, ...children) {
  const next = document.createElement("div");
  fill(next, ...children);
  const [now, then] = [[...parent.childNodes], [...next.childNodes]];
  if (now.length === then.length && now.every((each, at) => each.isEqualNode(then[at]))) return;
  const at = [...parent.querySelectorAll(FOCUSABLE)].indexOf(/** @type {Element} */ (document.activeElement));
  parent.replaceChildren(...then);
  const again = at < 0 ? null : parent.querySelectorAll(FOCUSABLE)[at];
  if (again instanceof HTMLElement) again.focus({ preventScroll: true });
}

/**
 * Set a text, if it is another: what is selected, or being read aloud, stays as it is.
 * @param {Node} node
 * @param {string} text
 */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/**
 * @param {Element} element
 * @param {Attributes} attributes
 */
function dress(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") {
      element.addEventListener(name, /** @type {EventListener} */ (value));
    } else if (name === "value" && "value" in element) {
      element.value = value ?? "";
    } else if (value === true) {
      element.setAttribute(name, "");
    } else if (value !== false && value !== null && value !== undefined) {
      if (/^on|^style$/i.test(name)) throw new Error(`no attribute ${name}`);
      if (name === "href" && !/^[#]|^api\//.test(String(value))) throw new Error("links lead to this page only");
      element.setAttribute(name, String(value));
    }
  }
}

/**
 * @param {Children[]} children
 * @returns {(Node | string)[]}
 */
function nodes(children) {
  return children
    .flat()
    .filter((each) => each !== null && each !== undefined && each !== false)
    .map((each) => (each instanceof Node ? each : String(each)));
}

/**
 * What an error says.
 * @param {unknown} error
 */
export function reasonOf(error) {
  return error instanceof Error ? error.message : String(error);
}

/**
 * Return the element of the document that has an id.
 * @template {HTMLElement} T
 * @param {string} id
 * @param {new () => T} type
 * @returns {T}
 */
export function byId(id, type) {
  const found = document.getElementById(id);
  if (!(found instanceof type)) throw new Error(`no ${id}`);
  return found;
}

/**
 * Have a link lead to an address outside of this page, which the operator has configured. It tells that place nothing.
 * @param {HTMLAnchorElement} anchor
 * @param {string} address of a page on the web; another is refused
 */
export function leadOutside(anchor, address) {
  if (!/^https?:$/.test(new URL(address).protocol)) throw new TypeError("no address of the web");
  Object.assign(anchor, { href: address, target: "_blank", rel: "noopener noreferrer" });
  return anchor;
}
