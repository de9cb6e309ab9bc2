"""Publish limits: how long a connection that publishes too fast is not read (pure).

Theory. Each limit is a token bucket that holds one second's worth. It is kept as one number: the time at which all that
was taken so far is paid for, at the rate of the limit (the generic cell rate algorithm). What has been read is always
processed, also if that exceeds the limit: then the connection is not read until that time. So nothing is lost or
refused, and in any time no more passes than the limit allows for it, plus a second's worth and one read.

The buckets of a user and of a virtual host are shared by all their connections. Each of these waits until what it has
taken is paid for, so they take turns in the order in which they have published.

A connection with a limit is read in pieces of about a tenth of a second's worth, so that its pauses are short: acks
that it sends between its publishes are delayed by no more than the publishes before them.
"""

from collections.abc import Mapping
from math import inf
from typing import Final, NamedTuple

from leveret.broker.auth.users import UserLimits, VHostLimits

BURST_SECONDS: Final = 1.0  # time whose worth a bucket holds
STEP_SECONDS: Final = 0.1  # time whose worth is read at once
LOOK_SECONDS: Final = 1.0  # longest pause after which the limits are looked at again: they may have changed
LEAST_READ: Final = 512  # least octets of a read
FIRST_READ: Final = 4096  # octets of a read before the size of messages is known
TELL_SECONDS: Final = 2.0
"""Time for which a connection must have been slowed down without a break before its client is notified."""
BREAK_SECONDS: Final = 0.25  # time without a pause that is a break
TELL_AGAIN_SECONDS: Final = 10.0  # least time between two `connection.blocked` for a limit

MOST_BUCKETS: Final = 1024  # buckets above which unused ones are forgotten


class PublishLimits(NamedTuple):
    """Limits per second of messages, and of bytes as received, with frames; None for no limit."""

    rate: int | None = None
    octets: int | None = None

    def __bool__(self) -> bool:
        return self.rate is not None or self.octets is not None


def publish_limits(limits: UserLimits | VHostLimits) -> PublishLimits:
    """Return the publish limits among those of a user or a vhost; there, a negative number is no limit."""
    rate, octets = limits.max_publish_rate, limits.max_publish_bytes
    return PublishLimits(
        rate if rate is not None and rate > 0 else None, octets if octets is not None and octets > 0 else None
    )


class Bucket:
    """A token bucket, which is full at first, with `rate` tokens per second."""

    __slots__ = ("paid", "rate")

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.paid = -inf  # time at which all tokens taken so far are paid for

    def take(self, count: float, now: float) -> float:
        """Take tokens, also more than there are; returns the time at which they are paid for."""
        self.paid = max(self.paid, now - BURST_SECONDS) + count / self.rate
        return self.paid

    def change(self, rate: float, now: float) -> None:
        """Change the rate: tokens that are not paid for yet are paid for at the new one."""
        if self.paid > now:
            self.paid = now + (self.paid - now) * self.rate / rate
        self.rate = rate


Pair = tuple[Bucket | None, Bucket | None]  # the buckets for messages and for octets; None for no limit


class Buckets:
    """The buckets of users and virtual hosts, which their connections share."""

    __slots__ = ("_buckets",)

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, str, str], Bucket] = {}

    def of(self, kind: str, name: str, limits: PublishLimits, now: float) -> Pair:
        """Return the buckets for messages and for octets of a user or a virtual host; None for no limit."""
        return self._of(kind, name, "rate", limits.rate, now), self._of(
            kind, name, "octets", limits.octets, now
        )

    def _of(self, kind: str, name: str, unit: str, rate: int | None, now: float) -> Bucket | None:
        key = (kind, name, unit)
        if rate is None:
            self._buckets.pop(key, None)
            return None
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= MOST_BUCKETS:  # those of deleted users, too
                self._buckets = {each: full for each, full in self._buckets.items() if full.paid > now}
            bucket = self._buckets[key] = Bucket(rate)
        elif bucket.rate != rate:
            bucket.change(rate, now)
        return bucket


class PublishPace:
    """The pace of one connection, which has published and received so much so far."""

    def __init__(self, published: int, received: int) -> None:
        self._published = published
        self._received = received
        self._own = Buckets()
        self._messages: list[Bucket] = []
        self._octets: list[Bucket] = []
        self._size = 0.0
        self._unfinished = 0  # octets since the last message, which may be those of a large one
        self._since = self._ended = -inf
        self._told_at = -inf
        self.names: tuple[str, ...] = ()  # descriptions of the limits that apply, for the client
        self.until = -inf  # time at which the connection is read again
        self.is_told = False  # True while the client knows of a limit by `connection.blocked`

    def limit(self, own: PublishLimits, shared: Mapping[str, Pair], now: float) -> None:
        """Set the limits of the connection itself, and the buckets that it shares, also while it waits."""
        pairs = {"the connection": self._own.of("", "", own, now), **shared}
        self._messages = [rate for rate, _ in pairs.values() if rate is not None]
        self._octets = [octets for _, octets in pairs.values() if octets is not None]
        self.names = tuple([name for name, pair in pairs.items() if pair != (None, None)])
        if self.until > now:
            self.until = min(
                self.until, max([now, *[each.paid for each in (*self._messages, *self._octets)]])
            )

    def read(self, published: int, received: int, now: float) -> float:
        """Note all that was published and received so far; returns the seconds for which nothing may be read."""
        messages, octets = published - self._published, received - self._received
        self._published, self._received = published, received
        self._unfinished += octets
        if messages:
            size = self._unfinished / messages
            self._size = size if not self._size else (3 * self._size + size) / 4
            self._unfinished = 0
        self.until = now
        for buckets, count in ((self._messages, messages), (self._octets, octets)):
            for bucket in buckets:
                self.until = max(self.until, bucket.take(count, now))
        if self.until > now:
            if now - self._ended > BREAK_SECONDS:
                self._since = now
            self._ended = self.until
        return self.until - now

    def read_limit(self, largest: int) -> int:
        """Return the octets to read at once, at most `largest`."""
        most = float(largest)
        for bucket in self._messages:
            most = min(most, bucket.rate * STEP_SECONDS * self._size if self._size else FIRST_READ)
        for bucket in self._octets:
            most = min(most, bucket.rate * STEP_SECONDS)
        return max(min(LEAST_READ, largest), int(most))

    def must_tell(self, now: float) -> bool:
        """Return whether to notify the client now that it is slowed down; if so, it counts as notified."""
        if self.is_told or now - self._since < TELL_SECONDS or now - self._told_at < TELL_AGAIN_SECONDS:
            return False
        self._told_at, self.is_told = now, True
        return True

    def has_ended(self, now: float) -> bool:
        """Return whether there was a break; if so, the notified client is to be notified of that."""
        if now - self._ended <= BREAK_SECONDS:
            return False
        self.is_told = False
        return True
