/**
 * All pages, and where they are in the list at the side. The overview comes with the program, the others when they are first
 * shown, or when there is nothing else to do.
 */
import * as overview from "./pages/overview.js";

/** @typedef {import("./app.js").Page} Page */

/** @type {Record<string, () => Page | Promise<Page>>} */
export const PAGES = {
  overview: () => overview,
  about: () => import("./pages/about.js"),
  channels: () => import("./pages/channels.js"),
  connections: () => import("./pages/connections.js"),
  consumers: () => import("./pages/consumers.js"),
  "dead-letters": () => import("./pages/dead_letters.js"),
  definitions: () => import("./pages/definitions.js"),
  exchanges: () => import("./pages/exchanges.js"),
  held: () => import("./pages/held.js"),
  logs: () => import("./pages/logs.js"),
  messages: () => import("./pages/messages.js"),
  "operator-policies": () => import("./pages/operator_policies.js"),
  policies: () => import("./pages/policies.js"),
  queues: () => import("./pages/queues.js"),
  reports: () => import("./pages/reports.js"),
  shovels: () => import("./pages/shovels.js"),
  tail: () => import("./pages/tail.js"),
  users: () => import("./pages/users.js"),
  vhosts: () => import("./pages/vhosts.js"),
};

/** Load what has not been shown yet, so that every page can be, also when the broker is away. */
export async function loadAll() {
  for (const load of Object.values(PAGES)) await load();
}

/** @type {{title: string, pages: {page: string, text: string, needs?: "monitors" | "sets" | "administers"}[]}[]} */
export const SECTIONS = [
  { title: "", pages: [{ page: "overview", text: "Overview" }] },
  {
    title: "Messages",
    pages: [{ page: "queues", text: "Queues" }, { page: "dead-letters", text: "Dead letters" }, { page: "held", text: "Held messages" }, { page: "messages", text: "Messages" }, { page: "exchanges", text: "Exchanges" }, { page: "tail", text: "Live tail", needs: "administers" }],
  },
  {
    title: "Clients",
    pages: [{ page: "connections", text: "Connections" }, { page: "channels", text: "Channels" }, { page: "consumers", text: "Consumers" }],
  },
  {
    title: "Admin",
    pages: [
      { page: "policies", text: "Policies" }, { page: "operator-policies", text: "Operator policies" }, { page: "shovels", text: "Shovels", needs: "monitors" },
      { page: "users", text: "Users", needs: "administers" }, { page: "vhosts", text: "Virtual hosts" },
      { page: "definitions", text: "Definitions", needs: "administers" }, { page: "logs", text: "Logs", needs: "monitors" },
      { page: "reports", text: "Reports", needs: "monitors" }, { page: "about", text: "About" },
    ],
  },
];
