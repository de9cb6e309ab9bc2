"""Tailing: the messages that are published to an exchange, as they are published."""

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from leveret.broker.administration.access import (
    AdministeredBroker,
    AdministrationError,
    BadRequestError,
    Group,
    Right,
    authorize,
    entered,
    exchange_of,
)
from leveret.broker.administration.messages import (
    BODY_OCTETS,
    MOST_OCTETS,
    MessageView,
    condition_of,
    view_of,
)
from leveret.broker.auth.users import User
from leveret.broker.errors import resource
from leveret.broker.message_filter.message_facts import MessageFacts
from leveret.broker.process.shares import Shares
from leveret.broker.vhost.tail import EVERYTHING, Published, Tail
from leveret.broker.vhost.vhost import VHost

log = logging.getLogger("leveret.management")

MOST_TAILS: Final = 16  # most tails of a broker, some megabytes each; a user may have a quarter
_MOST_PATTERN = 255


class Line(NamedTuple):
    """An item that a tail shows: a message, the number of those that a slow reader has lost, or why the tail ends."""

    published: Published | None = None
    view: MessageView | None = None
    lost: int = 0
    end: str = ""


class Wish(NamedTuple):
    """The messages that a tail shows."""

    pattern: str = EVERYTHING  # what their routing keys match, as the key of a binding to a topic exchange
    where: str = ""  # condition that they meet (`broker.message_filter`); '' for all
    most: int | None = None  # number of messages after which the tail ends; None for no end
    octets: int = BODY_OCTETS  # maximum bytes of each body


class Tailing(Group):
    """Tails of exchanges."""

    def __init__(self, broker: AdministeredBroker) -> None:
        super().__init__(broker)
        self._places = Shares(MOST_TAILS)

    def start(self, actor: User | None, vhost: str, exchange: str, wish: Wish) -> "Follower":
        """Return what follows an exchange, once it has begun; the caller must close it then.

        As with RabbitMQ's tracing, the user must be an administrator: all messages of all users are shown. Raises
        NotFoundError, ForbiddenError, and BadRequestError if the condition or a number is invalid, or there are too
        many.
        """
        place = entered(self._broker, actor, vhost, Right.ADMINISTRATOR)
        exchange_of(place, exchange)
        matches = condition_of(wish.where).matches
        if wish.most is not None and wish.most < 1:
            raise BadRequestError("count must be at least 1")
        if not 0 <= wish.octets <= MOST_OCTETS:
            raise BadRequestError(f"truncate must be from 0 to {MOST_OCTETS} bytes")
        if len(wish.pattern.encode("utf-8", "surrogateescape")) > _MOST_PATTERN:
            raise BadRequestError(f"a pattern has at most {_MOST_PATTERN} bytes")
        if self._places.is_full:
            raise BadRequestError(f"{self._places.most} exchanges are tailed already")
        if self._places.yielding("" if actor is None else actor.name) is not None:
            raise BadRequestError(f"{self._places.share} exchanges are tailed by the user already")
        return Follower(self._broker, self._places, actor, place, exchange, wish, matches)


class Follower:
    """Follows one exchange for an administrator, and has one of the places meanwhile."""

    def __init__(
        self,
        broker: AdministeredBroker,
        places: Shares,
        actor: User | None,
        vhost: VHost,
        exchange: str,
        wish: Wish,
        matches: Callable[[Any], bool],
    ) -> None:
        self._broker = broker
        self._places = places
        self._actor = actor
        self._vhost = vhost
        self._wish = wish
        self._matches = matches
        self._tail = Tail(vhost.router, exchange, wish.pattern, broker.wall_clock)
        self._what = resource("exchange", exchange or "amq.default", vhost.name)
        self._owner = "" if actor is None else actor.name
        self._has_place = self._has_begun = False
        self.when_there = self._tail.when_there

    def begin(self) -> None:
        """Begin; once."""
        self._has_begun, self._has_place = True, self._places.acquire(self._owner)
        self._vhost.taps.add_tail(self._tail)
        who = "the operator" if self._actor is None else f"user '{self._owner}'"
        log.info("%s tails %s", who, self._what)

    def close(self) -> None:
        """End it; no effect if it has ended, or has not begun."""
        if not self._has_begun:
            return
        if self._has_place:
            self._places.release(self._owner)
        self._has_begun = False
        self._vhost.taps.remove_tail(self._tail)

    def _obstacle(self) -> str:
        """Return why it must end; '' if it may go on."""
        broker, actor, name = self._broker, self._actor, self._vhost.name
        if broker.vhosts.get(name) is not self._vhost:
            return f"virtual host '{name}' was deleted"
        try:
            if actor is not None:
                user = broker.users.current(actor)
                authorize(broker.users, user or User("", ""), Right.ADMINISTRATOR, name)
        except AdministrationError as error:
            return str(error)
        return ""

    def lines(self) -> Iterator[Line | None]:
        """Yield what comes: an empty line if there is nothing at the moment, None where others may have a turn."""
        left = self._wish.most
        while left is None or left > 0:
            item = self._tail.take()
            if item is None:
                if reason := self._obstacle():
                    yield Line(end=reason)
                    return
                yield Line()
            elif isinstance(item, int):
                yield Line(lost=item)
            elif self._matches(MessageFacts(item.message, now=item.time, due=item.due)):
                queues, octets = tuple(item.queues), self._wish.octets
                view = view_of(item.message, octets=octets, state="published", queues=queues, due=item.due)
                left = None if left is None else left - 1
                yield Line(item, view)
            else:
                yield None
