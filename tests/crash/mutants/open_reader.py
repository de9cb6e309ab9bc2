"""A read transaction is kept open, so what is freed is never used again."""

from leveret.storage.store.environment import Environment

_begin = Environment._begin
_kept = []


def begin(environment, **options):
    _begin(environment, **options)
    _kept.append(environment.store.env.begin())


Environment._begin = begin
