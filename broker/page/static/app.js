/**
 * The page: logging in, choosing a page and a virtual host, and keeping both up to date.
 *
 * @typedef {{name: string, tags: string[], vhosts: number, mayChange: boolean, monitors: boolean, sets: boolean, administers: boolean}} User
 * @typedef {{
 *   main: HTMLElement, route: import("./shell/route.js").Route, user: User, vhost: string, signal: AbortSignal,
 * }} Place
 * @typedef {{title: string, show: (place: Place) => unknown}} Page
 */
import { get, login, send, session } from "./shell/api.js";
import { byId, fill, h, leadOutside, reasonOf, setText } from "./shell/elements.js";
import { bindKeys } from "./shell/keyboard.js";
import { live } from "./shell/live.js";
import { recall, remember } from "./shell/memory.js";
import { failed } from "./shell/notices.js";
import { heading } from "./shell/parts.js";
import { PAGES, SECTIONS, loadAll } from "./pages.js";
import { arrive, leave } from "./shell/provider.js";
import { link, parse } from "./shell/route.js";
import { bindStatus } from "./shell/status.js";
import { bindTheme } from "./shell/theme.js";

/** The tag that gives a right. */
const TAGS = { monitors: "monitoring", sets: "policymaker", administers: "administrator" };
const main = byId("main", HTMLElement);
const side = byId("side", HTMLElement);
const loginPlace = byId("login", HTMLElement);
const vhostSelect = byId("vhost", HTMLSelectElement);
const menu = byId("menu", HTMLButtonElement);
/** @type {User | null} */
let user = null;
let vhost = "";
let shown = new AbortController();
/** @type {Record<string, Promise<any>> | undefined} What `shell/first_paint.js` has asked for while this was loaded. */
const begun = /** @type {any} */ (globalThis).leveretFirst;

/** @param {{name: string, tags: string[]}} who */
function begin(who) {
  const has = (/** @type {string[]} */ ...tags) => tags.some((tag) => who.tags.includes(tag));
  user = {
    name: who.name, tags: who.tags, vhosts: 1, administers: has("administrator"), monitors: has("monitoring", "administrator"),
    sets: has("policymaker", "administrator"), mayChange: has("management", "policymaker", "administrator"),
  };
  remember("inside", true);
  setText(byId("user", HTMLElement), user.name);
  loginPlace.hidden = true;
  byId("opening", HTMLElement).hidden = true;
  document.body.classList.add("inside");
  for (const id of ["top", "side"]) byId(id, HTMLElement).hidden = false;
  main.hidden = false;
  fillSide();
  vhost = recall("vhost", "");
  live.follow(vhost);
  refreshVhosts().then(showPage).finally(() => requestIdleCallback(() => loadAll().catch(() => undefined)));
}

/**
 * What was asked for before; once, and if that failed, it is asked again.
 * @param {"auth" | "vhosts"} name
 * @param {() => Promise<any>} otherwise
 */
async function first(name, otherwise) {
  const asked = begun?.[name];
  delete begun?.[name];
  return (await asked) ?? otherwise();
}

/**
 * @param {string} [why]
 * @param {any} [ways] the ways to log in, if they are known
 */
function askForLogin(why = "", ways = undefined) {
  shown.abort();
  remember("inside", false);
  live.stop();
  user = null;
  document.body.classList.remove("inside");
  document.title = "Log in – Leveret";
  fill(main);
  for (const id of ["top", "side", "main"]) byId(id, HTMLElement).hidden = true;
  byId("opening", HTMLElement).hidden = true;
  loginPlace.hidden = false;
  sayAtLogin(why);
  /** @type {HTMLElement | null} */ (loginPlace.querySelector("input, #provider:not([hidden])"))?.focus();
  offerProvider(ways);
}

/**
 * Offer the ways to log in that this broker has.
 * @param {any} known
 */
async function offerProvider(known) {
  const ways = known ?? (await get("auth").catch(() => null));
  if (!ways?.oauth_enabled) return;
  byId("provider", HTMLElement).hidden = false;
  if (!ways.oauth_disable_basic_auth) return;
  for (const each of loginPlace.querySelectorAll("label, .hint, button:not(#provider)")) each.remove();
  byId("provider", HTMLElement).focus();
}

/** @param {string} why */
function sayAtLogin(why) {
  const error = loginPlace.querySelector(".error");
  if (!(error instanceof HTMLElement)) return;
  error.hidden = !why;
  setText(error, why);
}

function fillSide() {
  const allowed = SECTIONS.map(({ title, pages }) => ({ title, pages: pages.filter((each) => !each.needs || user?.[each.needs]) }));
  fill(side, allowed.filter(({ pages }) => pages.length).flatMap(({ title, pages }) => [
    title ? h("h2", null, title) : null,
    ...pages.map(({ page, text }) => h("a", { href: link(page), "data-page": page }, text)),
  ]));
  if (user?.monitors) linkReports();
}

/** Have the entry of the reports lead to where they are, if that is configured. */
async function linkReports() {
  const found = await get("leveret/reports").catch(() => null);
  const entry = side.querySelector('a[data-page="reports"]');
  if (!found?.url || !(entry instanceof HTMLAnchorElement)) return;
  leadOutside(entry, found.url);
}

async function refreshVhosts() {
  try {
    const names = (await first("vhosts", () => get("vhosts", { columns: "name" }))).map((/** @type {any} */ each) => each.name);
    user && (user.vhosts = names.length);
    const wanted = recall("vhost", "");
    vhost = names.includes(wanted) ? wanted : "";
    fill(vhostSelect, h("option", { value: "" }, "All"), names.map((/** @type {string} */ name) => h("option", { value: name, selected: name === vhost }, name)));
  } catch (error) {
    failed(error);
  }
}

async function showPage() {
  if (!user) return;
  shown.abort();
  shown = new AbortController();
  for (const each of document.querySelectorAll("dialog")) each.close(); // it belongs to the page that is left
  const route = parse(location.hash);
  const place = { main, route, user, vhost, signal: shown.signal };
  for (const each of side.querySelectorAll("a")) {
    if (each.dataset.page === route.page) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  openMenu(false);
  fill(main);
  main.dataset.route = location.hash;
  main.setAttribute("aria-busy", "true");
  live.follow(vhost);
  try {
    const page = await (PAGES[route.page] ?? PAGES.overview)();
    if (place.signal.aborted) return;
    document.title = `${[page.title, ...route.names.slice(-1)].reverse().join(" – ")} – Leveret`;
    const needs = SECTIONS.flatMap(({ pages }) => pages).find((each) => each.page === route.page)?.needs;
    if (needs && !user[needs]) main.append(heading(page.title), h("p", { class: "note" }, `This page is about the whole broker: it needs the tag ${TAGS[needs]}.`));
    else await page.show(place);
  } catch (error) {
    if (!place.signal.aborted) main.append(h("p", { class: "error", role: "alert" }, whyNot(error)));
  }
  if (!place.signal.aborted) main.removeAttribute("aria-busy");
}

/** @param {unknown} error */
function whyNot(error) {
  if (error instanceof TypeError && /module/.test(error.message)) return "This part of the page cannot be loaded: reload the page.";
  return reasonOf(error);
}

/** @param {boolean} isOpen */
function openMenu(isOpen) {
  side.classList.toggle("open", isOpen);
  menu.setAttribute("aria-expanded", String(isOpen));
}

/** @param {Event} event */
async function submitLogin(event) {
  event.preventDefault();
  const form = /** @type {HTMLFormElement} */ (event.target);
  const button = /** @type {HTMLButtonElement} */ (form.querySelector("button"));
  button.disabled = true;
  sayAtLogin("");
  try {
    await login(new FormData(form));
    form.reset();
    begin(await get("whoami"));
  } catch (error) {
    const reason = reasonOf(error);
    sayAtLogin(reason === "Not_Authorized" ? "The name or the password is wrong." : reason);
  }
  button.disabled = false;
}

async function start() {
  bindTheme(byId("theme", HTMLButtonElement));
  bindStatus(byId("state", HTMLElement), byId("node", HTMLElement), byId("pause", HTMLElement));
  bindKeys();
  loginPlace.querySelector("form")?.addEventListener("submit", submitLogin);
  byId("provider", HTMLElement).addEventListener("click", () => leave().catch((error) => sayAtLogin(whyNot(error))));
  menu.addEventListener("click", () => openMenu(!side.classList.contains("open")));
  byId("logout", HTMLElement).addEventListener("click", async () => {
    try {
      await send("POST", "logout");
      askForLogin();
    } catch (error) {
      failed(error, "Not logged out");
    }
  });
  vhostSelect.addEventListener("change", () => {
    vhost = vhostSelect.value;
    remember("vhost", vhost);
    showPage();
  });
  addEventListener("hashchange", () => {
    showPage();
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
  });
  session.addEventListener("logged-out", () => user && askForLogin("The session is over: log in again."));
  session.addEventListener("check", () => get("whoami").catch(() => undefined));
  session.addEventListener("vhosts", refreshVhosts);
  live.addEventListener("back", showPage);
  Promise.resolve(PAGES[parse(location.hash).page]?.()).catch(() => undefined);
  const problem = await arrive();
  if (problem) return askForLogin(problem);
  if (problem !== null) delete begun?.auth; // asked before the session began
  const ways = await first("auth", () => get("auth")).catch(() => null);
  if (ways?.user) begin(ways.user);
  else askForLogin("", ways);
}

start();
