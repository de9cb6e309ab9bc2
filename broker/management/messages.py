"""Messages: published, fetched from a queue, looked at in it, followed as they are published, and explained."""

import base64
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from typing import Any, cast

from leveret.broker.administration.access import Right
from leveret.broker.administration.definitions_document import encoded, json_text
from leveret.broker.administration.detached_channel import AckMode, Getting, Got, Outcome
from leveret.broker.administration.messages import (
    BODY_OCTETS,
    EFFORT,
    SOME,
    STATES,
    MessageView,
    Wanted,
    view_of,
)
from leveret.broker.administration.tailing import Follower, Wish
from leveret.broker.errors import NotYet
from leveret.broker.http.call import (
    Answer,
    Call,
    Callback,
    Item,
    Listing,
    Need,
    Steps,
    Stream,
    Values,
    naming_the_missing,
    signal,
)
from leveret.broker.http.errors import ApiError, bad_request
from leveret.broker.http.listing import encoded_pieces, text_of
from leveret.broker.http.route import Key, Routes, Scope, Work, required
from leveret.broker.management.exchanges import exchange_name
from leveret.broker.message_filter.message_facts import MessageFacts
from leveret.broker.vhost.tail import EVERYTHING, Published

ROUTES = Routes("messages")
ACK_MODES = ("ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false")
BODY_KEYS = (  # keys of queries for messages that are shown
    Key("truncate", "integer", doc="bytes of each body that are returned at most"),
    Key("encoding", doc="`auto` (text if it is UTF-8) or `base64`"),
)
MOST_OCTETS = 64 * 1024 * 1024  # bytes of bodies after which no further message is fetched by one request
_NUMBERS = ("delivery_mode", "priority", "timestamp")
_TEXTS = (
    "app_id", "cluster_id", "content_encoding", "content_type", "correlation_id", "expiration", "message_id",
    "reply_to", "type", "user_id",
)  # fmt: skip
_NACKED = "rejected Unable to publish message. Check queue limits."


def outcome_of(
    publish: Callable[[Callable[[Outcome], object]], object],
) -> Generator[Need, Any, Outcome]:
    """Publish a message, in steps; returns the outcome when a client would get its confirm."""
    found, listeners = list[Outcome](), list[Callable[[Any], object]]()

    def settle(outcome: Outcome) -> None:
        found.append(outcome)
        for listener in listeners:
            listener(outcome)

    publish(settle)
    if not found:  # it may be there by the time at which a caller begins to wait
        yield Callback(lambda listener: listener(found[0]) if found else listeners.append(listener))
    return found[0]


@ROUTES.post(
    "exchanges/{vhost}/{exchange}/publish",
    scope=Scope.VHOST,
    body=(
        required("routing_key"),
        required("properties", "object", doc="by their AMQP names, with `headers`"),
        required("payload"),
        required("payload_encoding", doc="`string` or `base64`"),
    ),
    is_large=True,
)
def publish(call: Call, vhost: str, exchange: str) -> Steps:
    """Publish a message, and wait until a client would get its confirm."""
    body = yield from call.large_body("routing_key", "properties", "payload", "payload_encoding")
    payload = _payload(body["payload"], body["payload_encoding"])
    routing_key = body["routing_key"]
    if not isinstance(routing_key, str):
        raise bad_request(["not_string", "routing_key"])
    properties = _properties(body.table("properties"))
    headers = body.table("properties").table("headers")
    if _has_null(headers):
        raise bad_request("null_not_allowed")
    message = partial(
        call.administration.publishing.publish,
        *(call.actor, vhost, exchange_name(exchange), routing_key, payload),
        properties=properties,
        headers=headers,
    )
    with call.on_channel():
        outcome = yield from outcome_of(message)
    if outcome == "nacked":
        raise bad_request(_NACKED)
    return Item({"routed": outcome != "unroutable"})


def _payload(given: Any, encoding: Any) -> bytes:
    if not isinstance(given, str):
        raise bad_request("payload_not_string")
    if encoding == "string":
        return given.encode("utf-8", "surrogateescape")
    if encoding != "base64":
        raise bad_request(["unsupported_encoding", encoding])
    try:
        return base64.b64decode(given, validate=True)
    except ValueError:
        pass
    try:  # in lines, as the command `base64` prints it
        return base64.b64decode("".join(given.split()), validate=True)
    except ValueError:
        raise bad_request(["not_base64", given]) from None


def _has_null(value: Any) -> bool:
    """Return whether there is a null in a value of headers: RabbitMQ has no type for it here."""
    if isinstance(value, dict):
        return any(map(_has_null, value.values()))
    return any(map(_has_null, value)) if isinstance(value, list) else value is None


def _properties(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties that AMQP has, without `headers`; unknown ones are ignored."""
    for name in _NUMBERS:
        if name in given and (not isinstance(given[name], int) or isinstance(given[name], bool)):
            raise bad_request(["not_int", name])
    for name in _TEXTS:
        if name in given and not isinstance(given[name], str):
            raise bad_request(["not_string", name])
    return {name: given[name] for name in (*_NUMBERS, *_TEXTS) if name in given}


@ROUTES.post(
    "queues/{vhost}/{queue}/get",
    scope=Scope.VHOST,
    body=(
        required("count", "integer"),
        required("ackmode", doc=", ".join(f"`{mode}`" for mode in ACK_MODES)),
        required("encoding", doc="`auto` or `base64`"),
        Key("truncate", "integer", doc="bytes of each body that are returned at most"),
    ),
    work=Work.BODIES,
    kind="array",
)
def get_messages(call: Call, vhost: str, queue: str) -> Steps:
    """Fetch messages from a queue, and requeue, ack or reject them."""
    body = call.body("ackmode", "count", "encoding")
    count = body.number("count", 0)
    ack_mode, encoding = body["ackmode"], body["encoding"]
    truncate = body.number_or_none("truncate")
    if encoding not in ("auto", "base64"):
        raise bad_request("Unsupported encoding. Please use auto or base64.")
    if not isinstance(ack_mode, str) or ack_mode not in ACK_MODES:
        raise bad_request(["unknown", ack_mode])
    if truncate is not None and truncate < 0:
        raise bad_request(["not_integer", truncate])
    if not count:
        return Listing((), sort=(), is_paged=False)
    check_memory(call, truncate)
    with call.on_channel(queue=True):
        getting = Getting(call.broker, call.actor, vhost, queue, cast("AckMode", ack_mode))
    found: list[dict[str, Any]] = []
    octets = 0
    try:
        while len(found) != count and octets < MOST_OCTETS:
            try:
                with call.on_channel(queue=True):
                    got = getting.fetch()
            except NotYet as wait:
                yield signal(wait.subscribe)
                continue
            if got is None:
                break
            found.append((yield from _shown(got, truncate, is_base64=encoding == "base64")))
            octets += len(got.message.content)
            yield None
    finally:
        getting.finish()
    return Listing(found, sort=(), is_paged=False, octets=octets)


def check_memory(call: Call, octets: int | None) -> None:
    """Raise ApiError if bodies of so many bytes (None for all) are wanted, and memory is short."""
    if octets != 0 and "memory" in call.broker.alarm:
        raise ApiError(
            503,
            "service_unavailable",
            "bodies of messages are not read while the memory alarm is raised; truncate=0 shows messages without them",
        )


def _shown(got: Got, truncate: int | None, *, is_base64: bool) -> Generator[None, None, dict[str, Any]]:
    view = view_of(got.message, octets=0)
    size = view.size if truncate is None else min(truncate, view.size)
    parts = partial(MessageFacts(got.message).parts, size)
    payload, encoding = yield from text_of(parts, size, is_base64=is_base64)
    return {
        "payload_bytes": view.size,
        "redelivered": got.redelivered,
        "exchange": json_text(view.exchange),
        "routing_key": json_text(view.routing_key),
        "message_count": got.left,
        "properties": properties_of(view) or [],
        "payload": payload,
        "payload_encoding": encoding,
    }


def is_base64_asked(query: Values) -> bool:
    """Return whether a query asks for all bodies in base64, not only for those that are no UTF-8."""
    encoding = query.text("encoding", "auto")
    if encoding not in {"auto", "base64"}:
        raise bad_request("encoding must be auto or base64")
    return encoding == "base64"


def content_of(view: MessageView, *, is_base64: bool) -> Generator[None, None, dict[str, Any]]:
    """Return the properties of a message and its body, as far as the view has it, as the API shows them, in steps."""
    payload, encoding = yield from text_of(lambda: (view.body,), len(view.body), is_base64=is_base64)
    return {
        "properties": properties_of(view),
        "payload_bytes": view.size,
        "payload": payload,
        "payload_encoding": encoding,
        "truncated": len(view.body) < view.size,
    }


def properties_of(view: MessageView) -> dict[str, Any]:
    """Return the properties of a message with its headers, as JSON has them."""
    properties = {name: json_text(value) if isinstance(value, str) else value
                  for name, value in view.properties.items()}  # fmt: skip
    if view.headers:
        properties["headers"] = view.headers
    return properties


# -- messages that stay in their queue --------------------------------------------------------------------------------


@ROUTES.get(
    "leveret/queues/{vhost}/{queue}/messages",
    scope=Scope.CLIENT,
    query=(
        Key("count", "integer", doc="maximum number for each state, 1 to 1000; 10 by default"),
        Key("from", doc="`head`, or `tail` to begin with the newest"),
        Key("where", doc="a [condition](filters.md) that they meet"),
        Key("state", doc="`ready`, `unacked`, `held` or `delayed`; all of them by default"),
        Key("after", doc="`next` of the answer before, to go on with a search"),
        *BODY_KEYS,
    ),
    work=Work.LONG,
    is_audited=True,
)
def peek(call: Call, vhost: str, queue: str) -> Steps:
    """The `messages` of a queue, without consuming them: ready, unacked, held and delayed ones. Needs the
    permission to read the queue. One request searches some 100,000 messages, and returns some 16 MiB,
    at most: `next` is null at the end.
    """
    query = call.query
    end = query.text("from", "head")
    if end not in {"head", "tail"}:
        raise bad_request("from must be head or tail")
    state = query.text("state")
    if state and state not in STATES:
        raise bad_request(f"state must be one of {', '.join(STATES)}")
    is_base64 = is_base64_asked(query)
    wanted = Wanted(
        query.number("count", SOME.most),
        end == "tail",
        query.text("where"),
        query.number("truncate", BODY_OCTETS),
        states=tuple(each for each in STATES if state in {"", each}),
        after=query.text("after"),
        effort=EFFORT,
    )
    check_memory(call, wanted.octets)
    with naming_the_missing():
        found = yield from call.administration.messages.peek(call.actor, vhost, queue, wanted)
    rows: list[dict[str, Any]] = []
    for view in found.messages:
        rows.append((yield from shown(view, is_base64=is_base64)))
        yield None
    return Item({
        "messages": rows,
        "searched": found.searched,
        "next": found.following or None,
        "complete": found.is_complete,
    })  # fmt: skip


def shown(view: MessageView, *, is_base64: bool) -> Generator[None, None, dict[str, Any]]:
    """Return a message as the API shows it, in steps."""
    content = yield from content_of(view, is_base64=is_base64)
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
        **content,
    }


# -- messages as they are published -----------------------------------------------------------------------------------


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
def tail(call: Call, vhost: str, exchange: str) -> Answer:
    """Messages as they are published to an exchange, until the reader leaves: lines of JSON, of which
    empty ones mean nothing. `lost` is a number of messages that a slow reader has missed, `end` a
    reason why there are no more. `due` is the time until which a queue holds the message. Dead letters, and
    messages from other exchanges, are shown, too; publishers do not wait.
    """
    query = call.query
    is_base64 = is_base64_asked(query)
    wish = Wish(
        query.text("pattern", EVERYTHING),
        query.text("where"),
        query.number_or_none("count"),
        query.number("truncate", BODY_OCTETS),
    )
    with naming_the_missing():
        follower = call.administration.tailing.start(call.actor, vhost, exchange_name(exchange), wish)
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
            yield from encoded_pieces((yield from _published(line.published, line.view, is_base64=is_base64)))
            yield b"\n"
        elif line.lost:
            yield encoded({"lost": line.lost}) + b"\n"
        elif line.end:
            yield encoded({"end": line.end}) + b"\n"
        else:
            yield b""


def _published(
    published: Published, view: MessageView, *, is_base64: bool
) -> Generator[None, None, dict[str, Any]]:
    content = yield from content_of(view, is_base64=is_base64)
    return {
        "time": published.time,
        "exchange": json_text(view.exchange),
        "routing_key": json_text(view.routing_key),
        "routed_queues": [json_text(name) for name in view.queues],
        "due": view.due,
        "user": json_text(published.user) or None,
        "connection": published.connection or None,
        "channel": published.channel or None,
        **content,
    }


# -- explanations of queues, publishes and messages -------------------------------------------------------------------


EXPLANATION_ROUTES = Routes("explanations")


@EXPLANATION_ROUTES.get("leveret/explain/queue/{vhost}/{queue}", scope=Scope.VISIBLE)
def explain_queue(call: Call, vhost: str, queue: str) -> Steps:
    """The settings in effect of a queue, each with where it comes from, its policies, and what looks
    wrong; its open `promises` if it confirms on acknowledgement; and the `holders` of unacknowledged
    messages, with the seconds for which they have had the oldest.
    """
    with naming_the_missing():
        found = yield from call.administration.explaining.queue(call.actor, vhost, queue)
    return Item(found)


@EXPLANATION_ROUTES.post(
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
            call.actor, vhost, exchange_name(exchange), body.text("routing_key"), body.table("headers")
        )
    return Item(found)


@EXPLANATION_ROUTES.get(
    "leveret/explain/message/{vhost}/{queue}/{number}",
    scope=Scope.CLIENT,
    query=(Key("state", doc="`ready` (default), `unacked`, `held` or `delayed`"),),
)
def explain_message(call: Call, vhost: str, queue: str) -> Steps:
    """Why a message is in a queue: how it came, what it waits for, what will happen to it. Needs the
    permission to read the queue.
    """
    state = call.query.text("state", "ready")
    if state not in STATES:
        raise bad_request(f"state must be one of {', '.join(STATES)}")
    with naming_the_missing():
        at = call.names.number("number", 0)
        found: dict[str, Any] = yield from call.administration.explaining.message(
            call.actor, vhost, queue, at, state
        )
    message = yield from shown(found["message"], is_base64=False)
    return Item({**found, "message": message})
