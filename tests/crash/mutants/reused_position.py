"""Starts are not counted, so numbers of messages are given again."""

from leveret.storage.store.environment import Environment

_begin = Environment._begin


def begin(environment, **options):
    _begin(environment, **options)
    environment.boot = 1


Environment._begin = begin
