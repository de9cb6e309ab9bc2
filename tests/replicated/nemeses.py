"""The failures of `make campaign NAME=replication-cycles`: each begins, lasts a while, and ends.

A nemesis is a generator: it does its harm, yields, and undoes it. It gets the field: the cluster, the node that leads
when the cycle begins, a publisher that notes its confirms, and a list for what must not have happened meanwhile.
"""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from replicated.cluster import Cluster
from replicated.database import Database, NotComparableError
from replicated.numbered import Publisher
from replicated.wires import DOWN, UP, Wire, Wires

ANSWERED_SECONDS = 3.0
"""Time within which a client has read a confirm that was on its way, on a machine that is busy."""
ENDS = (0, -signal.SIGTERM)
"""Exit codes after SIGTERM; the latter of a node that was deposed and has just begun again."""
NODE, WAY, DATABASE, LOG = "node", "way", "database", "log"


@dataclass
class Field:
    """The victims of one cycle, and those who watch."""

    cluster: Cluster
    leader: str
    publishers: Sequence[Publisher]
    random: Random
    wrong: list[str] = field(default_factory=list)

    @property
    def database(self) -> Database:
        return self.cluster.database

    @property
    def ways(self) -> Wires:
        assert self.cluster.wires is not None
        return self.cluster.wires

    def standby(self) -> str:
        return self.random.choice([name for name in self.database.standbys if self.database.is_running(name)])

    def nothing_is_confirmed(self) -> Callable[[], None]:
        """Return what notes an objection if a message is confirmed, until it is called, that is sent from now on.

        The one that is on its way now may be on a standby; its confirm comes soon, or not before there is a standby.
        """
        since = time.monotonic()
        begun = [(each, len(each.confirmed)) for each in self.publishers]

        def check() -> None:
            late = [
                f"number {number}, sent {sent - since:+.3f} s and confirmed {answered - since:+.3f} s after that"
                for each, before in begun
                for number, (sent, answered) in enumerate(
                    zip(each.sent[before:], each.answered[before:], strict=False), before + 1
                )
                if sent > since or answered > since + ANSWERED_SECONDS
            ]
            if late:
                self.wrong.append(f"{len(late)} messages were confirmed without a standby: {late[0]}")

        return check


Harm = Callable[[Field], Iterator[None]]


# -- nodes ------------------------------------------------------------------------------------------------------------


def kill(field: Field) -> Iterator[None]:
    """Kill -9 of the leader."""
    field.cluster.nodes.kill(field.leader)
    yield
    field.cluster.nodes.start(field.leader)


def kill_wiped(field: Field) -> Iterator[None]:
    """Kill the leader, whose disk is lost, too."""
    field.cluster.nodes.kill(field.leader, wiped=True)
    yield
    field.cluster.nodes.start(field.leader)


def pause(field: Field) -> Iterator[None]:
    """Stop the leader, and let it go on."""
    field.cluster.nodes.signal(field.leader, signal.SIGSTOP)
    yield
    field.cluster.nodes.signal(field.leader, signal.SIGCONT)


def hand_over(field: Field) -> Iterator[None]:
    """SIGTERM to the leader."""
    if (code := field.cluster.nodes.end(field.leader)) not in ENDS:
        field.wrong.append(f"{field.leader} ended with {code}")
    yield
    field.cluster.nodes.start(field.leader)


def wipe_waiting(field: Field) -> Iterator[None]:
    """Kill a node that waits, whose disk is lost, too."""
    nodes = field.cluster.nodes
    name = field.random.choice([name for name in nodes.ports if name != field.leader])
    nodes.kill(name, wiped=True)
    yield
    nodes.start(name)


def kill_all(field: Field) -> Iterator[None]:
    """Kill all nodes at once."""
    field.cluster.nodes.kill_all(wiped=False)
    yield
    field.cluster.nodes.start_all()


def wipe_all(field: Field) -> Iterator[None]:
    """Kill all nodes at once, and all their disks are lost."""
    field.cluster.nodes.kill_all(wiped=True)
    yield
    field.cluster.nodes.start_all()


# -- ways to the database ---------------------------------------------------------------------------------------------


def cut(field: Field) -> Iterator[None]:
    """Nothing passes between the leader and the database, in either direction; it arrives late."""
    field.ways.do(field.leader, lambda wire: wire.hold(UP, DOWN))
    yield
    field.ways.do(field.leader, Wire.release)


def cut_off(field: Field) -> Iterator[None]:
    """Connections of the leader break, and are refused."""

    def harm(wire: Wire) -> None:
        wire.is_cut = True
        wire.reset()

    field.ways.do(field.leader, harm)
    yield
    field.ways.do(field.leader, Wire.release)


def cut_off_all(field: Field) -> Iterator[None]:
    """Nothing passes between any node and the database."""
    for name in field.ways.wires:
        field.ways.do(name, lambda wire: wire.hold(UP, DOWN))
    yield
    field.ways.heal()


def requests_late(field: Field) -> Iterator[None]:
    """Requests of the leader arrive late: after another node leads, if that takes long enough."""
    field.ways.do(field.leader, lambda wire: wire.hold(UP))
    yield
    field.ways.do(field.leader, Wire.release)


def answers_late(field: Field) -> Iterator[None]:
    field.ways.do(field.leader, lambda wire: wire.hold(DOWN))
    yield
    field.ways.do(field.leader, Wire.release)


def answers_lost(field: Field) -> Iterator[None]:
    """Answers to the leader are lost, again and again, with their connections."""
    rounds = field.random.randint(1, 4)
    for _ in range(rounds):
        field.ways.do(field.leader, lambda wire: setattr(wire, "swallows", True))
        time.sleep(field.random.uniform(0.05, 0.6))

        def mend(wire: Wire) -> None:
            wire.reset()
            wire.release()

        field.ways.do(field.leader, mend)
        time.sleep(field.random.uniform(0.0, 0.6))
    yield


def slow(field: Field) -> Iterator[None]:
    """Each piece takes up to 0.3 s more."""
    delay = field.random.uniform(0.02, 0.3)
    field.ways.do(field.leader, lambda wire: setattr(wire, "delay", delay))
    yield
    field.ways.do(field.leader, Wire.release)


# -- the database -----------------------------------------------------------------------------------------------------


def promote(field: Field) -> Iterator[None]:
    """The primary is lost; after a while the standby that has most is promoted."""
    field.database.kill(field.database.primary)
    yield
    field.database.promote()


def not_comparable(field: Field) -> Iterator[None]:
    """The primary is lost while a standby is down: none is promoted, nothing is confirmed, until it is back."""
    database = field.database
    down = field.standby()
    database.kill(down)
    time.sleep(field.random.uniform(0.2, 1.0))
    database.kill(database.primary)
    try:
        database.promote()
    except NotComparableError:
        pass
    else:
        field.wrong.append("a standby was promoted though another one could not be asked")
    check = field.nothing_is_confirmed()
    yield
    check()
    database.start(down)
    database.promote()


def primary_returns(field: Field) -> Iterator[None]:
    """The primary is lost, a standby promoted, and the former primary comes back beside it: it answers no append."""
    database = field.database
    former = database.primary
    database.kill(former)
    database.promote()
    database.start(former)
    before = database.lease(former)
    yield
    if (after := database.lease(former)) != before:
        field.wrong.append(f"the former primary has changed its lease: {before}, {after}")
    database.kill(former)


def primary_crashes(field: Field) -> Iterator[None]:
    """The primary is killed and started again: it may show what no standby has."""
    primary = field.database.primary
    field.database.kill(primary)
    yield
    field.database.start(primary)


def restart(field: Field) -> Iterator[None]:
    """The primary is stopped in good order and started again."""
    field.database.restart(field.database.primary)
    yield


def standby_down(field: Field) -> Iterator[None]:
    name = field.standby()
    field.database.kill(name)
    yield
    field.database.start(name)


def standbys_down(field: Field) -> Iterator[None]:
    """Both standbys are down: nothing is confirmed."""
    database = field.database
    names = database.standbys
    for name in names:
        database.kill(name)
    check = field.nothing_is_confirmed()
    yield
    check()
    for name in names:
        database.start(name)


def standby_lags(field: Field) -> Iterator[None]:
    """One standby receives nothing for a while."""
    field.database.lag(field.standby())
    yield
    field.database.resume()


def lagging_not_promoted(field: Field) -> Iterator[None]:
    """One standby is behind when the primary is lost: the other one is promoted."""
    database = field.database
    name = field.standby()
    database.follow(name, "host=/nowhere")
    time.sleep(field.random.uniform(0.5, 2.0))
    database.kill(database.primary)
    yield
    is_behind = all(
        database.position(name) < database.position(each) for each in database.standbys if each != name
    )
    if database.promote() == name and is_behind:  # without a commit meanwhile it is not
        field.wrong.append("the standby that is behind was promoted")


def disk_full(field: Field) -> Iterator[None]:
    primary = field.database.primary
    field.database.fill(primary)
    yield
    field.database.relieve(primary)


def move(field: Field) -> Iterator[None]:
    """A virtual host is moved to a log of its own, while something else is done."""
    field.cluster.nodes.begin_move()
    yield


class Nemesis(NamedTuple):
    """A failure.

    Attributes:
        harm: what it does.
        part: of the system that it is done to; a pair is of two parts.
        least: seconds that it lasts at least.
        most: seconds that it lasts at most.

    """

    harm: Harm
    part: str
    least: float
    most: float

    @property
    def name(self) -> str:
        return self.harm.__name__.replace("_", "-")


NEMESES = (
    Nemesis(kill, NODE, 0.0, 7.0),
    Nemesis(kill_wiped, NODE, 0.0, 7.0),
    Nemesis(pause, NODE, 0.3, 9.0),
    Nemesis(hand_over, NODE, 0.0, 1.0),
    Nemesis(wipe_waiting, NODE, 0.0, 1.0),
    Nemesis(kill_all, NODE, 0.0, 1.0),
    Nemesis(wipe_all, NODE, 0.0, 1.0),
    Nemesis(cut, WAY, 0.5, 9.0),
    Nemesis(cut_off, WAY, 0.5, 9.0),
    Nemesis(cut_off_all, WAY, 0.5, 9.0),
    Nemesis(requests_late, WAY, 3.0, 9.0),
    Nemesis(answers_late, WAY, 3.0, 9.0),
    Nemesis(answers_lost, WAY, 0.0, 0.0),
    Nemesis(slow, WAY, 2.0, 5.0),
    Nemesis(promote, DATABASE, 0.0, 4.0),
    Nemesis(not_comparable, DATABASE, 1.0, 5.0),
    Nemesis(primary_returns, DATABASE, 2.0, 8.0),
    Nemesis(primary_crashes, DATABASE, 0.0, 4.0),
    Nemesis(restart, DATABASE, 0.0, 0.0),
    Nemesis(standby_down, DATABASE, 1.0, 5.0),
    Nemesis(standbys_down, DATABASE, 1.0, 6.0),
    Nemesis(standby_lags, DATABASE, 1.0, 5.0),
    Nemesis(lagging_not_promoted, DATABASE, 0.0, 3.0),
    Nemesis(disk_full, DATABASE, 2.0, 8.0),
)
MOVE = Nemesis(move, LOG, 0.0, 3.0)
"""Beside what a cycle does, of machines with several logs."""
MOVE_EVERY = 3
SINGLE_SHARE = 0.4
"""Share of cycles with one nemesis."""


def schedule(seed: int, logs: int = 1) -> Iterator[tuple[Nemesis, ...]]:
    """Yield what each cycle does: each nemesis in turn, alone or with one of another part; without end.

    With several logs a move begins before, or after that, in each third cycle.
    """
    for number, chosen in enumerate(_schedule(seed)):
        if logs == 1 or number % MOVE_EVERY != 1:
            yield chosen
        else:
            yield (MOVE, *chosen) if number % 2 else (*chosen, MOVE)


def _schedule(seed: int) -> Iterator[tuple[Nemesis, ...]]:
    random = Random(seed)
    while True:
        order = list(NEMESES)
        random.shuffle(order)
        for each in order:
            if random.random() < SINGLE_SHARE:
                yield (each,)
            else:
                others = [other for other in NEMESES if other.part != each.part]
                yield (each, random.choice(others))


def done_to(field: Field, chosen: tuple[Nemesis, ...]) -> None:
    """Let nemeses do their harm, beside each other, and undo it; the database and all ways are whole after that.

    All nodes run after that, too.
    """
    random = field.random
    under_way = []
    for each in chosen:
        harm = each.harm(field)
        next(harm)
        under_way.append((harm, time.monotonic() + random.uniform(each.least, each.most)))
        if len(under_way) < len(chosen):
            time.sleep(random.uniform(0.0, 2.0))
    for harm, until in sorted(under_way, key=lambda pair: pair[1]):
        time.sleep(max(0.0, until - time.monotonic()))
        for _ in harm:
            raise AssertionError("a nemesis yields once")
    field.ways.heal()
    field.database.heal()
    field.cluster.nodes.start_all()
