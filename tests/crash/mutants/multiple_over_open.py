"""A confirm covers everything below it, whether that is open or not."""

from leveret.confirm.channel_confirms import ChannelConfirms

_take = ChannelConfirms.take


def take(confirms):
    return [(tag, True, is_ack) for tag, _, is_ack in _take(confirms)]


ChannelConfirms.take = take
