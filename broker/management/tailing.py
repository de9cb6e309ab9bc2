"""Messages as they are published: `/api/leveret/exchanges/{vhost}/{exchange}/tail`."""

from collections.abc import Generator, Iterator
from typing import Any

from leveret.broker.administration.access import Right
from leveret.broker.administration.definitions_document import json_text
from leveret.broker.administration.messages import MessageView
from leveret.broker.administration.peeking import BODY_OCTETS
from leveret.broker.administration.tailing import Follower, Wish
from leveret.broker.http.call import Answer, Call, Stream, number, text
from leveret.broker.http.listing import encoded, encoded_pieces
from leveret.broker.http.route import Key, Routes, Scope
from leveret.broker.management.bindings import exchange_name
from leveret.broker.management.client_errors import naming_the_missing
from leveret.broker.management.messages import BODY_KEYS, content_of, is_base64_asked
from leveret.broker.vhost.tail import EVERYTHING, Published

ROUTES = Routes("messages")
LINES = "application/x-ndjson"


@ROUTES.get(
    "leveret/exchanges/{vhost}/{exchange}/tail",
    needs=Right.ADMINISTRATOR,
    scope=Scope.VHOST,
    query=(
        Key("pattern", doc="what routing keys match, as in a binding to a topic exchange; `#` by default"),
        Key("where", doc="a [condition](filters.md) that messages meet"),
        Key("count", "integer", doc="number of messages after which it ends"),
        *BODY_KEYS,
    ),
    is_audited=True,
    kind="text",
    has_head=False,
)
def tail(call: Call) -> Answer:
    """Messages as they are published to an exchange, until the reader leaves: lines of JSON, of which
    empty ones mean nothing. `lost` is a number of messages that a slow reader has missed, `end` a
    reason why there are no more. Dead letters, and messages from other exchanges, are shown, too;
    publishers do not wait.
    """
    query = call.query
    is_base64 = is_base64_asked(query)
    wish = Wish(
        text(query, "pattern", EVERYTHING),
        text(query, "where"),
        number(query, "count", 0) if "count" in query else None,
        number(query, "truncate", BODY_OCTETS),
    )
    with naming_the_missing():
        follower = call.administration.tailing.start(
            call.actor, call.names["vhost"], exchange_name(call.names["exchange"]), wish
        )
    pieces = _pieces(follower, is_base64=is_base64)
    last = encoded({"end": "the broker is stopping"}) + b"\n"
    return Stream(pieces, follower.when_there, follower.close, LINES, idle=b"\n", last=last)


def _pieces(follower: Follower, *, is_base64: bool) -> Iterator[bytes | None]:
    follower.begin()  # by the writer, who closes it
    yield b"\n"  # so that the reader knows that it has begun
    for line in follower.lines():
        if line is None:
            yield None
        elif line.published is not None and line.view is not None:
            yield from encoded_pieces((yield from shown(line.published, line.view, is_base64=is_base64)))
            yield b"\n"
        elif line.lost:
            yield encoded({"lost": line.lost}) + b"\n"
        elif line.end:
            yield encoded({"end": line.end}) + b"\n"
        else:
            yield b""


def shown(
    published: Published, view: MessageView, *, is_base64: bool
) -> Generator[None, None, dict[str, Any]]:
    """Return a published message as the API shows it, in steps."""
    content = yield from content_of(view, is_base64=is_base64)
    return {
        "time": published.time,
        "exchange": json_text(view.exchange),
        "routing_key": json_text(view.routing_key),
        "routed_queues": [json_text(name) for name in view.queues],
        "user": json_text(published.user) or None,
        "connection": published.connection or None,
        "channel": published.channel or None,
        **content,
    }
