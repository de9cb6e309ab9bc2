"""Messages that are moved, copied, discarded, retried and replayed: `/api/leveret/queues/.../move` and its like."""

from collections.abc import Callable
from datetime import datetime

from leveret.broker.administration.transfers import Chosen, dead_letter_queues
from leveret.broker.auth.users import User
from leveret.broker.http.call import Answer, Call, Item, Listing, Steps, Values
from leveret.broker.http.errors import bad_request, not_found
from leveret.broker.http.route import Key, Routes, Scope, Work, exact_body, required
from leveret.broker.transfer.retry import MOST_RETRIES

ROUTES = Routes("transfers")
_ACCEPTED = 202
Starter = Callable[..., int]  # starts a transfer of a queue, given the call and its body; returns its number
_CHOSEN = (
    Key("where", doc="the condition that messages must meet; all if it is not given"),
    Key("limit", "integer", doc="maximum number of messages"),
    Key("rate", "integer", doc="maximum number of messages a second"),
    Key("dry_run", "boolean", doc="only count"),
)
_DESTINATION = "name of a queue, or `exchange:NAME` or `exchange:NAME/KEY`; a slash in `NAME` is `%2F`"


def _begins(name: str, *body: Key) -> Callable[[Starter], Starter]:
    """Declare what begins a transfer; `body` has the keys beside those of all of them."""
    keys = (*body, *_CHOSEN)

    def declare(start: Starter) -> Starter:
        def begin(call: Call) -> Answer:
            given = exact_body(call, keys)
            with call.changing():
                started = start(call, given)
            return Item(call.administration.transfers.transfer(call.actor, started), status=_ACCEPTED)

        path = f"leveret/queues/{{vhost}}/{{queue}}/{name}"
        statuses = (_ACCEPTED,)
        ROUTES.post(path, doc=start.__doc__, scope=Scope.CLIENT, body=keys, statuses=statuses)(begin)
        return start

    return declare


def _place(call: Call) -> tuple[User | None, str, str]:
    return call.actor, call.names["vhost"], call.names["queue"]


def chosen_by(body: Values) -> Chosen:
    """Return the messages that a body chooses; raises ApiError."""
    return Chosen(
        where=body.text("where"),
        limit=body.number_or_none("limit"),
        rate=body.number("rate", 0),
        is_dry=body.flag("dry_run"),
    )


@_begins("move", required("destination", doc=_DESTINATION))
def move(call: Call, body: Values, *, is_copy: bool = False) -> int:
    """Begin to move messages; needs read on the queue and write on the destination."""
    return call.administration.transfers.start_move(
        *_place(call), body.text("destination"), is_copy=is_copy, chosen=chosen_by(body)
    )


@_begins("copy", required("destination", doc=_DESTINATION))
def copy(call: Call, body: Values) -> int:
    """Begin to copy messages; needs read on the queue and write on the destination."""
    return move(call, body, is_copy=True)


@_begins("discard")
def discard(call: Call, body: Values) -> int:
    """Begin to discard messages; needs read and configure on the queue."""
    return call.administration.transfers.start_discard(*_place(call), chosen_by(body))


@_begins(
    "retry",
    Key("destination", doc=f"instead: {_DESTINATION}"),
    Key("first", "boolean", doc="to the queue of the first death, not of the newest"),
    Key("reason", doc="only those whose newest death has this reason"),
    Key("max_retries", "integer", doc=f"retries after which a message stays; {MOST_RETRIES}"),
)
def retry(call: Call, body: Values) -> int:
    """Begin to move dead letters back to where they died; needs read here and write there."""
    return call.administration.transfers.start_retry(
        *_place(call),
        destination=body.text("destination"),
        first=body.flag("first"),
        reason=body.text("reason"),
        most_retries=body.number("max_retries", MOST_RETRIES),
        chosen=chosen_by(body),
    )


@_begins(
    "replay",
    required("destination", doc=_DESTINATION),
    Key("since", doc="only those acked at this time or later, in ISO 8601 with its offset"),
    Key("until", doc="only those acked before this time"),
)
def replay(call: Call, body: Values) -> int:
    """Begin to replay acked messages that the queue retains; needs read here and write on the destination."""
    return call.administration.transfers.start_replay(
        *_place(call),
        body.text("destination"),
        since=_moment(body, "since") or 0,
        until=_moment(body, "until"),
        chosen=chosen_by(body),
    )


def _moment(body: Values, key: str) -> int | None:
    """Return a time in milliseconds since the epoch; None if it is not given."""
    value = body.text(key)
    if not value:
        return None
    try:
        time = datetime.fromisoformat(value)
        if time.tzinfo is not None:
            return round(time.timestamp() * 1000)
    except (ValueError, OverflowError):
        pass
    raise bad_request(f"'{key}' must be a time in ISO 8601 with its offset, such as 2026-11-23T10:00:00Z")


@ROUTES.list("leveret/transfers")
def list_transfers(call: Call) -> Answer:
    """The transfers that run, and the latest that are over."""
    return Listing(call.administration.transfers.transfers(call.actor), sort=("id",))


@ROUTES.get("leveret/transfers/{transfer}")
def get_transfer(call: Call) -> Answer:
    """The progress or the result of a transfer."""
    return Item(call.administration.transfers.transfer(call.actor, _number(call)))


@ROUTES.delete("leveret/transfers/{transfer}", statuses=(200,))
def cancel_transfer(call: Call) -> Answer:
    """End a transfer after its current batch."""
    return Item(call.administration.transfers.cancel(call.actor, _number(call)))


def _number(call: Call) -> int:
    name = call.names["transfer"]
    if not name.isdecimal() or len(name) > 18:  # noqa: PLR2004 - digits of a 64-bit number
        raise not_found()
    return int(name)


@ROUTES.list("leveret/dead-letters", work=Work.LONG)
@ROUTES.list(
    "leveret/dead-letters/{vhost}",
    doc="The queues of a virtual host that hold dead letters.",
    scope=Scope.VHOST,
    work=Work.LONG,
)
def list_dead_letters(call: Call) -> Steps:
    """The queues that hold dead letters."""
    vhost = call.asked_vhost
    rows = yield from dead_letter_queues(call.broker, call.actor, vhost)
    return Listing(rows, sort=("vhost", "queue"))
