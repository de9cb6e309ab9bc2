"""Taps of a virtual host: the firehose, and tails of exchanges, which are told of messages beside the queues.

Theory. Nothing of this costs a message anything while it is off. Channels keep the route of a publish until the
generation of the router changes: when something is switched on, it does, and the routes that are found from then on
have the taps that concern them and are not plain, so that each of their publishes is a call of `Channel.publish`.
"""

from collections.abc import Iterator

from leveret.broker.queue.queue import Queue
from leveret.broker.queue.traced_rotation import traced, untraced
from leveret.broker.scheduling.turn import Turn
from leveret.broker.vhost.firehose import Firehose, RoutingVHost
from leveret.broker.vhost.publish_route import Tap
from leveret.broker.vhost.tail import Tail
from leveret.exchanges.base import Exchange
from leveret.exchanges.router import Router


class Tapping:
    """The taps of one virtual host.

    Args:
        vhost: the virtual host.
        turn: the work lists of the server.

    Attributes:
        firehose: the firehose; None while it is off.
        tails: the tails of exchanges.

    """

    __slots__ = ("_turn", "_vhost", "firehose", "tails")

    def __init__(self, vhost: RoutingVHost, turn: Turn) -> None:
        self._vhost = vhost
        self._turn = turn
        self.firehose: Firehose | None = None
        self.tails: tuple[Tail, ...] = ()

    def on(self, exchange: Exchange) -> tuple[Tap, ...]:
        """Return the taps that concern publishes to an exchange; must be asked again when the generation changes."""
        firehose: tuple[Tap, ...] = () if self.firehose is None else (self.firehose,)
        return (*firehose, *self.tails_on(exchange)) if self.tails else firehose

    def tails_on(self, exchange: Exchange) -> tuple[Tail, ...]:
        """Return the tails of an exchange, and of those that messages may reach from there."""
        if not self.tails:
            return ()
        names = _reachable(self._vhost.router, exchange)
        return tuple(tail for tail in self.tails if tail.exchange in names)

    def add_tail(self, tail: Tail) -> None:
        """Tell a tail of messages from now on."""
        self.tails = (*self.tails, tail)
        self._vhost.router.generation += 1

    def remove_tail(self, tail: Tail) -> None:
        """Tell a tail of messages no more; no effect if it is not told."""
        self.tails = tuple(each for each in self.tails if each is not tail)
        self._vhost.router.generation += 1

    def trace(self, node_name: str | None) -> None:
        """Switch the firehose on, with the name of the node for its messages, or off for None."""
        if (self.firehose is None) is (node_name is None):
            return
        self.firehose = None if node_name is None else Firehose(self._vhost, self._turn, node_name)
        self._vhost.router.generation += 1
        self._turn.slices.add(self._follow_all(), f"tracing of vhost '{self._vhost.name}'")

    def _follow_all(self) -> Iterator[None]:
        for queue in tuple(self._vhost.queues.values()):
            if not queue.deleted:
                self.follow(queue)
            yield

    def follow(self, queue: Queue) -> None:
        """Have the deliveries of a queue traced if the firehose is on, else not; to be called for new queues, too."""
        if self.firehose is not None:
            traced(queue, self.firehose)
        else:
            untraced(queue)


def _reachable(router: Router, exchange: Exchange) -> set[str]:
    """Return the names of an exchange and of all that its messages may reach, by bindings or as alternates."""
    names = {exchange.name}
    work = [exchange]
    while work:
        visited = work.pop()
        following = [each.name for each in visited.exchange_destinations or ()]
        if visited.alternate is not None:
            following.append(visited.alternate)
        for name in following:
            found = router.get(name)
            if name not in names and found is not None:
                names.add(name)
                work.append(found)
    return names
