"""Mutant: a message that moves before it is on disk is confirmed when it is deleted from its first place."""

from leveret.broker.vhost import dead_lettering

dead_lettering.joined = lambda _: None
