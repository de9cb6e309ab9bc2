"""Handlers of the queue class: declare, bind, unbind, purge, delete."""

from leveret.broker.amqp.commands import Queue as Wire, make
from leveret.broker.amqp.properties import REPLY_TO
from leveret.broker.channel.channel import Channel
from leveret.broker.errors import (
    access_refused,
    denied_feature,
    not_found,
    not_implemented,
    precondition_failed,
    resource,
)
from leveret.broker.methods.exchange import bind, check_name, queue_name, strip_cr_lf, unbind
from leveret.broker.queue.arguments import (
    CLASSIC,
    QUORUM,
    STREAM,
    check_dead_letter_exchange_type,
    check_locator,
    check_may_be_generated,
    check_queue_arguments,
    check_queue_equivalence,
    check_queue_properties,
    with_default_type,
)
from leveret.broker.queue.queue import Queue
from leveret.broker.vhost.direct_reply_to import REPLY_PREFIX, is_reply_name


def queue_declare(channel: Channel, method: Wire.Declare) -> None:
    """Handle `queue.declare`, with RabbitMQ's order of checks."""
    if is_reply_name(method.queue):
        _declare_reply_queue(channel, method)
        return
    vhost = channel.vhost
    name = strip_cr_lf(method.queue)
    if method.passive:
        channel.check_passive("queue", name)
        queue = vhost.queue(name, channel.host)
    else:
        queue = _declare(channel, method, name)
    queue.catch_up()
    channel.vhost.context.totals.queues_declared += not method.passive
    queue.used()
    channel.last_queue = queue.name
    if not method.nowait:
        reply = make(Wire.DeclareOk, queue.name, queue.ready_count, queue.consumer_count)
        channel.reply(reply, durable=queue.durable and not method.passive)


def _declare_reply_queue(channel: Channel, method: Wire.Declare) -> None:
    """Handle the declaration of a direct reply-to name, which only checks that its consumer still exists."""
    if method.queue != REPLY_TO and not channel.vhost.reply_queues.reached_by(method.queue):
        raise not_found(f"no {resource('queue', method.queue, channel.vhost.name)}")
    if not method.nowait:
        channel.send(make(Wire.DeclareOk, method.queue, 0, 1))


def _declare(channel: Channel, method: Wire.Declare, name: str) -> Queue:
    vhost, host = channel.vhost, channel.host
    auto_delete, release = bool(method.auto_delete), host.compatibility.queues.arguments
    arguments = with_default_type(
        method.arguments or {},  # type: ignore[arg-type]
        vhost.metadata.default_queue_type or ("" if release == "3.13" else CLASSIC),
        durable=bool(method.durable),
        exclusive=bool(method.exclusive),
        auto_delete=auto_delete,
    )
    if name:
        check_name("queue", name)
    else:
        check_may_be_generated(arguments)
        name = channel.generated_name = channel.generated_name or vhost.generated_name()
    durable = bool(method.durable and not method.exclusive)
    owner = host if method.exclusive else None
    channel.check_permission("configure", "queue", name)
    queue = vhost.find_declared(name)
    if queue is not None:
        vhost.check_access(queue, owner, strict=True)
        check_queue_equivalence(
            name,
            vhost.name,
            queue,
            durable=durable,
            auto_delete=auto_delete,
            arguments=arguments,
            release=release,
        )
        return queue
    vhost.check_queue_limit(name)
    check_dead_letter_exchange_type(name, vhost.name, arguments)
    if "x-dead-letter-exchange" in arguments:
        channel.check_permission("read", "queue", name)
        channel.check_permission("write", "exchange", str(arguments["x-dead-letter-exchange"][1]))
    check_queue_arguments(name, vhost.name, arguments, release)
    check_queue_properties(
        name,
        vhost.name,
        durable=durable,
        exclusive=owner is not None,
        auto_delete=auto_delete,
        arguments=arguments,
    )
    if host.compatibility.transient_nonexcl_queues == "denied" and not (durable or method.exclusive):
        is_4 = host.compatibility.profile == "4.3"
        raise denied_feature("transient_nonexcl_queues", by_default=is_4)
    check_locator(arguments, release)
    channel.vhost.await_name(name)
    queue = vhost.create_queue(
        name, durable=durable, exclusive_owner=owner, auto_delete=auto_delete, arguments=arguments
    )
    channel.generated_name = ""
    if owner is not None:
        host.exclusive_queues[name] = queue
    return queue


def queue_bind(channel: Channel, method: Wire.Bind) -> None:
    """Handle `queue.bind`."""
    name, key = _queue_and_key(channel, method)
    durable = bind(channel, method.exchange, "queue", name, key, method.arguments)
    if not method.nowait:
        channel.reply(make(Wire.BindOk), durable=durable)


def queue_unbind(channel: Channel, method: Wire.Unbind) -> None:
    """Handle `queue.unbind`; removing a binding that does not exist succeeds."""
    name, key = _queue_and_key(channel, method)
    durable = unbind(channel, method.exchange, "queue", name, key, method.arguments)
    channel.reply(make(Wire.UnbindOk), durable=durable)


def _queue_and_key(channel: Channel, method: Wire.Bind | Wire.Unbind) -> tuple[str, str]:
    """Return the queue and the key of a binding: if neither is given, both are the last declared queue's name."""
    if method.queue.startswith(REPLY_PREFIX):
        raise access_refused("cannot bind or unbind to a volatile (direct reply-to) queue")
    name = queue_name(channel, method.queue)
    return name, name if not method.queue and not method.routing_key else method.routing_key


def queue_purge(channel: Channel, method: Wire.Purge) -> None:
    """Handle `queue.purge`: drop the ready messages, keep the unacked ones."""
    name = queue_name(channel, method.queue)
    channel.check_permission("read", "queue", name)
    queue = channel.vhost.queue(name, channel.host)
    queue.catch_up()
    count = queue.purge()
    if not method.nowait:
        channel.reply(Wire.PurgeOk(count), durable=queue.durable)


def queue_delete(channel: Channel, method: Wire.Delete) -> None:
    """Handle `queue.delete`; deleting a queue that does not exist succeeds.

    Delete-ok is sent when the queue has discarded what it had to, and before `basic.cancel` for the channel's own
    consumers of it, as in RabbitMQ.
    """
    vhost = channel.vhost
    name = queue_name(channel, method.queue)
    channel.check_permission("configure", "queue", name)
    queue = vhost.queues.get(name)
    if queue is None:
        channel.vhost.await_name(name)
        if not method.nowait:
            channel.reply(Wire.DeleteOk(0), durable=True)  # a durable one's deletion may not yet be committed
        return
    vhost.check_access(queue, channel.host)
    queue.catch_up()
    what = resource("queue", name, vhost.name)
    is_stream = queue.type == STREAM  # which ignores both conditions, and tells no count, as in RabbitMQ
    if queue.type == QUORUM and (method.if_empty or method.if_unused):
        condition = "if-unused" if method.if_unused else "if-empty"
        text = f"queue.delete operations with {condition} flag set are not supported by quorum queues"
        raise not_implemented(f"cannot delete {what}. {text}")
    if method.if_empty and not is_stream and (queue.ready_count or queue.held_count):
        raise precondition_failed(f"{what} not empty")
    if method.if_unused and not is_stream and queue.consumers:
        raise precondition_failed(f"{what} in use")
    cancels = channel.remove_consumers(queue)
    count = vhost.delete_queue(queue)
    if is_stream:
        count = 0
    if method.nowait:
        for cancel in cancels:
            channel.send(cancel)
    else:
        channel.reply_when_gone(queue, Wire.DeleteOk(count), *cancels)
