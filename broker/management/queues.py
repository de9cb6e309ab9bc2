"""Queues: `/api/queues`; paused and resumed, held messages, known ids: `/api/leveret/queues/.../pause` and its like."""

from typing import Any

from leveret.broker.administration.access import Right
from leveret.broker.administration.known_ids import Kind
from leveret.broker.http.call import Answer, Call, Done, Item, Listing, Steps, signal
from leveret.broker.http.errors import ApiError, bad_request, not_found
from leveret.broker.http.listing import RANGES
from leveret.broker.http.route import Key, Routes, Scope, Work, exact_body, required
from leveret.broker.management.clients import consumer_fields, shown
from leveret.broker.management.queue_fields import queue_fields
from leveret.broker.management.transfers import chosen_by
from leveret.broker.queue.arguments import QUORUM
from leveret.broker.queue.queue import Queue

ROUTES = Routes("queues", scope=Scope.VHOST)
_ACTIONS = ("sync", "cancel_sync")
_REPLICAS = {"needs": Right.ADMINISTRATOR, "scope": Scope.NONE, "statuses": (), "group": "replicas"}
_LIST = (
    Key("disable_stats", "boolean", doc="only what was declared"),
    Key("enable_queue_totals", "boolean", doc="with `disable_stats`: also the numbers of messages"),
    *RANGES,
)


@ROUTES.list("queues", "queues/detailed", query=_LIST)
@ROUTES.list("queues/{vhost}", doc="The queues of a virtual host.", query=_LIST)
def list_queues(call: Call) -> Answer:
    """All queues."""
    return Listing(call.administration.listings.queues(call.actor, call.vhost), queue_fields(call))


def found_queue(call: Call) -> Queue:
    """Return the queue of the path; raises ApiError if there is none."""
    queue = call.found_vhost().queues.get(call.names["queue"])
    if queue is None:
        raise not_found()
    return queue


@ROUTES.get("queues/{vhost}/{queue}", query=_LIST)
def get_queue(call: Call) -> Answer:
    """One queue."""
    queue = found_queue(call)
    item = shown(queue_fields(call), queue)
    if not call.query.flag("disable_stats"):
        consumers = consumer_fields(call)
        details = [shown(consumers, each) for each in tuple(queue.consumers)]
        item |= {"consumer_details": details, "deliveries": [], "incoming": []}
    return Item(item)


@ROUTES.put(
    "queues/{vhost}/{queue}",
    body=(
        Key("durable", "boolean", doc="false by default"),
        Key("auto_delete", "boolean", doc="false by default"),
        Key("arguments", "object"),
        Key("node", doc="the name of the node, if any"),
    ),
)
def put_queue(call: Call, vhost: str, queue: str) -> Answer:
    """Declare a queue."""
    body = call.body()
    node = body.text("node") if body.get("node") else ""
    if node not in {"", "undefined", call.broker.node_name}:
        host = call.broker.node_name.partition("@")[2]
        raise bad_request(f"Node {node if '@' in node else f'{node}@{host}'} could not be contacted")
    with call.changing():
        place = call.broker.vhosts[vhost]
        place.await_name(queue)  # a restart would restore a deleted queue that still discards messages
        is_new = queue not in place.queues
        call.administration.topology.declare_queue(
            call.actor,
            vhost,
            queue,
            durable=body.flag("durable"),
            auto_delete=body.flag("auto_delete"),
            arguments=body.table("arguments"),
        )
    return Done(201 if is_new else 204)


@ROUTES.delete(
    "queues/{vhost}/{queue}",
    query=(
        Key("if-empty", "boolean", doc="only if it has no ready messages"),
        Key("if-unused", "boolean", doc="only if it has no consumers"),
    ),
)
def delete_queue(call: Call) -> Steps:
    """Delete a queue with its messages."""
    queue = found_queue(call)
    with call.changing():
        call.administration.topology.delete_queue(
            call.actor,
            queue.vhost,
            queue.name,
            if_empty=call.query.flag("if-empty"),
            if_unused=call.query.flag("if-unused"),
        )
    if queue.deleted and not queue.finished:
        yield signal(queue.after_finish)
    return Done()


@ROUTES.delete("queues/{vhost}/{queue}/contents")
def purge_queue(call: Call) -> None:
    """Delete the ready messages of a queue."""
    queue = found_queue(call)
    with call.changing():
        call.administration.topology.purge_queue(call.actor, queue.vhost, queue.name)


@ROUTES.post(
    "queues/{vhost}/{queue}/actions",
    needs=Right.ADMINISTRATOR,
    body=(required("action", doc="`sync` or `cancel_sync`"),),
)
def act_on_queue(call: Call) -> None:
    """Accepted for RabbitMQ's mirrored queues: does nothing."""
    found_queue(call)
    action: Any = call.body("action")["action"]
    if action not in _ACTIONS:
        raise bad_request(["unknown", action])


@ROUTES.put(
    "leveret/queues/{vhost}/{queue}/resume",
    doc="Resume the deliveries of a paused queue; needs read and configure on the queue.",
    scope=Scope.CLIENT,
    arguments={"paused": False},
)
@ROUTES.put("leveret/queues/{vhost}/{queue}/pause", scope=Scope.CLIENT, arguments={"paused": True})
def set_paused(call: Call, vhost: str, queue: str, *, paused: bool) -> None:
    """Pause the deliveries of a queue to its consumers; it stays paused until it is resumed, a durable
    queue also when the broker restarts. Needs read and configure on the queue.
    """
    with call.changing():
        call.administration.topology.set_queue_paused(call.actor, vhost, queue, paused=paused)


# -- replicas of quorum queues, of which there is one -----------------------------------------------------------------


@ROUTES.get("queues/quorum/{vhost}/{queue}/status", scope=Scope.VISIBLE, group="replicas")
def get_status(call: Call) -> Answer:
    """State of the replica of a quorum queue."""
    if found_queue(call).type != QUORUM:
        raise not_found()
    return Listing(
        [{"Node Name": call.broker.node_name, "Raft State": "leader", "Membership": "voter"}], sort=()
    )


@ROUTES.post(
    "queues/quorum/{vhost}/{queue}/replicas/add", "queues/quorum/replicas/on/{node}/grow", **_REPLICAS
)
@ROUTES.delete(
    "queues/quorum/{vhost}/{queue}/replicas/delete", "queues/quorum/replicas/on/{node}/shrink", **_REPLICAS
)
def refuse(_call: Call) -> Answer:
    """Refused: there is one node."""  # as by a RabbitMQ that is configured so
    raise ApiError(405, "method_not_allowed", "Broker settings disallow quorum queue replica operations.")


# -- messages that a queue holds until their time ---------------------------------------------------------------------


HELD_ROUTES = Routes("held messages")
_HELD = (
    required(
        "action",
        doc="`release` to deliver them now, `cancel` to remove them, `reschedule` to change their time, "
        "`move` or `copy` to have another queue hold them until the same time",
    ),
    Key("to", "integer", doc="with `reschedule`: the new time, in milliseconds since 1970"),
    Key("destination", doc="with `move` and `copy`: the other queue"),
    Key("where", doc="a [condition](filters.md) that they meet; all if it is not given"),
    Key("limit", "integer", doc="maximum number of messages, those that are due first"),
    Key("dry_run", "boolean", doc="only count"),
)


@HELD_ROUTES.post(
    "leveret/queues/{vhost}/{queue}/held", scope=Scope.CLIENT, body=_HELD, statuses=(200,), work=Work.LONG
)
def act_on_held(call: Call, vhost: str, queue: str) -> Steps:
    """Act on messages that a queue holds until their time; needs read and configure on it, and write on a
    destination. The answer has the numbers of those that were `examined`, `matched` the condition, and were still
    held: `done`. Look at them with `state=held` in [the messages of a queue](#messages).
    """
    body = exact_body(call, _HELD)
    to, destination = body.number_or_none("to"), body.text("destination")
    asked = body.text("action"), to, destination, chosen_by(body)
    with call.changing():
        found = yield from call.administration.held.act(call.actor, vhost, queue, *asked)
    return Item(found)


# -- ids that queues and exchanges know ------------------------------------------------------------------------------


ID_ROUTES = Routes("ids")
_ID = Key("id", doc="the id; of a body its SHA-256 in hexadecimal digits")
_IDS = {"scope": Scope.CLIENT, "query": (_ID,), "statuses": (200,)}


@ID_ROUTES.list(
    "leveret/ids",
    doc="The exchanges and queues that take each message once (`x-deduplicate`), of all virtual hosts.",
)
@ID_ROUTES.list(
    "leveret/ids/{vhost}",
    doc="The exchanges and queues of a virtual host that take each message once. `ids`: how many they know, some of "
    "which may have expired; `repeated`: publishes that were dropped.",
    scope=Scope.VISIBLE,
)
def list_ids(call: Call) -> Steps:
    """The exchanges and queues that take each message once."""
    vhost = call.asked_vhost
    rows = yield from call.administration.known_ids.listing(call.actor, vhost)
    return Listing(rows, sort=("vhost", "exchange", "queue"))


@ID_ROUTES.get(
    "leveret/exchanges/{vhost}/{exchange}/ids",
    doc="The knowledge of an exchange about an `id`, as of a queue; needs read on it.",
    arguments={"kind": "exchange"},
    **_IDS,
)
@ID_ROUTES.get("leveret/queues/{vhost}/{queue}/ids", arguments={"kind": "queue"}, **_IDS)
def look_up_id(call: Call, vhost: str, *, kind: Kind) -> Answer:
    """The knowledge of a queue about an `id`: `known`, and `until` when (milliseconds since 1970; null: as long as its
    message is there); needs read on the queue.
    """
    asked = call.query.text("id")
    if not asked:
        raise bad_request("'id' is the id to look for")
    with call.changing():
        return Item(call.administration.known_ids.look(call.actor, vhost, call.names[kind], asked, kind))


@ID_ROUTES.delete(
    "leveret/exchanges/{vhost}/{exchange}/ids",
    doc="Forget an `id`, or all ids, of an exchange, as of a queue; needs configure on it.",
    arguments={"kind": "exchange"},
    **_IDS,
)
@ID_ROUTES.delete("leveret/queues/{vhost}/{queue}/ids", arguments={"kind": "queue"}, **_IDS)
def forget_ids(call: Call, vhost: str, *, kind: Kind) -> Answer:
    """Forget an `id`, or all ids, of a queue, which takes such messages again; needs read and configure on it. The
    answer has the number of ids that were known: `forgotten`.
    """
    asked = call.query.text("id") if "id" in call.query else None
    if asked == "":  # as of a script whose variable is not set
        raise bad_request("'id' is the id to forget; without it all are forgotten")
    with call.changing():
        forgotten = call.administration.known_ids.forget(call.actor, vhost, call.names[kind], asked, kind)
    return Item({"forgotten": forgotten})
