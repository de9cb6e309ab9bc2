"""A message of a queue, as conditions see it; its properties are decoded when a condition asks for them."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from leveret.broker.amqp.errors import MalformedProperties
from leveret.broker.amqp.fastpath import split_address
from leveret.broker.amqp.properties import Properties
from leveret.broker.amqp.tables import plain
from leveret.storage.message import Message

_NONE: Mapping[str, int] = MappingProxyType({})
_FRAME_OCTETS = 8
"""Bytes of a frame beside its payload."""


class MessageFacts:
    """A message, as conditions see it. A filter asks only for what its condition names.

    Args:
        message: the message.
        redelivered: whether its next delivery will be marked as redelivered.
        held: seconds for which it has been in its queue at least; None if that is unknown.
        now: milliseconds since the epoch; 0 if the times of its deaths are not to be used.
        due: milliseconds since the epoch until which it is held or delayed; None if it is neither.
        counts: headers that a consumer will get beside its own (`broker.queue.delivery_limit.count_headers`).
    """

    __slots__ = ("_counts", "_due", "_headers", "_held", "_now", "_properties", "message", "redelivered")

    def __init__(
        self,
        message: Message,
        *,
        redelivered: bool = False,
        held: float | None = None,
        now: int = 0,
        due: int | None = None,
        counts: Mapping[str, int] = _NONE,
    ) -> None:
        self.message = message
        self.redelivered = redelivered
        self._held = held
        self._now = now
        self._due = due
        self._counts = counts
        self._properties: dict[str, Any] | None = None
        self._headers: dict[str, Any] = {}

    @property
    def properties(self) -> dict[str, Any]:
        """The properties that are set, by their AMQP names, without `headers`."""
        found = self._properties
        if found is None:
            try:
                found = Properties(self.message.header).present()
            except MalformedProperties:  # a publish with such properties is refused
                found = {}
            self._headers = plain(found.pop("headers", None) or {})  # type: ignore[arg-type]
            if self._counts:
                self._headers = {**self._headers, **self._counts}
            self._properties = found
        return found

    @property
    def headers(self) -> dict[str, Any]:
        """The headers as plain values."""
        if self._properties is None:
            _ = self.properties
        return self._headers

    @property
    def age(self) -> float | None:
        """Seconds since it came to its queue, at least; None if that is unknown.

        Of a dead letter that died once there, the time of its death is known also after a restart.
        """
        death = self.death if self._now else None
        time = None if death is None or death.get("count") != 1 else death.get("time")
        if not isinstance(time, int):
            return self._held
        return max(self._held or 0.0, self._now / 1000 - time, 0.0)

    @property
    def due_in(self) -> float | None:
        """Seconds until it can be delivered; None if it is not held or delayed."""
        return None if self._due is None else (self._due - self._now) / 1000

    @property
    def exchange(self) -> str:
        """The exchange that it was published to; '' for the default exchange."""
        return split_address(self.message.address)[0]

    @property
    def routing_key(self) -> str:
        """The routing key."""
        return split_address(self.message.address)[1]

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return self.message.body_size

    def beginning(self, octets: int) -> bytes:
        """Return the body up to a number of bytes."""
        return b"".join(self.parts(octets))

    def parts(self, octets: int | None = None) -> Iterator[memoryview]:
        """Yield the parts of the body, as its frames have them, up to a number of bytes; None for all."""
        content = memoryview(self.message.content)
        at, left = 0, self.size if octets is None else min(octets, self.size)
        while left > 0:
            length = int.from_bytes(content[at + 3 : at + 7], "big")
            if at:
                yield content[at + 7 : at + 7 + min(length, left)]
                left -= length
            at += length + _FRAME_OCTETS

    @property
    def deaths(self) -> list[dict[str, Any]]:
        """The entries of `x-death`, the latest first; empty if it was never dead-lettered."""
        deaths = self.headers.get("x-death")
        return [each for each in deaths if isinstance(each, dict)] if isinstance(deaths, list) else []

    @property
    def death(self) -> dict[str, Any] | None:
        """The newest entry of `x-death`; None if it was never dead-lettered."""
        deaths = self.deaths
        return deaths[0] if deaths else None
