"""Ids that queues know: `/api/leveret/ids` and `/api/leveret/queues/.../ids`."""

from leveret.broker.http.call import Call, Item, Listing, Steps
from leveret.broker.http.errors import bad_request
from leveret.broker.http.route import Key, Routes, Scope

ROUTES = Routes("ids")
_ID = Key("id", doc="the id; of a body its SHA-256 in hexadecimal digits")


@ROUTES.list(
    "leveret/ids", doc="The queues that take each message once (`x-deduplicate`), of all virtual hosts."
)
@ROUTES.list(
    "leveret/ids/{vhost}",
    doc="The queues of a virtual host that take each message once. `ids`: how many they know, some of which may have "
    "expired; `repeated`: publishes that were dropped.",
    scope=Scope.VISIBLE,
)
def list_ids(call: Call) -> Steps:
    """The queues that take each message once."""
    vhost = call.asked_vhost
    rows = yield from call.administration.known_ids.listing(call.actor, vhost)
    return Listing(rows, sort=("vhost", "queue"))


@ROUTES.get("leveret/queues/{vhost}/{queue}/ids", scope=Scope.CLIENT, query=(_ID,))
def look(call: Call, vhost: str, queue: str) -> Item:
    """The knowledge of a queue about an `id`: `known`, and `until` when (milliseconds since 1970; null: as long as its
    message is there); needs read on the queue.
    """
    asked = call.query.text("id")
    if not asked:
        raise bad_request("'id' is the id to look for")
    with call.changing():
        return Item(call.administration.known_ids.look(call.actor, vhost, queue, asked))


@ROUTES.delete("leveret/queues/{vhost}/{queue}/ids", scope=Scope.CLIENT, query=(_ID,))
def forget(call: Call, vhost: str, queue: str) -> Item:
    """Forget an `id`, or all ids, of a queue, which takes such messages again; needs read and configure on it. The
    answer has the number of ids that were known: `forgotten`.
    """
    asked = call.query.text("id") or None
    with call.changing():
        return Item({"forgotten": call.administration.known_ids.forget(call.actor, vhost, queue, asked)})
