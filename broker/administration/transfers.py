"""Messages moved, copied, discarded, retried and replayed (`broker.transfer`), and the lists of dead letters."""

import itertools
from collections import Counter
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, NamedTuple

from leveret.broker.administration.access import (
    AdministeredBroker,
    AdministrationError,
    BadRequestError,
    BusyError,
    ForbiddenError,
    Group,
    NotFoundError,
    Right,
    authorize,
    exchange_of,
    queue_of,
    sees_all,
    visible_vhosts,
)
from leveret.broker.administration.detached_channel import check_key, check_permission
from leveret.broker.administration.messages import Steps, condition_of, facts_of, found_queue, next_piece
from leveret.broker.auth.users import BackendUser, User
from leveret.broker.errors import resource
from leveret.broker.process.shares import Shares
from leveret.broker.queue.arguments import STREAM
from leveret.broker.queue.limits import DELIVERY_LIMIT, EXPIRED, MAXLEN, REJECTED
from leveret.broker.queue.queue import Queue
from leveret.broker.transfer.destinations import Destination, Replay, ToExchange, ToQueue, parsed
from leveret.broker.transfer.retry import MOST_RETRIES, Death, Retry, death_of, headers_of, retries_of
from leveret.broker.transfer.transfer import Action, Transfer, Wish
from leveret.broker.vhost.vhost import VHost
from leveret.storage.queues.backing_queue import Peeked

MOST_RUNNING = 16  # maximum number of transfers of all users that run at once
MOST_OF_ONE = 8  # maximum number of those that one user has started, so that others can start some
MOST_OF_OPERATOR = 16  # most transfers that the operator on the host has running beside those of users
MOST_KEPT = 64  # number of transfers that are kept: those that run, and those that have ended last
REASONS = (REJECTED, EXPIRED, MAXLEN, DELIVERY_LIMIT)  # reasons of deaths


class Chosen(NamedTuple):
    """The messages that a transfer concerns: those that meet a condition (`broker.message_filter`), at most `limit`.

    `rate` is the maximum of messages a second, 0 for no limit; `is_dry` is true to count them only.
    """

    where: str = ""
    limit: int | None = None
    rate: int = 0
    is_dry: bool = False


EVERYTHING = Chosen()


class Needed(NamedTuple):
    """Rights that a user needs as long as a transfer runs: `permissions` for the queue, write for the destination."""

    actor: User | None
    place: VHost
    queue: str
    destination: str = ""
    permissions: tuple[str, ...] = ("read",)


class Transfers(Group):
    """Transfers of messages.

    Each `start_*` checks everything, begins a transfer, which goes on by itself, and returns its number. They raise
    NotFoundError, ForbiddenError and BadRequestError, and BusyError if as many run as may.
    """

    def __init__(self, broker: AdministeredBroker) -> None:
        super().__init__(broker)
        self.numbers = itertools.count(1)
        self._transfers: dict[int, tuple[Transfer, str | None]] = {}  # with the names of their users

    def start_move(
        self,
        actor: User | None,
        vhost: str,
        queue: str,
        destination: str,
        *,
        is_copy: bool = False,
        chosen: Chosen = EVERYTHING,
    ) -> int:
        """Move or copy messages; the user needs to be able to read the queue and to write to the destination.

        The destination is the name of a queue, or `exchange:NAME` or `exchange:NAME/KEY`.
        """
        place, source = found_queue(self._broker, actor, vhost, queue)
        to = self._destination(actor, place, source, destination)
        action = Action.COPY if is_copy else Action.MOVE
        return self._start(Wish(action, source, to), chosen, Needed(actor, place, queue, destination))

    def start_discard(self, actor: User | None, vhost: str, queue: str, chosen: Chosen = EVERYTHING) -> int:
        """Discard messages, as `start_move`; the user needs to be able to read and to configure the queue.

        They are not dead-lettered, and publishers that wait for their consumers get nacks, as after a purge.
        """
        place, source = found_queue(self._broker, actor, vhost, queue)
        check_permission(self._broker, actor, place, "configure", "queue", queue)
        needed = Needed(actor, place, queue, permissions=("read", "configure"))
        return self._start(Wish(Action.DISCARD, source, None), chosen, needed)

    def start_retry(
        self,
        actor: User | None,
        vhost: str,
        queue: str,
        *,
        destination: str = "",
        first: bool = False,
        reason: str = "",
        most_retries: int = MOST_RETRIES,
        chosen: Chosen = EVERYTHING,
    ) -> int:
        """Move dead letters back to the queues in which they died (see `broker.transfer.retry`).

        The user needs to be able to read the queue and to write to the destinations: another one, as for `start_move`,
        or for '' the queue of each message's newest death, or of its `first`. A `reason`, one of `REASONS`, is that of
        the newest death. A message stays after `most_retries`.
        """
        if first and destination:
            raise BadRequestError("first and destination exclude each other")
        if reason and reason not in REASONS:
            raise BadRequestError(f"reason: '{reason}' is none of {', '.join(REASONS)}")
        place, source = found_queue(self._broker, actor, vhost, queue)
        to = self._destination(actor, place, source, destination) if destination else None
        may_write = partial(_passes, partial(check_permission, self._broker, actor, place, "write", "queue"))
        retry = Retry(place.queues.get, to, first=first, most=most_retries, may_write=may_write)
        also = _died_of(reason) if reason else None
        needed = Needed(actor, place, queue, destination)
        return self._start(Wish(Action.RETRY, source, retry), chosen, needed, also=also)

    def start_replay(
        self,
        actor: User | None,
        vhost: str,
        queue: str,
        destination: str,
        *,
        since: int = 0,
        until: int | None = None,
        chosen: Chosen = EVERYTHING,
    ) -> int:
        """Copy messages that consumers have acked, and the queue retains, with the header `x-leveret-replayed`.

        The user needs to be able to read the queue and to write to the destination, which may be the queue itself. Only
        those acked from `since` on and before `until` are copied (milliseconds since the epoch; None for no end).
        """
        place, source = found_queue(self._broker, actor, vhost, queue)
        retained = source.retained
        if retained is None:
            what = resource("queue", queue, vhost)
            raise BadRequestError(
                f"{what} retains no messages: it needs x-retain-for, or a policy with retain-for"
            )
        if until is not None and until <= since:
            raise BadRequestError("'until' must be later than 'since'")
        to = self._destination(actor, place, retained, destination)
        wish = Wish(Action.REPLAY, retained, Replay(to, queue))
        needed = Needed(actor, place, queue, destination)
        end = inf if until is None else until
        return self._start(wish, chosen, needed, also=lambda peeked: since <= peeked.expires < end)

    def transfers(self, actor: User | None) -> list[dict[str, Any]]:
        """Return the running transfers and the latest others: the actor's own, or all for a monitoring user."""
        authorize(self._broker.users, actor, Right.MANAGEMENT)
        everything = sees_all(actor)
        return [
            shown(number, transfer)
            for number, (transfer, user) in self._transfers.items()
            if everything or (actor is not None and user == actor.name)
        ]

    def when_ended(self, number: int, callback: Callable[[], object]) -> None:
        """Call back when a transfer that was just started is over."""
        self._transfers[number][0].on_ended = callback

    def transfer(self, actor: User | None, number: int) -> dict[str, Any]:
        """Return one of these. Raises NotFoundError."""
        for found in self.transfers(actor):
            if found["id"] == number:
                return found
        raise NotFoundError(f"no transfer {number}")

    def cancel(self, actor: User | None, number: int) -> dict[str, Any]:
        """End a transfer after its current batch: one's own, or any for an administrator. Raises NotFoundError."""
        self.transfer(actor, number)
        transfer, user = self._transfers[number]
        if actor is not None and Right.ADMINISTRATOR not in actor.tags and user != actor.name:
            raise ForbiddenError("Not administrator user")
        transfer.cancel()
        return shown(number, transfer)

    def stop(self) -> None:
        """End all transfers: the broker is stopping."""
        for transfer, _ in self._transfers.values():
            transfer.cancel()

    # -- checks -----------------------------------------------------------------------------------------------------

    def _destination(self, actor: User | None, place: VHost, source: Queue, text: str) -> Destination:
        kind, name, key = parsed(text)
        if not text:
            raise BadRequestError("no destination")
        if kind == "queue":
            return ToQueue(another_queue(self._broker, actor, place, source, name))
        exchange = exchange_of(place, name)
        if exchange.internal:
            raise BadRequestError(f"{resource('exchange', name, place.name)} is internal")
        check_permission(self._broker, actor, place, "write", "exchange", name)
        check = partial(check_key, self._broker, actor, place, exchange)
        if key is not None:
            check(key)
        return ToExchange(place, exchange, key, partial(_passes, check))

    def _start(
        self, wish: Wish, chosen: Chosen, needed: Needed, *, also: Callable[[Peeked], bool] | None = None
    ) -> int:
        if wish.source.type == STREAM and wish.action is not Action.COPY:
            what = resource("queue", wish.source.name, wish.source.vhost)
            raise BadRequestError(f"{what} is a stream, which keeps its messages: they can be copied only")
        both = [
            each for each in (also, _condition(self._broker, wish.source, chosen.where)) if each is not None
        ]
        if chosen.limit is not None and chosen.limit < 0:
            raise BadRequestError("'limit' must not be negative")
        if chosen.rate < 0:
            raise BadRequestError("'rate' must not be negative")
        user = None if needed.actor is None else needed.actor.name
        self._check_number(user)
        self._forget()
        number = next(self.numbers)
        wish = wish._replace(
            where=(lambda peeked: all(meets(peeked) for meets in both)) if both else None,
            limit=chosen.limit,
            rate=chosen.rate,
            is_dry=chosen.is_dry,
            blob_threshold=self._broker.blob_threshold,
            refusal=partial(refusal, self._broker, needed),
        )
        self._transfers[number] = Transfer(wish, self._broker), user
        return number

    def _forget(self) -> None:
        """Forget one that has ended, so that there is space for one more: the first of the user with most of them."""
        # Whoever waits for a long one finds it, then, however many others begin.
        ended = {number: each for number, each in self._transfers.items() if each[0].ended is not None}
        if ended and len(self._transfers) >= MOST_KEPT:
            counts = Counter(owner for _, owner in ended.values())
            most = max(counts.values())
            times = [(each.ended, number) for number, (each, owner) in ended.items() if counts[owner] == most]
            del self._transfers[min(times)[1]]

    def _check_number(self, user: str | None) -> None:
        is_operator = user is None
        places = (
            Shares(MOST_OF_OPERATOR, MOST_OF_OPERATOR) if is_operator else Shares(MOST_RUNNING, MOST_OF_ONE)
        )
        for each, owner in self._transfers.values():
            if each.ended is None and (owner is None) is is_operator:
                places.acquire(owner or "")
        if places.is_full:
            raise _busy(places.most, " of the operator" if is_operator else "")
        if places.yielding(user or "") is not None:
            raise _busy(places.share, f" of user '{user}'")


def _busy(count: int, whose: str = "") -> BusyError:
    return BusyError(f"{count} transfers{whose} are running already: wait until one has ended, or cancel one")


def _passes(check: Callable[[str], None], name: str) -> bool:
    try:
        check(name)
    except AdministrationError:
        return False
    return True


def _condition(broker: AdministeredBroker, queue: Queue, where: str) -> Callable[[Peeked], bool] | None:
    condition = condition_of(where)
    if not condition:
        return None
    matches = condition.matches
    return lambda peeked: matches(facts_of(queue, peeked, broker.now(), broker.wall_clock()))


def _died_of(reason: str) -> Callable[[Peeked], bool]:
    def died(peeked: Peeked) -> bool:
        death = death_of(headers_of(peeked.message))
        return death is not None and death.reason == reason

    return died


def shown(number: int, transfer: Transfer) -> dict[str, Any]:
    """Return the progress or the result of a transfer."""
    wish = transfer.wish
    return {
        "id": number,
        "action": str(wish.action),
        "vhost": wish.source.vhost,
        "queue": wish.source.name,
        "destination": None if wish.destination is None else str(wish.destination),
        "dry_run": wish.is_dry,
        "state": str(transfer.state),
        "error": transfer.error,
        "messages": max(transfer.total, transfer.examined),  # some may come back meanwhile
        "examined": transfer.examined,
        "matched": transfer.matched,
        "done": transfer.done,
        "refused": sum(transfer.refused.values()),
        "causes": dict(sorted(transfer.refused.items())),
        "began": transfer.began,
        "ended": transfer.ended,
    }


def refusal(broker: AdministeredBroker, needed: Needed) -> str:
    """Return which right the user has lost meanwhile, '' for none; raises NotYet if a backend has to be asked."""
    actor, place = needed.actor, needed.place
    if actor is None:
        return ""
    user = actor if isinstance(actor, BackendUser) else broker.users.get(actor.name)
    if user is None:
        return f"user '{actor.name}' was deleted"
    if isinstance(user, BackendUser) and user.has_expired(broker.wall_clock()):
        return f"the login of user '{actor.name}' has ended"
    try:
        authorize(broker.users, user, Right.MANAGEMENT, place.name, change=True)
        for permission in needed.permissions:
            check_permission(broker, user, place, permission, "queue", needed.queue)
        if needed.destination:
            kind, name, _ = parsed(needed.destination)
            check_permission(broker, user, place, "write", kind, name)
    except AdministrationError as error:
        return str(error)
    return ""


def another_queue(
    broker: AdministeredBroker, actor: User | None, place: VHost, source: Queue, name: str
) -> Queue:
    """Return a queue to which messages may be moved from another one; raises as `Transfers.start_move`."""
    queue = queue_of(place, name)
    if queue is source:
        raise BadRequestError(f"{resource('queue', name, place.name)} is the source itself")
    check_permission(broker, actor, place, "write", "queue", name)
    return queue


# -- queues that hold dead letters ------------------------------------------------------------------------------------


SAMPLE = 1000  # maximum number of messages of each queue that are looked at, from its head on
_DECODED = 32  # messages that are decoded between two checks of the time


def dead_letter_queues(
    broker: AdministeredBroker, actor: User | None, vhost: str | None = None
) -> Steps[list[dict[str, Any]]]:
    """Return the queues that hold dead letters or lost some in a cycle, of one vhost or of all that the actor may see.

    `examined` of their ready messages were looked at; of these are the numbers of dead letters by their newest reason
    and by the queue in which they died, the times of the first death and of the last one (seconds since 1970, None if
    unknown), and the most `retries` that one of them has had. `cycled` died in this queue and were dropped, as they
    would have returned to a queue in which they had died.
    """
    rows = []
    for queue in [each for place in visible_vhosts(broker, actor, vhost) for each in place.queues.values()]:
        ready = queue.ready_count
        if queue.deleted or not (ready or queue.tally.cycled):
            continue
        examined, deaths = yield from _deaths(queue, broker)
        if deaths or queue.tally.cycled:
            rows.append(_dead_letter_row(queue, ready, examined, deaths))
    return rows


class _Dead(NamedTuple):
    """The newest death of a dead letter, the time at which it came to its queue, and its retries."""

    death: Death
    last: int | None
    retries: int


def _deaths(queue: Queue, broker: AdministeredBroker) -> Steps[tuple[int, list[_Dead]]]:
    """Return how many messages were looked at, and the deaths of those that have any.

    `x-death` has the time of the first death for a reason in a queue; after a retry, that of the last one is when the
    message came back.
    """
    examined = 0
    deaths: list[_Dead] = []
    now, wall = broker.now(), broker.wall_clock()
    walk = queue.backing.walk()
    while examined < SAMPLE and (found := (yield from next_piece(walk))) is not None:
        for number, peeked in enumerate(found.messages, 1):
            examined += 1
            headers = headers_of(peeked.message)
            death = death_of(headers)
            if death is not None and death.queue != queue.name:  # it is back, after a retry
                age = facts_of(queue, peeked, now, wall).age
                last = death.time if age is None or death.time is None else int(wall / 1000 - age)
                deaths.append(_Dead(death, last, retries_of(headers)))
            if not number % _DECODED:
                yield None
        yield None
    return examined, deaths


def _dead_letter_row(queue: Queue, ready: int, examined: int, deaths: list[_Dead]) -> dict[str, Any]:
    return {
        "vhost": queue.vhost,
        "queue": queue.name,
        "messages": ready,
        "examined": examined,
        "dead_letters": len(deaths),
        "reasons": dict(Counter(each.death.reason for each in deaths).most_common()),
        "origins": dict(Counter(each.death.queue for each in deaths).most_common()),
        "oldest": min((each.death.time for each in deaths if each.death.time is not None), default=None),
        "newest": max((each.last for each in deaths if each.last is not None), default=None),
        "retries": max((each.retries for each in deaths), default=0),
        "cycled": queue.tally.cycled,
    }
