"""A confirm covers everything below it, whether that is open or not."""

from leveret.confirm.channel_confirms import ChannelConfirms

_take = ChannelConfirms.take


def take(confirms):
    return [each._replace(multiple=True) for each in _take(confirms)]


ChannelConfirms.take = take
