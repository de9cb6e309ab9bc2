"""Exchanges: `/api/exchanges`."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from leveret.broker.administration.access import visible_vhosts
from leveret.broker.administration.definitions_document import json_text, plain_arguments
from leveret.broker.http.call import Answer, Call, Done, Item, Listing
from leveret.broker.http.errors import not_found
from leveret.broker.http.listing import ABSENT, RANGES, asked_ranges
from leveret.broker.http.route import Key, Routes, Scope
from leveret.broker.management.bindings import exchange_name
from leveret.broker.management.clients import shown
from leveret.broker.statistics import families
from leveret.broker.vhost.vhost import VHost
from leveret.exchanges.base import Exchange

ROUTES = Routes("exchanges", scope=Scope.VHOST)
_SYSTEM = "amq."


class ExchangeRow(NamedTuple):
    """An exchange and its vhost."""

    vhost: VHost
    exchange: Exchange


Fields = Mapping[str, Callable[[ExchangeRow], Any]]


def exchange_fields(call: Call) -> Fields:
    """Return the functions for the keys of an exchange."""
    statistics = call.broker.statistics
    span = asked_ranges(call.query, one="exchange" in call.names).messages

    return {
        "name": lambda row: json_text(row.exchange.name),
        "vhost": lambda row: json_text(row.vhost.name),
        "type": lambda row: row.exchange.type,
        "durable": lambda row: row.exchange.durable,
        "auto_delete": lambda row: row.exchange.auto_delete,
        "internal": lambda row: row.exchange.internal,
        "arguments": lambda row: plain_arguments(row.exchange.arguments),
        "policy": _policy,
        "user_who_performed_action": lambda row: "rmq-internal" if is_predeclared(row.exchange) else "",
        "messages_delayed": lambda row: ABSENT if row.exchange.line is None else row.exchange.line.count,
        "messages_kept": lambda row: _kept(row, "count"),
        "message_bytes_kept": lambda row: _kept(row, "octets"),
        "message_stats": lambda row: statistics.message_stats(families.EXCHANGES, row.exchange, span),
    }


def is_predeclared(exchange: Exchange) -> bool:
    """Return whether every vhost has this exchange."""
    return not exchange.name or exchange.name.startswith(_SYSTEM)


def _kept(row: ExchangeRow, figure: str) -> Any:
    return getattr(row.vhost.histories.by_name.get(row.exchange.name), figure, ABSENT)


def _policy(row: ExchangeRow) -> Any:
    policy = row.vhost.exchange_policies(row.exchange).policy
    return ABSENT if policy is None else json_text(policy.name)


@ROUTES.list("exchanges", query=RANGES)
@ROUTES.list("exchanges/{vhost}", doc="The exchanges of a virtual host.", query=RANGES)
def list_exchanges(call: Call) -> Answer:
    """All exchanges."""
    return Listing(_rows(call), exchange_fields(call))


def _rows(call: Call) -> Iterator[ExchangeRow]:
    for vhost in visible_vhosts(call.broker, call.actor, call.vhost):
        for exchange in tuple(vhost.router.exchanges.values()):
            yield ExchangeRow(vhost, exchange)


@ROUTES.get("exchanges/{vhost}/{exchange}", query=RANGES)
def get_exchange(call: Call, exchange: str) -> Answer:
    """One exchange."""
    vhost = call.found_vhost()
    found = vhost.router.get(exchange_name(exchange))
    if found is None:
        raise not_found()
    row = ExchangeRow(vhost, found)
    return Item({**shown(exchange_fields(call), row), "incoming": [], "outgoing": []})


@ROUTES.put(
    "exchanges/{vhost}/{exchange}",
    body=(
        Key("type", doc="`direct` by default"),
        Key("durable", "boolean", doc="false by default"),
        Key("auto_delete", "boolean", doc="false by default"),
        Key("internal", "boolean", doc="false by default"),
        Key("arguments", "object"),
    ),
)
def put_exchange(call: Call, vhost: str, exchange: str) -> Answer:
    """Declare an exchange."""
    name = exchange_name(exchange)
    body = call.body()
    with call.changing():
        is_new = call.broker.vhosts[vhost].router.get(name) is None
        call.administration.topology.declare_exchange(
            call.actor,
            vhost,
            name,
            body.text("type", "direct"),
            durable=body.flag("durable"),
            auto_delete=body.flag("auto_delete"),
            internal=body.flag("internal"),
            arguments=body.table("arguments"),
        )
    return Done(201 if is_new else 204)


@ROUTES.delete(
    "exchanges/{vhost}/{exchange}",
    query=(Key("if-unused", "boolean", doc="only if it is the source of no binding"),),
)
def delete_exchange(call: Call, vhost: str, exchange: str) -> None:
    """Delete an exchange with its bindings."""
    name = exchange_name(exchange)
    if call.found_vhost().router.get(name) is None:
        raise not_found()
    with call.changing():
        is_unused = call.query.flag("if-unused")
        call.administration.topology.delete_exchange(call.actor, vhost, name, if_unused=is_unused)
