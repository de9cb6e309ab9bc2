"""Findings of the overview in words. Pure: a row of the table `findings` in, a sentence out."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
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
    form = row["kind"]
    if form == "unserved" and row["went"]:
        form = "awaited"
    elif form == "restart" and row["detail"] is None:
        form = "crash"
    details = _details(row)
    # Taken apart before names are in it, which may have a colon.
    title, text = (part.format_map(details) for part in KINDS[form].split(": ", 1))
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


def _details(row: Mapping[str, Any]) -> dict[str, str]:
    """Return what the sentences of `KINDS` name."""
    amount, came, went = (round(row[name] or 0) for name in ("amount", "came", "went"))
    begun, ended = (None if row[name] is None else written(row[name]) for name in ("from_ms", "until_ms"))
    name = row["queue"] if row["vhost"] in {"/", None} else f"{row['queue']} ({row['vhost']})"
    found = {
        "name": name or "(default)",
        "node": row["node"],
        "detail": row["detail"],
        "begun": begun,
        "ended": ended,
        "amount": f"{amount:,}",
        "came": f"{came:,}",
        "went": f"{went:,}",
        "waiting": number_of(amount, "message"),
        "arrived": number_of(came, "message"),
        "when": f"since {begun}" if ended is None else f"from {begun} to {ended}",
        "away": duration(row["amount"] or 0),
        "lasted": "" if row["amount"] is None else f", for {duration(row['amount'])}",
        "recovering": "" if ended is None else " It is recovering.",
        # In a mode that confirms what is consumed, publishers wait for a consumer.
        "promised": f"; {number_of(went, 'publish waits', 'publishes wait')} for it" if went else "",
    }
    if row["kind"] == "dead_letters":
        counts = json.loads(row["detail"])
        named = [f"{counts[reason]:,} {word}" for reason, word in REASONS.items() if counts[reason]]
        if (others := amount - sum(counts.values())) > 0:
            named.append(f"{others:,} delivered too often")
        found["reasons"] = ", ".join(named)
    if row["kind"] == "fan_out":
        names = json.loads(row["detail"])
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        found |= {"queues": number_of(len(names), "queue"), "shown": ", ".join(names[:SHOWN]) + more}
    return found


SHOWN: Final = 3  # number of queues that a finding names
KINDS: Final[Mapping[str, str]] = {  # title and text of each kind of finding, made of what `_details` returns
    # Two kinds have others: `awaited` if publishers wait for a lost consumer, `crash` if nobody stopped a node.
    "unserved": "Queue {name} has lost its consumers: no worker {when}; {waiting} waiting, {came} came "
    "since{promised}.",
    "awaited": "Publishers wait for queue {name}, which has lost its consumers: no worker {when}; {waiting} waiting, "
    "{came} came since{promised}.",
    "stalled": "The consumers of queue {name} are stuck: nothing was settled {when}; {waiting} ready, {came} "
    "unacked{promised}.",
    "repeated": "Queue {name} delivers a message again and again: {amount} redeliveries among {came} deliveries "
    "{when}, {went} put back: probably a poison message, which no consumer can process.",
    "behind": "The consumers of queue {name} are too slow: {when} {arrived} came and {went} were delivered; the "
    "backlog reached {amount}.{recovering}",
    "thrash": "Queue {name} reads its messages from disk again and again: {amount} read back for {came} delivered "
    "{when}: memory is short, and what was read is paged out before it is delivered.",
    "dead_letters": "Queue {name} dead-letters messages: {waiting} {when}, among {came} deliveries: {reasons}.",
    "alarm": "Node {node} raised the {detail} alarm: publishers were blocked {when}{lasted}.",
    "restart": "Node {node} was restarted: stopped at {begun} ({detail}); {away} until it was back at {ended}.",
    "crash": "Node {node} ended without being stopped: a crash or a kill at {begun}; {away} until it was back at "
    "{ended}.",
    "fan_out": "Nobody reads what exchange {name} fans out: {queues} had no consumer at any time ({shown}); {arrived} "
    "published, {amount} copies waiting.",
    "unread": "Nobody reads queue {name}: it had no consumer at any time; {arrived} arrived, {amount} "
    "waiting{promised}.",
    "lost": "Exchange {name} drops messages: {amount} of {arrived} reached no queue, and were not returned.",
}
_OF_EXCHANGES: Final = frozenset({"fan_out", "lost"})
