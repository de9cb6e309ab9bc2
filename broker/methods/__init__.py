"""Handlers of channel methods: a table from method class to handler.

Handlers are named `class_method` as in the protocol, take the channel and the decoded method, send their own replies
and raise `AMQPError`. `connection.*`, `channel.open` and `channel.close` are handled by the connection. Publishes never
come here, acks only if the receive loop does not handle them.
"""

from collections.abc import Callable
from typing import Any

from leveret.broker.amqp.commands import (
    Access,
    Basic,
    Channel as ChannelMethods,
    Confirm,
    Exchange,
    Queue,
    Tx,
)
from leveret.broker.channel.channel import Channel
from leveret.broker.methods import basic, exchange, queue

Handler = Callable[[Channel, Any], None]

HANDLERS: dict[type, Handler] = {
    Access.Request: basic.access_request,
    ChannelMethods.Flow: basic.channel_flow,
    Exchange.Declare: exchange.exchange_declare,
    Exchange.Delete: exchange.exchange_delete,
    Exchange.Bind: exchange.exchange_bind,
    Exchange.Unbind: exchange.exchange_unbind,
    Queue.Declare: queue.queue_declare,
    Queue.Bind: queue.queue_bind,
    Queue.Unbind: queue.queue_unbind,
    Queue.Purge: queue.queue_purge,
    Queue.Delete: queue.queue_delete,
    Basic.Qos: basic.basic_qos,
    Basic.Consume: basic.basic_consume,
    Basic.Cancel: basic.basic_cancel,
    Basic.Get: basic.basic_get,
    Basic.Ack: basic.basic_ack,
    Basic.Nack: basic.basic_nack,
    Basic.Reject: basic.basic_reject,
    Basic.Recover: basic.basic_recover,
    Basic.RecoverAsync: basic.basic_recover_async,
    Confirm.Select: basic.confirm_select,
    Tx.Select: basic.tx_select,
    Tx.Commit: basic.tx_commit,
    Tx.Rollback: basic.tx_rollback,
}
