// What comes before the modules of the program: the chosen theme, before anything is painted; the modules of the page that is opened,
// all at once; and the first questions to the broker, which are answered while the modules are loaded.
(() => {
  let isInside = false; // without a session an answer to a question is an error
  try {
    isInside = localStorage.getItem("leveret.inside") === "true";
    const theme = localStorage.getItem("leveret.theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch { /* without storage the system's theme applies */ }
  const page = /^#\/?([a-z-]+)/.exec(location.hash)?.[1];
  const modules = document.querySelector("template#pages");
  if (page && modules instanceof HTMLTemplateElement) document.head.append(...modules.content.querySelectorAll(`[data-pages~="${page}"]`));
  const headers = { "x-requested-with": "leveret", accept: "application/json" };
  /** @param {string} path */
  const ask = (path) => fetch(`api/${path}`, { headers, credentials: "same-origin" }).then((answer) => (answer.ok ? answer.json() : null), () => null);
  /** @type {any} */ (globalThis).leveretFirst = { auth: ask("auth"), vhosts: isInside ? ask("vhosts?columns=name") : null };
})();
