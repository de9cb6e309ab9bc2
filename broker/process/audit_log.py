"""Audit log: one JSON object per line for each login and each change, without secrets (pure).

An entry tells what happened, who did it, from which address, to what, and how it ended. Entries are encoded when they
are recorded, and wait in a bounded buffer until a thread writes them (`broker.process.audit_writer`): recording never
waits for a disk. What does not fit is dropped and counted, and the next entry that is written tells how many were lost.

Events that a client can cause again and again, such as requests with the same login, are recorded at once and then at
most once a minute for each actor, address and object; the next entry tells how many were left out (`repeated`).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from leveret.broker.process.logs import JSON_ESCAPES

MOST_ENTRIES: Final = 8192  # entries that may wait to be written; each has at most 32 KiB, most less than one
TEXT_LIMIT: Final = 512  # characters of one text of an entry; longer ones are cut
DETAIL_LIMIT: Final = 2048  # octets of the detail of an entry; a larger one is left out
STATE_LIMIT: Final = 2048  # octets of the state before a change, and after it; larger ones are left out
MOST_VALUES: Final = 1024  # at any depth of one value of an entry; one with more is left out unread
LEFT_OUT: Final = {"left_out": "too large"}  # stands for what an entry has no room for
REPEAT_SECONDS: Final = 60.0  # time in which equal events are recorded only once
REMEMBERED: Final = 4096  # events whose repetitions are counted; the oldest are written and forgotten
LOSS: Final = "audit.entries_lost"  # the event that tells how many entries were dropped

_SECRET: Final = ("pass", "secret", "token", "hash", "uri", "credential")
"""Parts of the names of values that are never recorded."""
MASK: Final = "***"  # stands for a secret
SHORTEST: Final = 3  # characters of the shortest secret looked for in texts: many words have shorter ones


class AuditLog:
    """The entries that were recorded and not yet written.

    Args:
        clock: returns milliseconds since the epoch.
        is_on: false to record nothing.
        most: entries that may wait.
    """

    def __init__(self, clock: Callable[[], int], *, is_on: bool = True, most: int = MOST_ENTRIES) -> None:
        # true if entries are recorded; callers that have to collect details look at it first
        self.is_on = is_on
        # is_failing: true while entries cannot be written
        # is_required: true if nothing may be changed while entries cannot be written
        self.is_failing = self.is_required = False
        self.recorded = 0  # entries so far, including those that were lost
        self.wake: Callable[[], object] = lambda: None  # called when there is something to write
        self._clock = clock
        self._most = most
        self._buffer: deque[bytes] = deque()
        # Each counter has one thread that changes it: the one that records, or the one that writes.
        self._dropped = self._unwritten = self._reported = 0
        self._seen: dict[tuple[str, ...], _Repetition] = {}

    def record(
        self,
        event: str,
        *,
        outcome: str = "ok",
        actor: str = "",
        peer: str = "",
        vhost: str = "",
        name: str = "",
        reason: str = "",
        before: Any = None,
        after: Any = None,
        **detail: Any,
    ) -> None:
        """Record an event, such as `login` or `users.put`; its outcome is `ok`, `refused` or `failed`.

        The actor '' is the operator on the host, the peer '' the broker's own host; `reason` is that of a refusal,
        `before` and `after` are states of the object (`bounded`), None for none. Of further values (`detail`) those are
        masked whose names may be those of secrets.
        """
        if not self.is_on:
            return
        entry: dict[str, Any] = {
            "time": _time(self._clock()),
            "event": event,
            "outcome": outcome,
            "actor": _text(actor),
            "peer": _text(peer),
        }
        entry |= {
            key: _text(value)
            for key, value in (("vhost", vhost), ("object", name), ("reason", reason))
            if value
        }
        if shown := {
            key: bounded(key, value) for key, value in detail.items() if value not in (None, "", [], {})
        }:
            entry["detail"] = _limited(shown, DETAIL_LIMIT)
        for key, state in (("before", before), ("after", after)):
            if state is not None:
                entry[key] = _limited(bounded("", state), STATE_LIMIT)
        self._add(_encoded(entry))

    def record_repeatable(self, event: str, now: float, *, outcome: str = "ok", **facts: str) -> None:
        """Record an event, or count it if it equals one of the last minute; `now` is seconds of a monotonic clock."""
        if not self.is_on:
            return
        key = (event, outcome, *(f"{name}={value}" for name, value in facts.items()))
        seen = self._seen.get(key)
        if seen is not None and now < seen.until:
            seen.count += 1
            return
        if seen is None and len(self._seen) >= REMEMBERED:
            self._report(self._seen.pop(next(iter(self._seen))))
        self._seen.pop(key, None)
        self._seen[key] = _Repetition(event, outcome, facts, now + REPEAT_SECONDS)
        self.record(event, outcome=outcome, **facts, repeated=seen.count if seen is not None else None)

    def report_repeated(self, now: float) -> None:
        """Record how often events were repeated whose minute is over; call about once a second."""
        while self._seen:
            key, first = next(iter(self._seen.items()))
            if now < first.until:  # in the order of their times
                break
            del self._seen[key]
            self._report(first)

    def _report(self, seen: "_Repetition") -> None:
        if seen.count:
            self.record(seen.event, outcome=seen.outcome, **seen.facts, repeated=seen.count)

    @property
    def lost(self) -> int:
        """Number of entries that were dropped so far."""
        return self._dropped + self._unwritten

    def _add(self, line: bytes) -> None:
        self.recorded += 1
        if len(self._buffer) >= self._most:
            self._dropped += 1
            return
        self._buffer.append(line)
        self.wake()

    def take(self) -> list[bytes]:
        """Take the entries that wait, each a line without its end; in the thread that writes."""
        buffer = self._buffer
        lines = [buffer.popleft() for _ in range(len(buffer))]
        count = self.lost - self._reported
        if count:
            self._reported += count
            loss = {"time": _time(self._clock()), "event": LOSS, "outcome": "failed", "actor": "", "peer": ""}
            lines.append(_encoded({**loss, "detail": {"count": count}}))
        return lines

    def put_back(self, lines: list[bytes]) -> None:
        """Return entries that could not be written, before those recorded since; in the thread that writes."""
        room = max(0, self._most - len(self._buffer))
        kept = lines[:room]
        self._buffer.extendleft(reversed(kept))
        self._unwritten += len(lines) - len(kept)

    def __len__(self) -> int:
        return len(self._buffer)


@dataclass(slots=True)
class _Repetition:
    """An event that was recorded, and how often it was repeated since."""

    event: str
    outcome: str
    facts: Mapping[str, str]
    until: float
    count: int = 0


def bounded(name: str, value: Any) -> Any:
    """Return a value as it may be recorded (`masked`), or `LEFT_OUT` if it has too many parts or levels."""
    if not _is_small(value):
        return LEFT_OUT
    try:
        return masked(name, value)
    except RecursionError:
        return LEFT_OUT


def _is_small(value: Any) -> bool:
    """Return whether a value has at most `MOST_VALUES` parts; looks at no more than these."""
    waiting, left = [value], MOST_VALUES
    while waiting:
        each = waiting.pop()
        if isinstance(each, Mapping | list | tuple):
            left -= len(each)
            if left < 0:
                return False
            waiting.extend(each.values() if isinstance(each, Mapping) else each)
    return True


def masked(name: str, value: Any) -> Any:
    """Return a value of JSON as it may be recorded: without secrets, at any depth; its name tells whether it is one."""
    if any(part in name.lower() for part in _SECRET):
        return MASK
    if isinstance(value, Mapping):
        return {_text(str(key)): masked(str(key), each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [masked("", each) for each in value]
    if isinstance(value, str):
        return MASK if "://" in value and "@" in value else _text(value)
    return value if isinstance(value, bool | int | float | None) else _text(str(value))


def hidden(name: str, value: Any, *, is_secret: bool = False) -> Iterator[str]:
    """Return the texts in a value of JSON that `masked` does not show, and the logins in those that are URIs.

    The name tells whether the value is secret; `is_secret`: it is a part of a secret value.
    """
    is_secret = is_secret or any(part in name.lower() for part in _SECRET)
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from hidden(str(key), each, is_secret=is_secret)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from hidden("", each, is_secret=is_secret)
    elif isinstance(value, str) and "://" in value and "@" in value:
        login = value.partition("://")[2].rpartition("@")[0]
        yield from (value, login, login.partition(":")[2])
    elif is_secret and isinstance(value, str | int | float):
        yield str(value)


def without(text: str, secrets: Iterable[str]) -> str:
    """Return a text with `MASK` instead of the secrets that it quotes, except those that are too short."""
    for secret in sorted(set(secrets), key=len, reverse=True):
        if len(secret) >= SHORTEST:
            text = text.replace(secret, MASK)
    return text


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


def _text(text: str) -> str:
    cut = text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]}..."
    return cut.encode("utf-8", "backslashreplace").decode()


def _limited(value: Any, octets: int) -> Any:
    return value if len(msgspec.json.encode(value)) <= octets else LEFT_OUT


def _encoded(entry: dict[str, Any]) -> bytes:
    return msgspec.json.encode(entry).decode().translate(JSON_ESCAPES).encode()
