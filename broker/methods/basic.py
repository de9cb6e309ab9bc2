"""Handlers of basic, confirm, tx, access and `channel.flow`, but for what the receive loop handles itself."""

import secrets

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Access, Basic as Wire, Channel as ChannelMethods, Confirm, Tx, make
from leveret.broker.amqp.properties import REPLY_TO
from leveret.broker.amqp.tables import Table
from leveret.broker.channel.channel import Channel
from leveret.broker.channel.interfaces import FAILED
from leveret.broker.channel.transaction import Transaction
from leveret.broker.errors import (
    access_refused,
    not_allowed,
    not_implemented,
    precondition_failed,
    resource,
    resource_locked,
)
from leveret.broker.methods.exchange import queue_name
from leveret.broker.queue.arguments import CLASSIC, QUORUM, STREAM, check_consume_arguments
from leveret.broker.queue.consumer import Consumer
from leveret.confirm.channel_confirms import ChannelConfirms


def basic_qos(channel: Channel, method: Wire.Qos) -> None:
    """Handle `basic.qos`: for new consumers of the channel, or (global) for the channel as a whole.

    As in RabbitMQ, a limit for new consumers ends that of the channel, and one of the channel leaves theirs as it is.
    """
    if method.prefetch_size:
        raise not_implemented(f"prefetch_size!=0 ({method.prefetch_size})")
    if method.global_ and channel.host.compatibility.global_qos == "permitted":
        channel.global_prefetch = method.prefetch_count
        channel.wake_consumers()
    else:
        channel.prefetch_count = method.prefetch_count
        if channel.global_prefetch:
            channel.global_prefetch = 0
            channel.wake_consumers()
    channel.send(Wire.QosOk())


def basic_consume(channel: Channel, method: Wire.Consume) -> None:
    """Handle `basic.consume`; consume-ok is sent before the first delivery."""
    host = channel.host
    most = host.limits.consumer_max_per_channel
    if most is not None and len(channel.consumers) >= most:
        raise not_allowed(f"reached maximum ({most}) of consumers per channel")
    if method.queue == REPLY_TO:
        _consume_replies(channel, method)
        return
    if method.consumer_tag in channel.consumers:
        raise not_allowed(f"attempt to reuse consumer tag '{method.consumer_tag}'")
    name = queue_name(channel, method.queue)
    channel.check_permission("read", "queue", name)
    queue = channel.vhost.queue(name, host)
    arguments: Table = method.arguments or {}  # type: ignore[assignment]
    release = host.compatibility.queues.arguments
    priority = check_consume_arguments(name, channel.vhost.name, arguments, queue.type, release)
    exclusive = bool(method.exclusive)
    if queue.type != CLASSIC:
        exclusive = False  # ignored by the other types of RabbitMQ
        what = resource("queue", name, channel.vhost.name)
        if queue.type == STREAM and method.no_ack:
            raise not_implemented(f"automatic acknowledgement not supported by stream {what}")
        if channel.global_prefetch:
            raise not_implemented(f"{what} does not support global qos")
        if queue.type == STREAM and not channel.prefetch_count:
            raise precondition_failed(f"consumer prefetch count is not set for stream {what}")
        queue.check_consumer(method.consumer_tag, arguments)
    consumers = queue.consumers
    if consumers.exclusive is not None or (exclusive and (consumers or consumers.single_active)):
        raise access_refused(f"{resource('queue', name, channel.vhost.name)} in exclusive use")
    consumer = (channel.consumer_class or queue.consumer_class)(
        method.consumer_tag or _generated_tag(),
        queue,
        channel,
        no_ack=bool(method.no_ack),
        exclusive=exclusive,
        prefetch_count=channel.prefetch_count,
        priority=priority,
        arguments=arguments,
    )
    _start(channel, consumer, method)
    vhost = channel.vhost
    vhost.context.tell("consumer_created", vhost.name, consumer.tag, consumer, channel)
    channel.record_consumer("consumer_added", consumer)


def _consume_replies(channel: Channel, method: Wire.Consume) -> None:
    """Start a direct reply-to consumer, on a queue of its own to which only replies are routed."""
    if not method.no_ack:
        raise precondition_failed("reply consumer cannot acknowledge")
    if channel.reply_consumer is not None:
        raise precondition_failed("reply consumer already set")
    if method.consumer_tag in channel.consumers:
        raise not_allowed(f"attempt to reuse consumer tag '{method.consumer_tag}'")
    queue = channel.vhost.reply_queues.create()
    consumer = Consumer(method.consumer_tag or _generated_tag(), queue, channel, no_ack=True)
    channel.reply_consumer = consumer
    _start(channel, consumer, method)


def _start(channel: Channel, consumer: Consumer, method: Wire.Consume) -> None:
    channel.consumers[consumer.tag] = consumer
    if not method.nowait:
        channel.send(make(Wire.ConsumeOk, consumer.tag))
    consumer.queue.add_consumer(consumer)


def _generated_tag() -> str:
    return f"amq.ctag-{secrets.token_urlsafe(16)}"


def basic_cancel(channel: Channel, method: Wire.Cancel) -> None:
    """Handle `basic.cancel`; the reply to an unknown tag is the same as to a known one."""
    consumer = channel.consumers.get(method.consumer_tag or "")
    if consumer is not None:
        channel.cancel(consumer)
    if not method.nowait:
        channel.send(make(Wire.CancelOk, method.consumer_tag))


def basic_get(channel: Channel, method: Wire.Get) -> None:
    """Handle `basic.get`."""
    name = queue_name(channel, method.queue)
    channel.check_permission("read", "queue", name)
    queue = channel.vhost.queue(name, channel.host)
    if queue.type == QUORUM and queue.consumers.single_active:
        quoted = QUORUM if channel.host.compatibility.queues.arguments == "3.13" else f'<<"{QUORUM}">>'
        raise resource_locked(
            f"cannot obtain access to locked {resource('queue', name, channel.vhost.name)}. "
            f"basic.get operations are not supported by {quoted} queues with single active consumer"
        )
    channel.get(queue, no_ack=bool(method.no_ack))


def basic_ack(channel: Channel, method: Wire.Ack) -> None:
    """Handle `basic.ack` in a form that the fast path does not handle."""
    channel.ack(method.delivery_tag, multiple=bool(method.multiple))


def basic_nack(channel: Channel, method: Wire.Nack) -> None:
    """Handle `basic.nack`, RabbitMQ's extension of `basic.reject` to several messages."""
    channel.reject(method.delivery_tag, multiple=bool(method.multiple), outcome=bool(method.requeue))


def basic_reject(channel: Channel, method: Wire.Reject) -> None:
    """Handle `basic.reject`."""
    channel.reject(method.delivery_tag or 0, multiple=False, outcome=FAILED if method.requeue else False)


def basic_recover(channel: Channel, method: Wire.Recover) -> None:
    """Handle `basic.recover`: requeue all unacked messages."""
    _check_recover(requeue=bool(method.requeue))
    channel.recover(encode_method(channel.number, Wire.RecoverOk()))


def basic_recover_async(channel: Channel, method: Wire.RecoverAsync) -> None:
    """Handle `basic.recover-async`, the deprecated form without a reply."""
    _check_recover(requeue=bool(method.requeue))
    channel.recover(b"")


def _check_recover(*, requeue: bool) -> None:
    if not requeue:
        raise not_implemented("requeue=false")


def access_request(channel: Channel, method: Access.Request) -> None:
    """Handle `access.request` of AMQP 0-8: reply with ticket 1, which is never checked."""
    channel.send(Access.RequestOk(1))


def channel_flow(channel: Channel, method: ChannelMethods.Flow) -> None:
    """Handle `channel.flow`: a client may not stop the broker's deliveries (RabbitMQ refuses it too)."""
    if not method.active:
        raise not_implemented("active=false")
    channel.send(ChannelMethods.FlowOk(active=True))


def confirm_select(channel: Channel, method: Confirm.Select) -> None:
    """Handle `confirm.select`; repeating it has no effect."""
    if channel.tx is not None:
        raise precondition_failed("cannot switch from tx to confirm mode")
    if channel.confirms is None:
        channel.confirms = ChannelConfirms(channel.schedule_confirms)
        channel.host.forget_routes()
    if not method.nowait:
        channel.send(Confirm.SelectOk())


def tx_select(channel: Channel, method: Tx.Select) -> None:
    """Handle `tx.select`; repeating it has no effect."""
    if channel.confirms is not None:
        raise precondition_failed("cannot switch from confirm to tx mode")
    if channel.tx is None:
        channel.tx = Transaction()
        channel.host.forget_routes()
    channel.send(Tx.SelectOk())


def tx_commit(channel: Channel, method: Tx.Commit) -> None:
    """Handle `tx.commit`; commit-ok follows the returns of unroutable messages."""
    channel.commit()
    channel.reply_when_safe(Tx.CommitOk(), files=True)


def tx_rollback(channel: Channel, method: Tx.Rollback) -> None:
    """Handle `tx.rollback`."""
    channel.rollback(encode_method(channel.number, Tx.RollbackOk()))
