"""Retries of dead letters: back to the queue in which they died, or elsewhere, with a count.

A dead letter that is retried to its origin goes straight into that queue, through no exchange, so that no other queue
gets a copy; exchange and routing key are those that it had there. The origin is that of a death which this broker has
recorded: what a client writes into `x-death` never decides where a message goes under an operator's rights. The header
`x-leveret-retries` counts its retries.
The others, `x-death` among them, stay as they are: the next death is added to them, or replaces them where it does so
with those of any publish (`compatibility.claimed_deaths`).
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from leveret.broker.amqp.errors import MalformedProperties
from leveret.broker.amqp.fastpath import join_address
from leveret.broker.amqp.properties import Properties
from leveret.broker.amqp.tables import plain
from leveret.broker.queue.queue import Queue
from leveret.broker.transfer.destinations import FORBIDDEN, Destination, Resolved, with_field
from leveret.storage.message import Message

HEADER = "x-leveret-retries"
_END = 253_402_300_800  # seconds from 1970 to the year 10000, which no calendar here has
_MOST_COUNTED = (1 << 63) - 1  # greatest number that a header can say
MOST_RETRIES = 5  # default of the number of retries after which a message stays
NO_DEATH, GONE, USED_UP = "no x-death", "origin does not exist", "retries used up"
CLAIMED = "x-death was written by a client"  # causes for which a message stays


class Death(NamedTuple):
    """A death, as `x-death` tells it; the first routing key and the time (seconds since 1970) may be unknown."""

    queue: str
    reason: str
    exchange: str
    routing_key: str | None
    time: int | None


def headers_of(message: Message) -> dict[str, Any]:
    """Return the headers of a message as plain values, without a limit of their number."""
    try:
        found = Properties(message.header, max_entries=sys.maxsize).headers
    except MalformedProperties:  # a publish with such properties is refused
        return {}
    headers: dict[str, Any] = plain(found or {})
    return headers


def retries_of(headers: Mapping[str, Any]) -> int:
    """Return the retries that headers tell of."""
    retries = headers.get(HEADER)
    return retries if isinstance(retries, int) and retries > 0 else 0


def death_of(headers: Mapping[str, Any], *, first: bool = False, recorded: int | None = None) -> Death | None:
    """Return the newest death, or the first one, that headers tell of; None if there is none.

    `recorded`: how many of the newest count, because the broker has written them; None for all.
    """
    entries = headers.get("x-death")
    counted = entries[:recorded] if isinstance(entries, list) else []
    deaths = [death for each in counted if (death := _death(each))]
    if not first or not deaths:
        return deaths[0] if deaths else None
    queue, reason = headers.get("x-first-death-queue"), headers.get("x-first-death-reason")
    matching = (death for death in deaths if death.queue == queue and death.reason == reason)
    return next(matching, None) or (
        Death(queue, "", str(headers.get("x-first-death-exchange", "")), None, None)
        if isinstance(queue, str) and recorded is None
        else deaths[-1]
    )


def _death(entry: Any) -> Death | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("queue"), str):
        return None
    keys = entry.get("routing-keys")
    key = keys[0] if isinstance(keys, list) and keys and isinstance(keys[0], str) else None
    return Death(
        entry["queue"], str(entry.get("reason", "")), str(entry.get("exchange", "")), key, time_of(entry)
    )


def time_of(death: Mapping[str, Any]) -> int | None:
    """Return the time of an entry of `x-death`, in seconds since 1970; None if it is none: clients may write one."""
    time = death.get("time")
    return time if type(time) is int and 0 <= time < _END else None  # a bool is an int, too


class Retry:
    """A destination that counts retries, and sends each message to its origin or to another destination.

    The origin is the queue of the newest death, or of the `first`; after `most` retries a message stays. `may_write`
    says whether the user may write to a queue; it raises NotYet if that has to be asked for first.
    """

    def __init__(
        self,
        find: Callable[[str], Queue | None],
        to: Destination | None = None,
        *,
        first: bool = False,
        most: int = MOST_RETRIES,
        may_write: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._find = find
        self._to = to
        self._first = first
        self._most = most
        self._may_write = may_write
        self._allowed: dict[str, bool] = {}

    def __str__(self) -> str:
        return "their origins" if self._to is None else str(self._to)

    def obstacle(self) -> str:
        """Return why nothing can be retried any more; '' if it can."""
        self._allowed.clear()
        return "" if self._to is None else self._to.obstacle()

    def resolve(self, message: Message) -> Resolved | str:
        """Return where a message goes, or why it stays."""
        headers = headers_of(message)
        count = retries_of(headers)
        death = death_of(headers, first=self._first)
        if death is None:
            return NO_DEATH
        if count >= self._most:
            return USED_UP
        if self._to is None:
            death = death_of(headers, first=self._first, recorded=message.deaths)
            return CLAIMED if death is None else self._origin(message, death, count + 1)
        found = self._to.resolve(message)
        if isinstance(found, str):
            return found
        return Resolved(counted(found.message, count + 1), found.queues)

    def _origin(self, message: Message, death: Death, count: int) -> Resolved | str:
        queue = self._find(death.queue)
        if queue is None:
            return GONE
        if death.queue not in self._allowed:
            self._allowed[death.queue] = self._may_write(death.queue)
        if not self._allowed[death.queue]:
            return FORBIDDEN
        address = message.address
        if death.routing_key is not None:
            address = join_address(death.exchange, death.routing_key)
        return Resolved(counted(Message(address, message.content, message.channel_id), count), (queue,))


def counted(message: Message, retries: int) -> Message:
    """Return a message with the number of its retries; all other headers stay octet for octet."""
    return with_field(message, HEADER, ("long", min(retries, _MOST_COUNTED)))
