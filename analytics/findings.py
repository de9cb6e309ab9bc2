"""Findings of the overview in words. Pure: a row of the table `findings` in, a sentence out."""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from leveret.analytics.job import number_of
from leveret.analytics.scope import written

CRITICAL: Final = "critical"
WARNING: Final = "warning"
GOOD: Final = "good"
IDLE: Final = "idle"
LEVELS: Final[Mapping[str, str]] = {  # names of levels on pages, from the worst to the best
    CRITICAL: "Critical",
    WARNING: "Warning",
    GOOD: "OK",
    IDLE: "Idle",
}
REASONS: Final[Mapping[str, str]] = {  # reasons of dead letters in words, by counter
    "rejected": "rejected by consumers",
    "expired": "expired",
    "dropped": "over the limit of the queue",
}
_MINUTE: Final = 60


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """A finding in words."""

    kind: str  # one of `KINDS`
    level: str  # one of `LEVELS`
    node: str  # the node it is about
    queue: tuple[str, str] | None  # the queue as (virtual host, name), None if it is about something else
    title: str  # the finding itself
    text: str  # when, and how much
    also: frozenset[str] = frozenset()  # names of queues of the virtual host that it covers
    vhost: str = ""  # the virtual host of an exchange; empty otherwise

    @property
    def sentence(self) -> str:
        """Return all of it."""
        return f"{self.title}: {self.text}"


def words(row: Mapping[str, Any]) -> Finding:
    """Return a row of the table `findings` in words."""
    title, text = KINDS[row["kind"]](row)
    is_queue = row["queue"] is not None and row["kind"] not in _OF_EXCHANGES
    return Finding(
        kind=row["kind"],
        level=row["level"],
        node=row["node"],
        queue=(row["vhost"], row["queue"]) if is_queue else None,
        title=title,
        text=text,
        also=frozenset(json.loads(row["detail"])) if row["kind"] == "fan_out" else frozenset(),
        vhost=row["vhost"] or "",
    )


def listed(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings for users: of queues that an exchange fills in vain, only the exchange."""
    each = list(findings)
    covered = {(one.node, one.vhost, name) for one in each for name in one.also}
    return [
        one for one in each if not (one.kind == "unread" and one.queue and (one.node, *one.queue) in covered)
    ]


def duration(seconds: float) -> str:
    """Return a duration in words: `12 µs`, `1.3 ms`, `45 s`, `12 min`, `3.5 h`."""
    if 0 < seconds < 0.001:  # noqa: PLR2004 - a millisecond
        return f"{seconds * 1e6:.3g} µs"
    if 0 < seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if 1 < seconds < 10:  # noqa: PLR2004 - whole seconds would be too coarse
        return f"{seconds:.2g} s"
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < 2 * _MINUTE * _MINUTE:
        return f"{seconds / _MINUTE:.0f} min"
    return f"{seconds / _MINUTE / _MINUTE:.1f} h"


def _name(row: Mapping[str, Any]) -> str:
    return row["queue"] if row["vhost"] in {"/", None} else f"{row['queue']} ({row['vhost']})"


def _number(value: float | None) -> str:
    return f"{round(value or 0):,}"


def _messages(value: float | None) -> str:
    return number_of(round(value or 0), "message")


def _when(row: Mapping[str, Any]) -> str:
    if row["until_ms"] is None:
        return f"since {written(row['from_ms'])}"
    return f"from {written(row['from_ms'])} to {written(row['until_ms'])}"


def _promised(row: Mapping[str, Any]) -> str:
    """Return how many publishers wait for a consumer, in a mode that confirms what is consumed; empty for none."""
    return (
        f"; {number_of(round(row['went']), 'publish waits', 'publishes wait')} for it" if row["went"] else ""
    )


def _unread(row: Mapping[str, Any]) -> tuple[str, str]:
    waiting = f"{_number(row['amount'])} waiting{_promised(row)}"
    return (
        f"Nobody reads queue {_name(row)}",
        f"it had no consumer at any time; {_messages(row['came'])} arrived, {waiting}.",
    )


def _unserved(row: Mapping[str, Any]) -> tuple[str, str]:
    came = f"{_number(row['came'])} came since{_promised(row)}"
    return (
        f"Publishers wait for queue {_name(row)}, which has lost its consumers"
        if row["went"]
        else f"Queue {_name(row)} has lost its consumers",
        f"no worker {_when(row)}; {_messages(row['amount'])} waiting, {came}.",
    )


def _stalled(row: Mapping[str, Any]) -> tuple[str, str]:
    unacked = f"{_number(row['came'])} unacked{_promised(row)}"
    return (
        f"The consumers of queue {_name(row)} are stuck",
        f"nothing was settled {_when(row)}; {_messages(row['amount'])} ready, {unacked}.",
    )


def _repeated(row: Mapping[str, Any]) -> tuple[str, str]:
    title = f"Queue {_name(row)} delivers a message again and again"
    text = (
        f"{_number(row['amount'])} redeliveries among {_number(row['came'])} deliveries {_when(row)}, "
        f"{_number(row['went'])} put back: probably a poison message, which no consumer can process."
    )
    return title, text


def _behind(row: Mapping[str, Any]) -> tuple[str, str]:
    after = "" if row["until_ms"] is None else " It is recovering."
    title = f"The consumers of queue {_name(row)} are too slow"
    text = (
        f"{_when(row)} {_messages(row['came'])} came and {_number(row['went'])} were delivered; "
        f"the backlog reached {_number(row['amount'])}.{after}"
    )
    return title, text


def _thrash(row: Mapping[str, Any]) -> tuple[str, str]:
    text = (
        f"{_number(row['amount'])} read back for {_number(row['came'])} delivered {_when(row)}: memory is short, and "
        "what was read is paged out before it is delivered."
    )
    return f"Queue {_name(row)} reads its messages from disk again and again", text


def _dead_letters(row: Mapping[str, Any]) -> tuple[str, str]:
    counts = json.loads(row["detail"])
    named = [f"{counts[reason]:,} {word}" for reason, word in REASONS.items() if counts[reason]]
    if (others := round(row["amount"]) - sum(counts.values())) > 0:
        named.append(f"{others:,} delivered too often")
    return (
        f"Queue {_name(row)} dead-letters messages",
        f"{_messages(row['amount'])} {_when(row)}, among {_number(row['came'])} deliveries: {', '.join(named)}.",
    )


def _fan_out(row: Mapping[str, Any]) -> tuple[str, str]:
    names = json.loads(row["detail"])
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")  # noqa: PLR2004
    title = f"Nobody reads what exchange {_name(row)} fans out"
    text = (
        f"{number_of(len(names), 'queue')} had no consumer at any time ({shown}); "
        f"{_messages(row['came'])} published, {_number(row['amount'])} copies waiting."
    )
    return title, text


def _lost(row: Mapping[str, Any]) -> tuple[str, str]:
    return (
        f"Exchange {_name(row) or '(default)'} drops messages",
        f"{_number(row['amount'])} of {_messages(row['came'])} reached no queue, and were not returned.",
    )


def _restart(row: Mapping[str, Any]) -> tuple[str, str]:
    away = f"{duration(row['amount'] or 0)} until it was back at {written(row['until_ms'])}"
    if row["detail"] is None:
        return (
            f"Node {row['node']} ended without being stopped",
            f"a crash or a kill at {written(row['from_ms'])}; {away}.",
        )
    return (
        f"Node {row['node']} was restarted",
        f"stopped at {written(row['from_ms'])} ({row['detail']}); {away}.",
    )


def _alarm(row: Mapping[str, Any]) -> tuple[str, str]:
    lasted = "" if row["amount"] is None else f", for {duration(row['amount'])}"
    return (
        f"Node {row['node']} raised the {row['detail']} alarm",
        f"publishers were blocked {_when(row)}{lasted}.",
    )


KINDS: Final[Mapping[str, Callable[[Mapping[str, Any]], tuple[str, str]]]] = {
    "unserved": _unserved,
    "stalled": _stalled,
    "repeated": _repeated,
    "behind": _behind,
    "thrash": _thrash,
    "dead_letters": _dead_letters,
    "alarm": _alarm,
    "restart": _restart,
    "fan_out": _fan_out,
    "unread": _unread,
    "lost": _lost,
}
"""Title and text of each kind of finding."""
_OF_EXCHANGES: Final = frozenset({"fan_out", "lost"})
