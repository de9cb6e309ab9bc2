"""Held messages that are released, cancelled, rescheduled, moved or copied: `/api/leveret/queues/.../held`."""

from leveret.broker.administration.held import ACTS, Choice
from leveret.broker.http.call import Call, Item, Steps
from leveret.broker.http.errors import bad_request
from leveret.broker.http.route import Key, Routes, Scope, Work, exact_body, required

ROUTES = Routes("held messages")
_KEYS = (
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


@ROUTES.post(
    "leveret/queues/{vhost}/{queue}/held", scope=Scope.CLIENT, body=_KEYS, statuses=(200,), work=Work.LONG
)
def act(call: Call, vhost: str, queue: str) -> Steps:
    """Act on messages that a queue holds until their time; needs read and configure on it, and write on a
    destination. The answer has the numbers of those that were `examined`, `matched` the condition, and were still
    held: `done`. Look at them with `state=held` in [the messages of a queue](#messages).
    """
    body = exact_body(call, _KEYS)
    action = body.text("action")
    if action not in ACTS:
        raise bad_request(f"action must be one of {', '.join(ACTS)}")
    limit = body.number_or_none("limit")
    if limit is not None and limit < 1:
        raise bad_request("limit must be at least 1")
    with call.changing():
        found = yield from call.administration.held.act(
            call.actor,
            vhost,
            queue,
            action,
            to=body.number_or_none("to"),
            destination=body.text("destination"),
            choice=Choice(body.text("where"), limit, body.flag("dry_run")),
        )
    return Item(found._asdict())
