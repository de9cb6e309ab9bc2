"""Explanations: `/api/leveret/explain/...`."""

from typing import Any

from leveret.broker.administration.messages import STATES
from leveret.broker.http.call import Call, Item, Steps, naming_the_missing, number, table, text
from leveret.broker.http.errors import bad_request
from leveret.broker.http.route import Key, Routes, Scope, required
from leveret.broker.management.bindings import exchange_name
from leveret.broker.management.messages import shown

ROUTES = Routes("explanations")


@ROUTES.get("leveret/explain/queue/{vhost}/{queue}", scope=Scope.VISIBLE)
def explain_queue(call: Call, vhost: str, queue: str) -> Steps:
    """The settings in effect of a queue, each with where it comes from, its policies, and what looks
    wrong; its open `promises` if it confirms on acknowledgement; and the `holders` of unacknowledged
    messages, with the seconds for which they have had the oldest.
    """
    with naming_the_missing():
        found = yield from call.administration.explaining.queue(call.actor, vhost, queue)
    return Item(found)


@ROUTES.post(
    "leveret/explain/publish/{vhost}/{exchange}",
    scope=Scope.VISIBLE,
    body=(required("routing_key"), Key("headers", "object", doc="headers of the message")),
)
def explain_publish(call: Call, vhost: str, exchange: str) -> Steps:
    """Where a message would go that is published now, and by which bindings; nothing is published. A step
    at an exchange that keeps the message for its `x-delay` has that `delay` in milliseconds, as have
    the queues behind it; it is null elsewhere. The keys in CC and BCC are routed, too: they are
    `extra_keys`, and each match has the `matched_key` that led there, null where keys do not matter.
    """
    body = call.body("routing_key")
    with naming_the_missing():
        found = yield from call.administration.explaining.publish(
            call.actor, vhost, exchange_name(exchange), text(body, "routing_key"), table(body, "headers")
        )
    return Item(found)


@ROUTES.get(
    "leveret/explain/message/{vhost}/{queue}/{number}",
    scope=Scope.CLIENT,
    query=(Key("state", doc="`ready` (default), `unacked` or `delayed`"),),
)
def explain_message(call: Call, vhost: str, queue: str) -> Steps:
    """Why a message is in a queue: how it came, what it waits for, what will happen to it. Needs the
    permission to read the queue.
    """
    state = text(call.query, "state", "ready")
    if state not in STATES:
        raise bad_request(f"state must be one of {', '.join(STATES)}")
    with naming_the_missing():
        at = number(call.names, "number", 0)
        found: dict[str, Any] = yield from call.administration.explaining.message(
            call.actor, vhost, queue, at, state
        )
    message = yield from shown(found["message"], is_base64=False)
    return Item({**found, "message": message})
