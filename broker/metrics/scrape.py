"""Responses to scrapes, as pieces of text made in steps of a millisecond: selects families and objects."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from leveret.broker.administration.access import AdministeredBroker
from leveret.broker.automaton import ExpressionError, compiled
from leveret.broker.metrics.aggregates import (
    EXCHANGES as EXCHANGE_SUMS,
    GLOBAL,
    IDENTITY,
    MEMORY,
    NODE_GROUPS,
    OWN,
    TOTALS,
    Family,
)
from leveret.broker.metrics.per_object import (
    EXCHANGE_LABELS,
    EXCHANGES,
    QUEUE_INFO,
    TYPED_EXCHANGE_LABELS,
    Group,
)
from leveret.broker.metrics.sampler import Rows, Sampler, Selection
from leveret.broker.metrics.text import GAUGE, LINES, columns, family, labels_text, sums
from leveret.broker.statistics.node_figures import Process
from leveret.broker.vhost.vhost import VHost

PATTERN_OCTETS = 512  # maximum length of a pattern for queue names
PATTERN_MEMORY = 16_384  # maximum memory in bytes of a compiled pattern, which bounds the time of a match
RABBITMQ, DETAILED = "rabbitmq_", "rabbitmq_detailed_"


class UnusablePatternError(ValueError):
    """An invalid pattern for queue names; the text is for the client."""


def pattern(text: str) -> Callable[[bytes], object]:
    """Return a function that searches a pattern in a name. Raises UnusablePatternError."""
    octets = text.encode("utf-8", "surrogateescape")
    if len(octets) > PATTERN_OCTETS:
        raise UnusablePatternError("'queue' regex too long")
    try:
        return compiled(octets, memory=PATTERN_MEMORY).search
    except ExpressionError as error:
        raise UnusablePatternError(f"Invalid 'queue' regex: {error}") from None


def aggregated(broker: AdministeredBroker, process: Process) -> Iterator[str]:
    """Generate all families, summed up over all objects."""
    walk = Sampler(broker, "aggregated", process)
    yield from walk.everything()
    yield from of_node(
        walk, (*IDENTITY, *TOTALS, *GLOBAL, *EXCHANGE_SUMS, *chain(*NODE_GROUPS.values()), *OWN)
    )
    for kind in walk.kinds:
        for group in kind.groups:
            yield sums(group.prefix, group.columns, kind.total)


def per_object(broker: AdministeredBroker, process: Process) -> Iterator[str]:
    """Generate all families, with a series per object where there are objects."""
    walk = Sampler(broker, "per-object", process, keeps_rows=True)
    yield from walk.everything()
    yield from of_node(walk, (*IDENTITY, *TOTALS, *GLOBAL, *chain(*NODE_GROUPS.values()), *OWN))
    for kind in walk.kinds:
        for group in kind.groups:
            yield from columns(group.prefix, group.columns, kind.rows[group.labels])
    for exchanges in EXCHANGES:
        if exchanges.always:
            yield from _of_exchanges(exchanges, exchanges.prefix, broker.vhosts.values())


def memory(broker: AdministeredBroker, process: Process) -> Iterator[str]:
    """Generate the response to `/metrics/memory-breakdown`."""
    walk = Sampler(broker, "memory-breakdown", process)
    yield from of_node(walk, (*IDENTITY, MEMORY))


def detailed(broker: AdministeredBroker, selection: Selection, process: Process) -> Iterator[str]:
    """Generate the requested groups, with a series per object; names begin with `rabbitmq_detailed_`."""
    names = selection.families
    if "queue_metrics" in names:
        names |= {"queue_consumer_count"}
    walk = Sampler(broker, "detailed", process, selection, keeps_rows=True)
    for kind in walk.kinds:
        if _chosen(kind.groups, names):
            yield from walk.visit(kind)
            for group in _chosen(kind.groups, names | {QUEUE_INFO.name}):
                yield from columns(_detailed(group.prefix), group.columns, kind.rows[group.labels])
    vhosts = selection.vhosts_of(broker)
    for exchanges in _chosen(EXCHANGES, names):
        prefix = _detailed(exchanges.prefix) if exchanges.always else exchanges.prefix
        yield from _of_exchanges(exchanges, prefix, vhosts)
    if "vhost_status" in names:
        status = [("", labels_text(("vhost",), (vhost.name,)), 1) for vhost in vhosts]
        yield family("rabbitmq_cluster_vhost_status", GAUGE, "1 for each virtual host", status)
    for name, families in NODE_GROUPS.items():
        if name in names:
            yield from of_node(walk, families, DETAILED)
    yield from of_node(walk, IDENTITY)


def of_node(node: Any, families: Iterable[Family], prefix: str = RABBITMQ) -> Iterator[str]:
    """Generate families of the broker, RabbitMQ's with the given prefix; one per piece, as some have to count."""
    for each in families:
        name = each.name.replace(RABBITMQ, prefix, 1) if each.name.startswith(RABBITMQ) else each.name
        yield family(name, each.kind, each.text, each.samples(node))


def _chosen(groups: Iterable[Group], names: frozenset[str]) -> list[Group]:
    return [group for group in groups if group.name in names]


def _detailed(prefix: str) -> str:
    return f"{prefix}detailed_"


def _of_exchanges(group: Group, prefix: str, vhosts: Iterable[VHost]) -> Iterator[str]:
    """Generate a group for all exchanges or, if it has a type label, only for named ones, as RabbitMQ does."""
    names_type = group.labels == TYPED_EXCHANGE_LABELS
    shown = [(vhost.name, exchange) for vhost in vhosts for exchange in vhost.router.exchanges.values()]
    rows: Rows = []
    for at in range(0, len(shown), LINES):
        yield ""
        for vhost, exchange in shown[at : at + LINES]:
            if names_type and not exchange.internal and exchange.name:
                names = vhost, exchange.name, exchange.type
                rows.append((labels_text(TYPED_EXCHANGE_LABELS, names), exchange))
            elif not names_type:
                rows.append((labels_text(EXCHANGE_LABELS, (vhost, exchange.name)), exchange))
    yield from columns(prefix, group.columns, rows)
