"""Assertions about what was published and acknowledged; each raises AssertionError with what there was instead."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from leveret.broker.administration.messages import MessageView
from leveret.broker.embedded.errors import NotRecordedError
from leveret.broker.embedded.recording import MOST_MESSAGES, MOST_OCTETS, Record

SHOWN_MESSAGES: Final = 5
"""Messages in the text of an error, the latest."""
_SHOWN_OCTETS: Final = 200


def check_published(
    exchange: str,
    record: Record,
    *,
    body: bytes | str | None = None,
    routing_key: str | None = None,
    headers: Mapping[str, Any] | None = None,
    times: int | None = None,
) -> None:
    """Check what was published to an exchange, as `AsyncVHost.assert_published`."""
    __tracebackhide__ = True
    messages = list(record.messages)
    wanted = body.encode() if isinstance(body, str) else body
    found = sum(
        wanted in {None, message.body}
        and routing_key in {None, message.routing_key}
        and (headers is None or all(_has(message, name, value) for name, value in headers.items()))
        for message in messages
    )
    if times is None and found:
        return
    if times is None or found <= times:
        _check_complete(exchange, record)
    if found == times:
        return
    conditions = {"body": body, "routing_key": routing_key, "headers": headers}
    matching = ", ".join(f"{name}={value!r}" for name, value in conditions.items() if value is not None)
    count = "no message" if not found else f"{found} message{'s' if found > 1 else ''}"
    expected = "" if times is None else f", expected {times}"
    text = f"{count} with {matching}" if matching else count
    raise AssertionError(f"exchange {exchange!r}: {text} published{expected}{listed(messages)}")


def check_acked(queue: str, acked: int, expected: int) -> None:
    """Check the number of acknowledged messages of a queue."""
    __tracebackhide__ = True
    if acked != expected:
        raise AssertionError(f"queue {queue!r}: {acked} messages acknowledged, expected {expected}")


def check_no_unroutable(recorded: Sequence[tuple[str, Record]]) -> None:
    """Check that every recorded message has reached a queue, given exchanges with their records."""
    __tracebackhide__ = True
    lost = [
        message
        for exchange, record in recorded
        for message in record.messages
        if message.exchange == exchange and not message.queues
    ]
    if lost:
        raise AssertionError(f"{len(lost)} messages have reached no queue{listed(lost)}")
    for exchange, record in recorded:
        _check_complete(exchange, record)


def _check_complete(exchange: str, record: Record) -> None:
    __tracebackhide__ = True
    if record.forgotten:
        raise NotRecordedError(
            f"exchange {exchange!r}: the first {record.forgotten} messages are no longer recorded, because a broker "
            f"records at most {MOST_MESSAGES} messages, and {MOST_OCTETS >> 20} MiB of bodies; "
            "call forget_published() in between"
        )


def listed(messages: Sequence[MessageView]) -> str:
    """Return the last messages, a line each, for the end of a text; empty if there are none."""
    left = len(messages) - SHOWN_MESSAGES
    more = [f"... {left} more"] if left > 0 else []
    return "".join(f"\n    {line}" for line in [*more, *map(shown, messages[-SHOWN_MESSAGES:])])


def shown(message: MessageView) -> str:
    """Return one line about a message."""
    body = message.body if len(message.body) <= _SHOWN_OCTETS else message.body[:_SHOWN_OCTETS] + b"..."
    state = f"{message.state}{', redelivered' if message.redelivered else ''}"
    headers = f" {message.headers}" if message.headers else ""
    return f"{state}: {message.exchange!r} -> {message.routing_key!r} {body!r}{headers}"


def _has(message: MessageView, name: str, value: Any) -> bool:
    return name in message.headers and bool(message.headers[name] == value)
