"""Delayed messages are given back a little before they are due."""

from leveret.storage.delayed import Window

_take = Window.take


def take(window, now):
    return _take(window, now + 40)


Window.take = take
