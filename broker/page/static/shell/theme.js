/** Light, dark, or as the system is. */
import { fill, h, s } from "./elements.js";

const NEXT = /** @type {Record<string, string>} */ ({ "": "light", light: "dark", dark: "" });
const NAMES = /** @type {Record<string, string>} */ ({ "": "Theme of the system", light: "Light theme", dark: "Dark theme" });
const PATHS = /** @type {Record<string, string>} */ ({
  "": "M3 4h14v10H3zM7 17h6",
  light: "M10 6.500a3.500 3.500 0 1 0 0 7 3.500 3.500 0 1 0 0-7M10 2v1.500M10 16.500V18M2 10h1.500M16.500 10H18M4.300 4.300l1 1M14.700 14.700l1 1M4.300 15.700l1-1M14.700 5.300l1-1",
  dark: "M16 12.500A7 7 0 0 1 7.500 4 7 7 0 1 0 16 12.500z",
});

/** @param {HTMLButtonElement} button */
export function bindTheme(button) {
  const root = document.documentElement;
  const show = () => {
    const theme = root.dataset.theme ?? "";
    fill(button, s("svg", { viewBox: "0 0 20 20", "aria-hidden": "true" }, s("path", { d: PATHS[theme] })));
    button.title = NAMES[theme];
    button.setAttribute("aria-label", `${NAMES[theme]}: change`);
  };
  button.addEventListener("click", () => {
    const next = NEXT[root.dataset.theme ?? ""];
    if (next) root.dataset.theme = next;
    else delete root.dataset.theme;
    try {
      if (next) localStorage.setItem("leveret.theme", next);
      else localStorage.removeItem("leveret.theme");
    } catch {
      // without storage it is for now
    }
    show();
  });
  show();
}
