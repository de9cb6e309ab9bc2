"""A purge is answered before it is on disk."""

from leveret.broker.amqp.commands import Queue
from leveret.broker.channel.channel import Channel

_reply = Channel.reply


def reply(channel, method, *, durable):
    _reply(channel, method, durable=durable and not isinstance(method, Queue.PurgeOk))


Channel.reply = reply
