/** The fields of a form for something new that is in a virtual host. */
import { get } from "../shell/api.js";

/**
 * The fields for its name and its virtual host; with '' all virtual hosts can be chosen.
 * @param {string} vhost
 * @returns {Promise<import("../shell/dialog.js").Field[]>}
 */
export async function placeFields(vhost) {
  const vhosts = vhost ? [vhost] : (await get("vhosts", { columns: "name" })).map((/** @type {any} */ each) => each.name);
  return [
    { name: "name", label: "Name", required: true },
    { name: "vhost", label: "Virtual host", type: "select", options: vhosts, value: vhosts[0] },
  ];
}
