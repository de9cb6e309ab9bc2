"""Handlers of the confirm, tx and access classes, and of `channel.flow`."""

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Access, Channel as Wire, Confirm, Tx
from leveret.broker.channel.channel import Channel
from leveret.broker.channel.transaction import Transaction
from leveret.broker.errors import not_implemented, precondition_failed
from leveret.confirm.channel_confirms import ChannelConfirms


def access_request(channel: Channel, method: Access.Request) -> None:
    """Handle `access.request` of AMQP 0-8: reply with ticket 1, which is never checked."""
    del method
    channel.send(Access.RequestOk(1))


def channel_flow(channel: Channel, method: Wire.Flow) -> None:
    """Handle `channel.flow`: a client may not stop the broker's deliveries (RabbitMQ refuses it too)."""
    if not method.active:
        raise not_implemented("active=false")
    channel.send(Wire.FlowOk(active=True))


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
    del method
    if channel.confirms is not None:
        raise precondition_failed("cannot switch from confirm to tx mode")
    if channel.tx is None:
        channel.tx = Transaction()
        channel.host.forget_routes()
    channel.send(Tx.SelectOk())


def tx_commit(channel: Channel, method: Tx.Commit) -> None:
    """Handle `tx.commit`; commit-ok follows the returns of unroutable messages."""
    del method
    channel.commit()
    channel.reply_when_safe(Tx.CommitOk(), files=True)


def tx_rollback(channel: Channel, method: Tx.Rollback) -> None:
    """Handle `tx.rollback`."""
    del method
    channel.rollback(encode_method(channel.number, Tx.RollbackOk()))
