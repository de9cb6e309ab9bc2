"""Messages of a queue without consuming them: `/api/leveret/queues/{vhost}/{queue}/messages`."""

from collections.abc import Generator
from typing import Any

from leveret.broker.administration.definitions_document import json_text
from leveret.broker.administration.messages import MessageView
from leveret.broker.administration.peeking import BODY_OCTETS, EFFORT, SOME, Wanted
from leveret.broker.http.call import Call, Item, Steps, number, text
from leveret.broker.http.errors import bad_request
from leveret.broker.http.route import Key, Routes, Scope, Work
from leveret.broker.management.client_errors import naming_the_missing
from leveret.broker.management.messages import check_memory, payload_of, properties_of

ROUTES = Routes("messages")


@ROUTES.get(
    "leveret/queues/{vhost}/{queue}/messages",
    scope=Scope.CLIENT,
    query=(
        Key("count", "integer", doc="maximum number for each state, 1 to 1000; 10 by default"),
        Key("from", doc="`head`, or `tail` to begin with the newest"),
        Key("where", doc="a [condition](filters.md) that they meet"),
        Key("after", doc="`next` of the answer before, to go on with a search"),
        Key("truncate", "integer", doc="bytes of each body that are returned at most"),
        Key("encoding", doc="`auto` (text if it is UTF-8) or `base64`"),
    ),
    work=Work.LONG,
    is_audited=True,
)
def peek(call: Call) -> Steps:
    """The `messages` of a queue, without consuming them: ready, unacked and delayed ones. Needs the
    permission to read the queue. One request searches some 100,000 messages, and returns some 16 MiB,
    at most: `next` is null at the end.
    """
    query = call.query
    end, encoding = text(query, "from", "head"), text(query, "encoding", "auto")
    if end not in {"head", "tail"}:
        raise bad_request("from must be head or tail")
    if encoding not in {"auto", "base64"}:
        raise bad_request("encoding must be auto or base64")
    wanted = Wanted(
        number(query, "count", SOME.most),
        end == "tail",
        text(query, "where"),
        number(query, "truncate", BODY_OCTETS),
        after=text(query, "after"),
        effort=EFFORT,
    )
    check_memory(call, wanted.octets)
    with naming_the_missing():
        found = yield from call.administration.peeking.peek(
            call.actor, call.names["vhost"], call.names["queue"], wanted
        )
    rows: list[dict[str, Any]] = []
    for view in found.messages:
        rows.append((yield from shown(view, is_base64=encoding == "base64")))
        yield None
    return Item(
        {
            "messages": rows,
            "searched": found.searched,
            "next": found.following or None,
            "complete": found.is_complete,
        }
    )


def shown(view: MessageView, *, is_base64: bool) -> Generator[None, None, dict[str, Any]]:
    """Return a message as the API shows it, in steps."""
    payload, encoding = yield from payload_of(view, is_base64=is_base64)
    return {
        "number": view.number or None,
        "state": view.state,
        "redelivered": view.redelivered,
        "exchange": json_text(view.exchange),
        "routing_key": json_text(view.routing_key),
        "age": view.age,
        "expires": view.expires,
        "due": view.due,
        "consumer_tag": json_text(view.consumer) or None,
        "channel": view.channel or None,
        "unacked_for": view.unacked_for,
        "properties": properties_of(view),
        "payload_bytes": view.size,
        "payload": payload,
        "payload_encoding": encoding,
        "truncated": len(view.body) < view.size,
    }
