"""Handlers of the exchange class: declare, delete, bind, unbind; and the checks of names, as in RabbitMQ."""

from typing import Any

from leveret.broker.amqp.commands import Exchange as Wire, make
from leveret.broker.amqp.tables import Table
from leveret.broker.channel.channel import Channel
from leveret.broker.errors import access_refused, not_found, precondition_failed, resource
from leveret.broker.queue.arguments import check_exchange_arguments, check_exchange_equivalence
from leveret.broker.queue.queue import Queue
from leveret.broker.queue.unknown_arguments import OF_EXCHANGES, warn_of_unknown
from leveret.exchanges.base import Exchange
from leveret.exchanges.consistent_hash import ConsistentHashExchange
from leveret.exchanges.errors import ExchangeError, InvalidBindingError
from leveret.exchanges.router import EXCHANGE_TYPES

_STRIP = str.maketrans("", "", "\r\n")


def strip_cr_lf(name: str) -> str:
    """Remove carriage returns and line feeds from a name, as RabbitMQ does."""
    return name.translate(_STRIP)


def queue_name(channel: Channel, name: str) -> str:
    """Return the name of a queue: an empty one stands for the last declared on the channel (404 if there is none)."""
    if name:
        return strip_cr_lf(name)
    if not channel.last_queue:
        raise not_found("no previously declared queue")
    return channel.last_queue


def check_not_default_exchange(name: str) -> None:
    """Raise 403 for the default exchange, which can neither be declared, deleted nor bound."""
    if not name:
        raise access_refused("operation not permitted on the default exchange")


def check_name(kind: str, name: str) -> None:
    """Raise 403 for a new name with the prefix reserved for the broker."""
    if name.startswith("amq."):
        raise access_refused(f"{kind} name '{name}' contains reserved prefix 'amq.*'")


def check_binding_key(channel: Channel, source: Exchange, binding_key: str) -> None:
    """Raise 406 for a binding key that RabbitMQ 4.3 refuses, if a limit for it is configured.

    That is a topic pattern with more than two `#` words, or the weight of a consistent hash exchange beyond 10,000.
    """
    compatibility = channel.host.compatibility
    limit = compatibility.topic_max_hash
    if limit and source.type == "topic":
        hashes = binding_key.split(".").count("#")
        if hashes > limit:
            raise precondition_failed(
                f"Topic binding key '{binding_key}' uses {hashes} '#' wildcards, at most {limit} are allowed"
            )
    most = compatibility.hash_max_weight
    if most and isinstance(source, ConsistentHashExchange) and source.weight_of(binding_key) > most:
        raise precondition_failed(f"The binding key must not exceed {most}")


def exchange_declare(channel: Channel, method: Wire.Declare) -> None:
    """Handle `exchange.declare`, with RabbitMQ's order of checks."""
    vhost = channel.vhost
    name = strip_cr_lf(method.exchange)
    if method.passive:
        check_not_default_exchange(name)
        channel.check_passive("exchange", name)
        exchange = vhost.exchange(name)
    else:
        exchange = _declare(channel, name, method)
    if not method.nowait:
        channel.reply(Wire.DeclareOk(), durable=exchange.durable and not method.passive)


def _declare(channel: Channel, name: str, method: Wire.Declare) -> Exchange:
    vhost = channel.vhost
    kind = method.exchange_type
    if kind not in EXCHANGE_TYPES:
        raise precondition_failed(f"{'unknown' if kind else 'invalid'} exchange type '{kind}'")
    check_not_default_exchange(name)
    channel.check_permission("configure", "exchange", name)
    arguments: Table = method.arguments or {}  # type: ignore[assignment]
    existing = vhost.router.get(name)
    if existing is not None:
        check_exchange_equivalence(
            name,
            vhost.name,
            existing,
            kind=kind,
            durable=bool(method.durable),
            auto_delete=bool(method.auto_delete),
            internal=bool(method.internal),
            arguments=arguments,
        )
        return existing
    check_name("exchange", name)
    check_exchange_arguments(name, vhost.name, arguments)
    if "alternate-exchange" in arguments:
        channel.check_permission("read", "exchange", name)
        channel.check_permission("write", "exchange", str(arguments["alternate-exchange"][1]))
    vhost.object_limits.check_exchange(name, vhost.name)
    try:
        exchange = vhost.declare_exchange(
            name,
            kind,
            durable=bool(method.durable),
            auto_delete=bool(method.auto_delete),
            internal=bool(method.internal),
            arguments=arguments,
        )
    except ExchangeError as error:
        raise precondition_failed(str(error)) from None
    warn_of_unknown(resource("exchange", name, vhost.name), arguments, OF_EXCHANGES)
    return exchange


def exchange_delete(channel: Channel, method: Wire.Delete) -> None:
    """Handle `exchange.delete`; deleting an exchange that does not exist succeeds."""
    vhost = channel.vhost
    name = strip_cr_lf(method.exchange)
    check_not_default_exchange(name)
    if name.startswith("amq."):
        raise access_refused(f"deletion of system {resource('exchange', name, vhost.name)} not allowed")
    channel.check_permission("configure", "exchange", name)
    exchange = vhost.router.get(name)
    durable = exchange is None or exchange.durable  # the deletion of a missing one may not be committed yet
    vhost.delete_exchange(name, if_unused=bool(method.if_unused))
    if not method.nowait:
        channel.reply(Wire.DeleteOk(), durable=durable)


def exchange_bind(channel: Channel, method: Wire.Bind) -> None:
    """Handle `exchange.bind`."""
    destination = strip_cr_lf(method.destination)
    durable = bind(channel, method.source, "exchange", destination, method.routing_key, method.arguments)
    if not method.nowait:
        channel.reply(make(Wire.BindOk), durable=durable)


def exchange_unbind(channel: Channel, method: Wire.Unbind) -> None:
    """Handle `exchange.unbind`; removing a binding that does not exist succeeds."""
    destination = strip_cr_lf(method.destination)
    durable = unbind(channel, method.source, "exchange", destination, method.routing_key, method.arguments)
    if not method.nowait:
        channel.reply(make(Wire.UnbindOk), durable=durable)


def bind(
    channel: Channel, source: str, kind: str, destination: str, binding_key: str, arguments: Any
) -> bool:
    """Bind a queue or an exchange (`kind`), and return whether the binding is durable; the source is checked first."""
    source = strip_cr_lf(source)
    exchange = _check_binding(channel, source, kind, destination, binding_key)
    vhost = channel.vhost
    if exchange is None:
        raise not_found(f"no {resource('exchange', source, vhost.name)}")
    target = _find(channel, kind, destination)
    if target is None:
        raise not_found(f"no {resource(kind, destination, vhost.name)}")
    if isinstance(target, Queue):
        vhost.check_access(target, channel.host)
    vhost.object_limits.check_binding(vhost, lambda: exchange.has_binding(target, binding_key, arguments))
    try:
        check_binding_key(channel, exchange, binding_key)
        vhost.router.bind(source, target, binding_key, arguments or {})
    except InvalidBindingError as error:
        raise precondition_failed(str(error)) from None
    return exchange.durable and target.durable


def unbind(
    channel: Channel, source: str, kind: str, destination: str, binding_key: str, arguments: Any
) -> bool:
    """Remove a binding, if it exists. Returns whether it is durable, or may have been and not yet be committed."""
    source = strip_cr_lf(source)
    exchange = _check_binding(channel, source, kind, destination, binding_key)
    target = _find(channel, kind, destination)
    if exchange is None or target is None:
        return True
    if isinstance(target, Queue) and exchange.has_binding(target, binding_key, arguments):
        channel.vhost.check_access(
            target, channel.host
        )  # exclusive ownership matters only if there is a binding to remove
    durable = exchange.durable and target.durable
    channel.vhost.router.unbind(source, target, binding_key, arguments or {})
    return durable


def _check_binding(
    channel: Channel, source: str, kind: str, destination: str, binding_key: str
) -> Exchange | None:
    """Check bind and unbind: write on the destination, read on the source, neither of them the default exchange."""
    channel.check_permission("write", kind, destination)
    if kind == "exchange":
        check_not_default_exchange(destination)
    check_not_default_exchange(source)
    channel.check_permission("read", "exchange", source)
    exchange = channel.vhost.router.get(source)
    if exchange is not None and exchange.type == "topic" and channel.host.topic_permissions:
        channel.check_topic_permission("read", source, binding_key)
    return exchange


def _find(channel: Channel, kind: str, name: str) -> Queue | Exchange | None:
    return channel.vhost.router.get(name) if kind == "exchange" else channel.vhost.queues.get(name)
