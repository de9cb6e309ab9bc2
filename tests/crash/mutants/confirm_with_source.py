"""The publisher of a message that moves before it is on disk is told when its first place has forgotten it."""

from leveret.broker.vhost import dead_lettering

dead_lettering._joined = lambda _: (None, 0)
