"""A confirm covers everything below it, whether that is open or not."""

from leveret.confirm.channel_confirms import StandardConfirms

_take = StandardConfirms.take


def take(confirms):
    return [each._replace(multiple=True) for each in _take(confirms)]


StandardConfirms.take = take
