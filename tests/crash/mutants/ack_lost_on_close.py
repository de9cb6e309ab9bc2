"""The last `multiple` ack of a channel is kept back until the next one, and lost when the channel closes."""

from leveret.broker.channel.channel import Channel

_ack = Channel.ack
_kept = {}


def ack(channel, delivery_tag, *, multiple):
    before = _kept.pop(id(channel), None)
    if before is not None and before[0] is channel:
        _ack(channel, before[1], multiple=True)
    if multiple:
        _kept[id(channel)] = channel, delivery_tag
    else:
        _ack(channel, delivery_tag, multiple=False)


Channel.ack = ack
