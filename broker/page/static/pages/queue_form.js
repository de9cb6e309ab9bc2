/** The form for a new queue. */
import { get, path, send } from "../shell/api.js";
import { ask } from "../shell/dialog.js";
import { done } from "../shell/notices.js";
import { link } from "../shell/route.js";
import { placeFields } from "./place_fields.js";
import { SettingsChooser } from "./settings_chooser.js";

/**
 * Ask for a queue and declare it.
 * @param {string} vhost
 */
export async function newQueue(vhost) {
  const [settings, fields] = await Promise.all([get("leveret/settings"), placeFields(vhost)]);
  let kind = "classic_queues";
  const chooser = new SettingsChooser(settings, { "confirm-mode": undefined }, (each) => each.argument !== null && each.kinds.includes(kind));
  await ask({
    title: "New queue", action: "Create",
    fields: [
      ...fields,
      { name: "type", label: "Type", type: "select", options: ["classic", "quorum", "stream"], value: "classic" }, { name: "durable", label: "Durable: it is there after a restart", type: "checkbox", value: true },
    ],
    below: (form) => {
      form.addEventListener("change", () => {
        const type = /** @type {HTMLSelectElement} */ (form.elements.namedItem("type")).value;
        kind = type === "stream" ? "streams" : `${type}_queues`;
        chooser.offer();
      });
      return chooser.element;
    },
    submit: async ({ name, vhost: place, type, durable }) => {
      await send("PUT", `queues/${path(place, name)}`, { durable, arguments: queueArguments(type, chooser.values()) });
      done(`The queue ${name} is there.`);
      location.hash = link("queues", [place, name]);
    },
  });
}

/**
 * The arguments of a queue of a type with some settings; dead letters with a routing key go to the default exchange.
 * @param {string} type
 * @param {Record<string, unknown>} settings
 * @returns {Record<string, unknown>}
 */
export function queueArguments(type, settings) {
  const given = "dead-letter-routing-key" in settings ? { "dead-letter-exchange": "", ...settings } : settings;
  const found = Object.fromEntries(Object.entries(given).map(([name, value]) => [`x-${name}`, value]));
  return type === "classic" ? found : { "x-queue-type": type, ...found };
}
