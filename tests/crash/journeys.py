"""Ledger of messages that move by themselves, by expiry, limits, rejections and delays with dead letters.

Theory. A message in a plain queue stays until a consumer takes it, so `ledger` can say where each copy is. A message
in a queue with a TTL, a limit or a delivery limit, or in a delayed exchange, moves without being asked and without
notice. What an honest observer knows of it is a set: the *stations* where it may be. A station is a queue or the line
of a delayed exchange; a `Way` says at which station a message enters and which moves lead on from each, and for what
reason. A message that goes to several queues has one `Token` for each way.

    event                              where the token may be afterwards
    published                          where it enters, and wherever moves without a consumer lead from there
    delivered at a station             there, held; it is a violation if it could not be there
    acknowledged                       nowhere
    rejected                           where that leads, and on from there
    requeued                           there again, and on from there; beyond the delivery limit too
    nack for a publish                 nowhere, or where the way says that refused messages go

A move is one commit, so after a fault a token is where it was at some moment since what is *known* to be on disk, and
only there: the sets since then are united. A publish that is confirmed and was sent after an event makes that event
known, as with acks in `ledger`; but not a reject into a dead letter exchange, which may take its time: that is known when
the dead letter is; and not an ack of a dead letter whose body has a file of its own. What was not confirmed may be nowhere, or where refused messages go, as its nack may be
lost with the broker; transient messages may be nowhere, too.

Judged, with the oracles of `ledger`:

    O1   once all moves without a consumer are over and every station is drained, nothing confirmed is missing
    O2   a delivery where the token cannot be is a duplicate; `redelivered` is there where it must and where it may not
    O3   first deliveries of a publisher's channel at an ordered station come in order, within their group (a priority,
         a delay); with nobody publishing, priorities fall
    O5   what arrives has come by a way it may: the newest entry of x-death names a queue and a reason that lead here
    O6   nothing arrives before its time: TTL, delay, delivery limit

Pure: no sockets, no clock.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from crash.ledger import Id, Ledger, Publication

NOWHERE = ""
"""The place of what has been acknowledged, dropped, or never was."""
EXPIRED, MAXLEN, DUE, CARRIED = "expired", "maxlen", "due", "carried"
"""Moves without a consumer; those out of a delayed exchange (`DUE`), or of a transfer (`CARRIED`), leave no trace in
x-death."""
REJECTED, LIMIT = "rejected", "delivery_limit"
"""Reasons of moves by a consumer."""
EARLY_SLACK = 0.002
"""Seconds: the broker counts in milliseconds, and rounds."""


class Move(NamedTuple):
    """A move from one station to the next, and its reason."""

    source: str
    target: str
    reason: str


class Way:
    """The stations of a message.

    Args:
        entry: where it enters; `NOWHERE` for none.
        moves: all that lead on.
            One to `NOWHERE` says that a message may be dropped though it is confirmed.
        refused: where it goes if the publish is nacked.
        ordered: stations at which first deliveries are in order.
        limit: how often it may be requeued where there is a delivery limit.

    """

    def __init__(
        self,
        entry: str,
        *moves: tuple[str, str, str],
        refused: str = NOWHERE,
        ordered: Iterable[str] = (),
        limit: int = 0,
    ) -> None:
        self.entry, self.refused, self.limit = entry, refused, limit
        self.moves = tuple(Move(*move) for move in moves)
        self.ordered = frozenset(ordered)

    @cached_property
    def stations(self) -> frozenset[str]:
        return frozenset({self.entry, self.refused, *[move.target for move in self.moves]}) - {NOWHERE}

    @cached_property
    def _reach(self) -> dict[str, frozenset[str]]:
        reach = {}
        for station in (*self.stations, NOWHERE):
            found = {station}
            while (
                more := {
                    move.target
                    for move in self.moves
                    if move.source in found and move.reason in {EXPIRED, MAXLEN, DUE, CARRIED}
                }
                - found
            ):
                found |= more
            reach[station] = frozenset(found)
        return reach

    def reach(self, stations: Iterable[str]) -> frozenset[str]:
        """Return the stations where a message from one of these may be, by moves without a consumer."""
        return frozenset().union(*[self._reach[station] for station in stations])

    def after(self, station: str, reason: str) -> str:
        """Return the station that a consumer's move leads to; NOWHERE without dead letters."""
        return next(
            (move.target for move in self.moves if move[0] == station and move.reason == reason), NOWHERE
        )

    def leads(self, queue: str, reason: str, station: str) -> bool:
        """Return whether a dead letter from a queue, for that reason, may be found at a station."""
        return any(
            move.source == queue and move.reason == reason and station in self._behind(move.target)
            for move in self.moves
        )

    def _behind(self, station: str) -> frozenset[str]:
        """The station, or where a delay or a transfer leads from it."""
        found = {station}
        for _ in self.moves:
            found |= {
                move.target for move in self.moves if move[0] in found and move.reason in {DUE, CARRIED}
            }
        return frozenset(found)

    @cached_property
    def unmoved(self) -> frozenset[str]:
        """Stations where a message need not have been a dead letter."""
        return self._behind(self.entry)


class Death(NamedTuple):
    queue: str
    reason: str
    count: int = 1


class Token:
    """One copy of a message on its way."""

    __slots__ = (
        "apart",
        "digest",
        "flag",
        "flag_at",
        "group",
        "held",
        "history",
        "id",
        "late",
        "not_before",
        "persistent",
        "proven",
        "publication",
        "recovered",
        "requeues",
        "seen",
        "way",
    )

    def __init__(self, publication: Publication, way: Way, group: int) -> None:
        self.publication, self.way, self.group = publication, way, group
        self.id, self.digest, self.persistent = publication.id, publication.digest, publication.persistent
        self.history: list[tuple[int, frozenset[str]]] = [(0, way.reach([way.entry]))]
        """Events and the stations where it may be since; the first is known to be on disk."""
        self.held = False
        self.flag: bool | None = False
        """True if its next delivery at `flag_at` must have `redelivered`, False if it must not, None if unknown."""
        self.flag_at = NOWHERE
        """Station that `flag` is about."""
        self.seen: set[str] = set()
        """Stations at which it was delivered."""
        self.proven = False
        """True if it came back from disk, confirmed or not."""
        self.recovered = False
        self.apart = False
        """True if its body has a file of its own, for which no commit waits."""
        self.late = False
        """True if a kill may have left it behind, while those after it moved on."""
        self.requeues = 0
        self.not_before: dict[str, float] = {}
        """Seconds of the epoch, by station."""

    @property
    def places(self) -> frozenset[str]:
        """Stations where it may be now."""
        return self.history[-1][1]

    @property
    def safe(self) -> bool:
        """True if the broker answers for it."""
        return self.proven or self.publication.outcome == "ack"

    @property
    def owed(self) -> bool:
        """True if it has to be somewhere."""
        return self.safe and NOWHERE not in self.places

    def __str__(self) -> str:
        return f"{self.id} (group {self.group}, {'persistent' if self.persistent else 'transient'})"


class Delivery(NamedTuple):
    """A message that a consumer holds; it may stand for several tokens."""

    station: str
    tokens: tuple[Token, ...]
    event: int
    rejected: bool = False


class _Order:
    """Deliveries at a station, of one group of one publisher's channel."""

    __slots__ = ("ever", "in_run", "run")

    def __init__(self) -> None:
        self.ever = self.in_run = self.run = 0


class Journeys:
    """The history of the messages that move, beside the ledger of the same data directory.

    The ledger keeps channels, numbers, verdicts and violations. Where the disk may be full, a message that
    was refused may yet be there.
    """

    def __init__(self, ledger: Ledger, *, may_be_full: bool = False) -> None:
        self.ledger, self.may_be_full = ledger, may_be_full
        self.counts: Counter[str] = Counter()
        """Deliveries by station, and of dead letters (`moved`) and delayed ones (`delayed`); by station those of delayed
        messages that an earlier broker had (`outlived`)."""
        self.latest = 0.0
        """Time when the last message is due or expired, in seconds of the epoch."""
        self._event = 0
        self._tokens: dict[Id, tuple[Token, ...]] = {}
        self._orders: dict[tuple[str, int, int, int], _Order] = {}
        self._falling: dict[str, int] = {}
        self._disturbed: Counter[str] = Counter()

    def _violate(self, oracle: str, text: str, count: str = "") -> None:
        if count:
            self.ledger.counts[count] += 1
        self.ledger.broke(oracle, text)

    # -- publishers -----------------------------------------------------------------------------------------------------

    def published(
        self,
        publication: Publication,
        ways: Sequence[Way],
        *,
        group: int = 0,
        not_before: dict[str, float] | None = None,
        apart: bool = False,
    ) -> None:
        """A message is about to be sent, which the ledger knows already, as one without queues."""
        tokens = tuple(Token(publication, way, group) for way in ways)
        for token in tokens:
            token.not_before = not_before or {}
            token.apart = apart
        self._tokens[publication.id] = tokens
        if not_before:
            self.latest = max(self.latest, *not_before.values())

    def decided(self, publication: Publication, *, ack: bool) -> None:
        """Note the verdict of a publish."""
        if ack and publication.persistent:
            self.ledger.counts["confirmed"] += 1
        if not ack:
            for token in self._tokens.get(publication.id, ()):
                if not token.seen:
                    kept = token.places if self.may_be_full else frozenset[str]()
                    self._note(token, kept | token.way.reach({NOWHERE, token.way.refused}))

    # -- consumers ------------------------------------------------------------------------------------------------------

    def delivered(
        self,
        station: str,
        ident: Id,
        digest: bytes,
        *,
        redelivered: bool,
        deaths: Sequence[Death] = (),
        now: float = 0.0,
    ) -> Delivery | None:
        """A consumer got a message; None if it never should have."""
        self.counts[station] += 1
        tokens = tuple(token for token in self._tokens.get(ident, ()) if station in token.way.stations)
        if not tokens:
            forgotten = self.ledger.was_published(ident)
            self._violate(
                "O2" if forgotten else "O5",
                f"{station}: {ident} "
                f"{'was settled for good, or never came here' if forgotten else 'was never published'}",
                "duplicates" if forgotten else "",
            )
            return None
        self._event += 1
        for token in tokens:
            self._one(token, station, digest, redelivered=redelivered, deaths=deaths, now=now)
        return Delivery(station, tokens, self._event)

    def _one(
        self,
        token: Token,
        station: str,
        digest: bytes,
        *,
        redelivered: bool,
        deaths: Sequence[Death],
        now: float,
    ) -> None:
        if digest != token.digest:
            self._violate("O5", f"{station}: {token} is not what was published")
        if token.held or station not in token.places:
            self._misplaced(token, station)
        self._check_flag(token, station, redelivered=redelivered)
        self._check_deaths(token, station, deaths)
        due = token.not_before.get(station, 0.0)
        is_delayed = not deaths and any(move.reason == DUE for move in token.way.moves)
        self.counts["delayed"] += is_delayed
        self.counts[f"outlived {station}"] += is_delayed and token.id.run < self.ledger.run and not token.seen
        if now + EARLY_SLACK < due:
            self._violate("O6", f"{station}: {token} comes {due - now:.3f} s early", "early")
        self._check_order(token, station, redelivered=redelivered)
        if station in self._falling:
            if token.group > self._falling[station]:
                self._disorder(f"{station}: {token} after one of priority {self._falling[station]}")
            self._falling[station] = token.group
        if token.recovered:
            token.recovered = False
            self.ledger.counts["recovered"] += 1
        if token.id.run < self.ledger.run:
            token.proven = True
            token.history = [(event, places - {NOWHERE}) for event, places in token.history]
        token.seen.add(station)
        token.held = True
        token.flag, token.flag_at = True, station
        self._note(token, frozenset({station}), self._event)

    def _misplaced(self, token: Token, station: str) -> None:
        where = "unacked" if token.held else f"to be found at {sorted(token.places)}"
        self._violate("O2", f"{station}: {token} is delivered, but it is {where}", "duplicates")

    def _check_flag(self, token: Token, station: str, *, redelivered: bool) -> None:
        must = token.flag
        if must and station != token.flag_at:
            must = None
        if must and not redelivered:
            self._violate("O2", f"{station}: {token} is delivered again without redelivered", "unmarked")
        elif must is False and redelivered and not self._disturbed[station]:
            self._violate("O2", f"{station}: {token} is redelivered, but it was never delivered here")

    def _check_deaths(self, token: Token, station: str, deaths: Sequence[Death]) -> None:
        way = token.way
        if not deaths:
            if station not in way.unmoved:
                self._violate("O5", f"{station}: {token} came without x-death")
            return
        self.counts["moved"] += 1
        if station == way.refused and deaths[0].reason == MAXLEN:
            return
        if not way.leads(deaths[0].queue, deaths[0].reason, station):
            self._violate("O5", f"{station}: {token} came from {deaths[0].queue}, {deaths[0].reason}")
        elif deaths[0].reason == LIMIT and self._returns(token, deaths[0].queue) < way.limit:
            self._violate("O6", f"{station}: {token} was given back {token.requeues} times only", "early")

    def _check_order(self, token: Token, station: str, *, redelivered: bool) -> None:
        if station not in token.way.ordered or token.late:
            return
        if redelivered and self._disturbed[station]:
            return  # it had gone to a consumer that was dead, and perhaps to nobody's knowledge
        key = (station, token.id.run, token.id.channel, token.group)
        order = self._orders.setdefault(key, _Order())
        if order.run != self.ledger.run:
            order.run, order.in_run = self.ledger.run, 0
        seq = token.id.seq
        if token.flag and token.flag_at == station:
            return  # it was requeued
        if seq < order.in_run:
            self._disorder(f"{station}: {token} after {order.in_run} in one run")
        elif seq < order.ever and station not in token.seen:
            self._disorder(f"{station}: {token} for the first time after {order.ever}")
        order.in_run = max(order.in_run, seq)
        order.ever = max(order.ever, seq)

    def _disorder(self, text: str) -> None:
        self._violate("O3", text, "disordered")

    def _note(self, token: Token, places: frozenset[str], event: int = 0) -> None:
        if not event:
            self._event += 1
        token.history.append((self._event, places))

    def acked(self, delivery: Delivery) -> Delivery:
        """A consumer sent an ack; returns what `known` wants."""
        return self._settle(delivery, {NOWHERE})

    def rejected(self, delivery: Delivery) -> Delivery:
        """A consumer gave a message up, without requeue."""
        for token in delivery.tokens:
            token.flag = False
        return self._settle(delivery, None)._replace(rejected=True)

    def _settle(self, delivery: Delivery, places: set[str] | None) -> Delivery:
        self._event += 1
        for token in delivery.tokens:
            where = {token.way.after(delivery.station, REJECTED)} if places is None else places
            token.held = False
            self._note(token, token.way.reach(where), self._event)
        return delivery._replace(event=self._event)

    def requeued(self, deliveries: Iterable[Delivery]) -> None:
        """A consumer gave them back, or its channel is closed with them."""
        self._event += 1
        for delivery in deliveries:
            for token in delivery.tokens:
                token.requeues += 1
                token.held = False
                self._note(token, token.way.reach(self._back(token, delivery.station)), self._event)

    def disturbed(self, station: str) -> None:
        """Note that a consumer's connection was cut: deliveries may have been lost until all is drained."""
        self._disturbed[station] += 1
        for tokens in self._tokens.values():
            for token in tokens:
                if token.way.limit and station in token.places and not token.held:
                    self._note(token, token.way.reach(self._back(token, station) | token.places))

    def _returns(self, token: Token, station: str) -> int:
        """Return the number of times that it was given back there, at most."""
        return token.requeues + self.ledger.run - token.id.run + self._disturbed[station]

    def _back(self, token: Token, station: str) -> frozenset[str]:
        """Return the stations where it may go when it is given back."""
        limit = token.way.limit
        over = limit and self._returns(token, station) >= limit
        return frozenset({station, token.way.after(station, LIMIT)} if over else {station})

    def doubted(self, deliveries: Iterable[Delivery]) -> None:
        """Note that the consumer's connection was cut: the broker may have received its last acts, or not."""
        self._event += 1
        for delivery in deliveries:
            for token in delivery.tokens:
                past = frozenset().union(*[places for _, places in token.history])
                self._note(token, token.way.reach(past), self._event)
                token.flag = None

    def known(self, deliveries: Iterable[Delivery]) -> None:
        """Note that the acts of these consumers are on disk for certain, and that the messages were delivered."""
        for delivery in deliveries:
            for token in delivery.tokens:
                if token.apart and delivery.station not in token.way.unmoved:
                    continue  # its original stays until the file of its body is written
                is_moving = delivery.rejected and token.way.after(delivery.station, REJECTED) != NOWHERE
                known = delivery.event - is_moving  # it was delivered; the dead letter may be on its way yet
                while len(token.history) > 1 and token.history[1][0] <= known:
                    del token.history[0]

    # -- stations -------------------------------------------------------------------------------------------------------

    def falling(self, station: str) -> None:
        """Note that publishing and requeueing there has ended: priorities fall, until `finished`."""
        self._falling[station] = 255

    def finished(self) -> None:
        """Note that all moves without a consumer are over and every station is empty: owed messages are lost."""
        self._falling = {}
        self._disturbed.clear()
        for tokens in self._tokens.values():
            for token in tokens:
                if token.owed and not token.held:
                    self._violate(
                        "O1", f"{token} was confirmed, may be at {sorted(token.places)}, and is lost", "lost"
                    )
                if not token.held:
                    self._note(token, frozenset({NOWHERE}))

    def forget(self) -> None:
        """Drop the lines of tokens that are nowhere for certain; should one come back, it is still a violation."""
        over = frozenset({NOWHERE})
        self._tokens = {
            ident: tokens
            for ident, tokens in self._tokens.items()
            if any(len(token.history) > 1 or token.places != over for token in tokens)
        }
        channels = {ident[:2] for ident in self._tokens}
        run = self.ledger.run
        self._orders = {
            key: order for key, order in self._orders.items() if key[1] == run or key[1:3] in channels
        }

    def settle_all(self) -> None:
        """Note that all acts so far are on disk for certain."""
        for tokens in self._tokens.values():
            for token in tokens:
                del token.history[:-1]

    def tokens(self) -> Iterator[Token]:
        """Yield all tokens that are not forgotten."""
        for tokens in self._tokens.values():
            yield from tokens

    def token(self, ident: Id, entry: str) -> Token | None:
        """Return the token of a message that has entered at a station; None if there is none."""
        return next((token for token in self._tokens.get(ident, ()) if token.way.entry == entry), None)

    def gone(self, idents: Iterable[Id]) -> None:
        """Note that these are nowhere for certain, and that this is on disk."""
        self._event += 1
        for ident in idents:
            for token in self._tokens.get(ident, ()):
                token.history = [(self._event, frozenset({NOWHERE}))]

    def owed(self) -> int:
        return sum(token.owed and token.persistent for tokens in self._tokens.values() for token in tokens)

    # -- runs -----------------------------------------------------------------------------------------------------------

    def died(self) -> None:
        """Note that the broker was killed, or its power was cut. Call this before the ledger's `died`."""
        for tokens in self._tokens.values():
            for token in tokens:
                self._restart(token)
                token.late |= token.apart and len(token.places - {NOWHERE}) > 1
                if token.flag is not None:
                    token.flag, token.flag_at = True, next(iter(token.places - {NOWHERE}), NOWHERE)

    def stopped(self) -> None:
        """Note that the broker was stopped in good order. Call this before the ledger's `stopped`."""
        self.settle_all()
        for tokens in self._tokens.values():
            for token in tokens:
                self._restart(token)
                if not token.flag:
                    token.flag = None  # the broker may have sent it and nobody read it

    def _restart(self, token: Token) -> None:
        way = token.way
        past = way.reach(frozenset().union(*[places for _, places in token.history]))
        if not token.persistent:
            past = frozenset({NOWHERE}) | way.reach(  # what a delayed exchange holds is on disk
                station
                for station in past
                if any(move[0] == station and move.reason == DUE for move in way.moves)
            )
        elif not token.safe:  # refused perhaps, and the nack was never heard
            past |= way.reach({NOWHERE, way.refused})
        token.recovered = token.safe and NOWHERE not in past
        if len(past - {NOWHERE}) > 1:
            token.flag = None
        elif token.flag is None:
            token.flag = False
        token.held = False
        self._event += 1
        token.history = [(self._event, past)]
