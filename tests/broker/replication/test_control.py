"""The view of a cluster, and when it may be changed; members that are gone, and logs that are too short."""

from collections.abc import Callable, Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from replicated.memory import MemoryEngine

from leveret.broker.replication.chain import EMPTY, Batch, make_entry, split_batches
from leveret.broker.replication.control import Control, whereabouts
from leveret.broker.replication.engine import (
    ORIGIN,
    Found,
    Members,
    Move,
    Moved,
    Read,
    Release,
)
from leveret.broker.replication.node import (
    LEASE,
    READ,
    Apply,
    Close,
    Forgotten,
    Logged,
    Node,
    Role,
    TooShort,
    Wipe,
)
from leveret.broker.replication.settings import Settings
from leveret.broker.replication.takeover import UNSAFE

SETTINGS = Settings(member_forgotten=100.0)
STEP = 0.2


class Nodes:
    """Nodes with an engine in memory, by a clock that is set."""

    def __init__(
        self, *names: str, engine: MemoryEngine | None = None, settings: Settings = SETTINGS
    ) -> None:
        self.engine = engine or MemoryEngine()
        self.settings = settings
        self.is_stuck = False
        """True while no entry can be applied."""
        self.now = 0.0
        self._ids: Iterator[int] = count(1)
        self.nodes: dict[str, Node] = {}
        self.events: list[object] = []
        for name in names:
            self.add(name)

    def add(self, name: str) -> Node:
        node = Node(
            name, f"{name}:5672", ORIGIN, self.now, lambda: next(self._ids).to_bytes(16, "big"), self.settings
        )
        self.nodes[name] = node
        return node

    def run(self, seconds: float, *names: str) -> None:
        """Let time pass for some of the nodes, or all."""
        until = self.now + seconds
        while self.now < until:
            self.now += STEP
            for name in names or list(self.nodes):
                self._step(self.nodes[name])

    def _step(self, node: Node) -> None:
        node.tick(self.now)
        for lane in (LEASE, READ):
            for _ in range(20):
                request = node.next(lane, self.now)
                if request is None:
                    break
                node.answered(lane, self.engine.perform(request), self.now)
                self._handle(node)
        self._handle(node)

    def _handle(self, node: Node) -> None:
        while node.events:
            found, node.events = node.events, []
            for event in found:
                self.events.append(event)
                if isinstance(event, Apply) and self.is_stuck:
                    continue
                if isinstance(event, Apply):
                    node.applied(self.now)
                elif isinstance(event, Wipe):
                    node.wiped(self.now)

    @property
    def leader(self) -> Node:
        return next(node for node in self.nodes.values() if node.role is Role.LEADING)

    def control(
        self, node: Node, *warnings: str, is_answered: bool = True, later: float = 0.0, **options: Any
    ) -> Control:
        driver = SimpleNamespace(
            node=node, now=self.now + later, append_seconds=0.001, is_answered=is_answered
        )
        return Control(driver, list(warnings), **options)  # type: ignore[arg-type]

    def others(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.role is not Role.LEADING]


@pytest.fixture
def nodes() -> Nodes:
    """Three nodes, of which one leads and all have the whole log."""
    made = Nodes("a", "b", "c")
    made.run(10.0)
    made.leader.submit(Batch(b"rows"))
    made.run(5.0)
    return made


def test_all_nodes_show_the_same_cluster(nodes: Nodes) -> None:
    """The leader is the same for all, and all have what is in the log."""
    leader = nodes.leader.name
    for node in nodes.nodes.values():
        shown = nodes.control(node).described()

        assert {"name": leader, "address": f"{leader}:5672"} == shown["leader"]
        assert shown["is_caught_up"]
        assert [] == shown["problems"]
        assert ["a", "b", "c"] == [each["name"] for each in shown["members"]]
        assert {True} == {each["is_up"] for each in shown["members"]}
        assert (shown["last"], 0) == (shown["applied"], shown["lag_batches"])
        assert "" == nodes.control(node).member_problem()
    assert [1, 0, 0] == sorted(
        (nodes.control(each).figures().role for each in nodes.nodes.values()), reverse=True
    )
    assert f"this node waits; {leader} leads, at {leader}:5672" == whereabouts(nodes.others()[0])


def test_problems_are_told(nodes: Nodes) -> None:
    """Those of the configuration, of the database, and of the log."""
    shown = nodes.control(nodes.leader, "unsafe", is_answered=False).described()

    assert ["unsafe", "the database does not answer"] == shown["problems"]


def test_a_waiting_node_that_hears_nothing_is_no_member(nodes: Nodes) -> None:
    """Its copy may be old by now."""
    assert "the database does not answer" == nodes.control(nodes.others()[0], later=60.0).member_problem()


def test_only_a_node_that_has_caught_up_is_handed_over_to(nodes: Nodes) -> None:
    """Others, and nodes that do not lead, say why not."""
    leader, (one, other) = nodes.leader, nodes.others()

    assert "" == nodes.control(leader).transfer_problem("")
    assert "" == nodes.control(leader).transfer_problem(one.name)
    assert f"{leader.name} leads already" == nodes.control(leader).transfer_problem(leader.name)
    assert "there is no member 'x': a, b, c" == nodes.control(leader).transfer_problem("x")
    assert "leads, at" in nodes.control(one).transfer_problem(other.name)
    nodes.run(20.0, leader.name, other.name)
    assert f"{one.name} is down, or has not caught up yet" == nodes.control(leader).transfer_problem(one.name)
    nodes.run(20.0, leader.name)
    assert "no other node is up and has caught up" == nodes.control(leader).transfer_problem("")


def test_a_node_that_is_far_behind_is_not_handed_over_to(nodes: Nodes) -> None:
    """It is up and has entries of this epoch, but clients would wait for the rest; what came just now does not count."""
    leader, (slow, other) = nodes.leader, nodes.others()
    slow.follower.next_to_apply = lambda _octets: ()  # type: ignore[method-assign]
    last = leader.follower.end.index
    leader.submit(Batch(b"rows"))
    leader.submit(Batch(b"more"))
    nodes.run(SETTINGS.report)
    assert "" == nodes.control(leader).transfer_problem(slow.name)
    nodes.run(3 * SETTINGS.report)

    count = leader.follower.end.index - last
    assert (
        f"{slow.name} is behind by {count} entries of the log: clients would wait until it has applied them"
        == (nodes.control(leader).transfer_problem(slow.name))
    )
    assert "" == nodes.control(leader).transfer_problem(other.name)
    assert "" == nodes.control(leader).transfer_problem("")


def test_a_node_that_is_named_leads_next(nodes: Nodes) -> None:
    """The others leave the lease to it."""
    leader, (_, wanted) = nodes.leader, nodes.others()
    leader.hand_over(wanted.name)
    nodes.run(2.0)

    assert wanted is nodes.leader


def test_a_move_has_time_and_is_tried_once() -> None:
    """A leader waits for the copy of the log longer than for a renewal; without an answer it moves nothing more."""
    nodes = Nodes("a")
    nodes.run(10.0)
    leader = nodes.leader
    move = Move(7, "orders", "log")
    leader.hand_over("", move)
    request = leader.next(LEASE, nodes.now)
    assert isinstance(request, Release)
    assert move == request.move
    nodes.run(60.0)
    assert leader is nodes.leader

    leader.unanswered(LEASE, nodes.now)
    leader.tick(nodes.now)
    assert [Close("the lease was not renewed in time")] == leader.events


def test_where_virtual_hosts_went_is_shown(nodes: Nodes) -> None:
    """By the name that was moved, the last log of each."""
    node = nodes.others()[0]
    node.answered(
        READ,
        Members((), tuple(Moved(number, number, "orders", f"log{number}", False) for number in (1, 2))),
        60.0,
    )

    assert {"orders": "log2"} == nodes.control(node).described()["moved"]


def test_a_log_for_a_virtual_host_is_looked_for(nodes: Nodes) -> None:
    """By a leader, and if the name can be one: the database is asked before anybody is disconnected."""
    told: list[str] = []

    def look(name: str, done: Callable[[str], object]) -> None:
        done(f"{name} is taken")

    nodes.control(nodes.leader, look_for_log=look).look_for_log("new", told.append)
    nodes.control(nodes.leader, look_for_log=look).look_for_log('x"', told.append)
    nodes.control(nodes.others()[0], look_for_log=look).look_for_log("new", told.append)

    assert "new is taken" == told[0]
    assert "the name of the new log must be at most 40 lower-case letters" in told[1]
    assert "leads, at" in told[2]


def test_a_leader_that_is_about_to_hand_over_applies_what_memory_asks_for() -> None:
    """The rest is in the log, from which it catches up as soon as it follows."""
    nodes = Nodes("a", "b", settings=Settings(late_octets=1000, max_batch=100))
    nodes.run(10.0)
    leader, (other,) = nodes.leader, nodes.others()
    applied = leader.follower.position
    leader.apply_late()
    leader.submit(Batch(b"\0" * 900))
    nodes.run(1.0)
    assert applied == leader.follower.position
    leader.submit(Batch(b"\0" * 900))
    nodes.run(1.0)
    assert applied.index < leader.follower.position.index

    leader.submit(Batch(b"\0" * 900))
    leader.hand_over()
    nodes.run(5.0)
    assert other is nodes.leader
    assert other.follower.position == leader.follower.position


def test_a_leader_that_is_about_to_hand_over_tells_when_its_copy_falls_far_behind() -> None:
    """The broker moves no more into the log meanwhile, as what is not applied is in memory."""
    nodes = Nodes("a", settings=Settings(late_octets=1000, max_batch=100))
    nodes.run(10.0)
    leader = nodes.leader
    leader.apply_late()
    nodes.is_stuck = True
    for _ in range(6):
        leader.submit(Batch(b"\0" * 900))
    nodes.run(1.0)
    assert leader.is_behind
    nodes.is_stuck = False
    leader.applied(nodes.now)
    nodes.run(1.0)

    assert not leader.is_behind


def test_a_node_reads_on_while_it_has_not_read_all(nodes: Nodes) -> None:
    """At once, though a read ends with its segment, and so may bring less than it could."""
    waiting = nodes.others()[0]
    entry = make_entry(waiting.follower.end, 1, b"h" * 16, waiting.follower.settled, EMPTY, b"")
    lease = waiting.candidate.seen._replace(last=entry.index + 1)
    found = Found(lease, waiting.follower.end, (entry,), 0, 1)

    nodes.now += STEP
    while not isinstance(waiting.next(READ, nodes.now), Read):
        waiting.answered(READ, Members(waiting.roll.members), nodes.now)
    waiting.answered(READ, found, nodes.now)
    assert Read(entry.index, SETTINGS.read_octets) == waiting.next(READ, nodes.now)


def test_a_member_that_is_down_is_forgotten_when_asked(nodes: Nodes) -> None:
    """Not one that is up, nor one that is none."""
    leader, (lost, _) = nodes.leader, nodes.others()

    assert "stop it first" in nodes.control(leader).forget_problem(lost.name)
    assert "there is no member 'x'" == nodes.control(leader).forget_problem("x")
    left = [name for name in nodes.nodes if name != lost.name]
    nodes.run(20.0, *left)
    assert "" == nodes.control(leader).forget_problem(lost.name)
    leader.forget(lost.name)
    nodes.run(5.0, *left)
    assert Forgotten(lost.name) in nodes.events
    assert left == [each.name for each in leader.roll.members]
    assert left == list(nodes.engine.visible.members)


def test_a_member_that_is_not_seen_for_long_is_forgotten(nodes: Nodes) -> None:
    """After the time of the settings, and not before; it comes back as a new one."""
    lost = nodes.others()[0]
    left = [name for name in nodes.nodes if name != lost.name]
    nodes.run(SETTINGS.member_forgotten - 5.0, *left)
    assert lost.name in nodes.engine.visible.members
    nodes.run(10.0, *left)
    assert left == list(nodes.engine.visible.members)
    nodes.run(5.0)
    assert ["a", "b", "c"] == sorted(nodes.engine.visible.members)


def test_a_leader_that_was_stopped_for_a_while_does_not_take_its_log_for_too_short(nodes: Nodes) -> None:
    """All copies have its last entries, which it has not read as others do."""
    leader = nodes.leader
    for _ in range(30):
        leader.submit(Batch(b"more"))
        nodes.run(0.1)
        applied = min(each.follower.position.index for each in nodes.nodes.values())
        if leader.candidate.seen is not None and leader.candidate.seen.last < applied:
            break
    else:
        pytest.fail("the leader has always read its own entries")
    nodes.now += 10.0
    leader.tick(nodes.now)
    leader.tick(nodes.now)
    assert leader.role is Role.WAITING
    assert not leader.is_refused(nodes.now)
    assert not any(isinstance(each, TooShort) for each in [*nodes.events, *leader.events])


def test_a_log_that_became_too_short_is_told_once_and_accepted_by_an_operator(nodes: Nodes) -> None:
    """Nobody leads before, and all go on with what it has after."""
    backup = nodes.engine.visible.copy()
    for _ in range(3):
        nodes.leader.submit(Batch(b"more"))
        nodes.run(5.0)
    nodes.engine.visible = nodes.engine.standby = backup
    nodes.now += 10.0  # for which the database was away
    nodes.run(20.0)

    assert 3 == len([each for each in nodes.events if isinstance(each, TooShort)])
    assert 3 == len(nodes.others()), "a node leads"
    node = nodes.nodes["b"]
    shown = nodes.control(node).described()
    assert "leveret ctl cluster_accept_log" in shown["problems"][0]
    node.accept_log()
    nodes.run(20.0)
    assert nodes.leader is node
    assert 1 == len({each.follower.position for each in nodes.nodes.values()})
    assert not node.is_refused(nodes.now)


def test_a_log_without_entries_is_accepted_too(nodes: Nodes) -> None:
    """As of a database that was made anew."""
    nodes.engine.visible = nodes.engine.standby = MemoryEngine().visible
    nodes.now += 10.0
    nodes.run(20.0)
    assert 3 == len(nodes.others()), "a node leads"
    nodes.nodes["c"].accept_log()
    nodes.run(20.0)

    assert nodes.leader is nodes.nodes["c"]


def test_a_database_without_standbys_is_told() -> None:
    """The lease that it gives does not count."""
    nodes = Nodes("a", engine=MemoryEngine(standbys=""))
    nodes.run(20.0)

    shown = nodes.control(nodes.nodes["a"]).described()
    assert [UNSAFE] == shown["problems"]
    assert shown["leader"] is None


def test_a_node_that_need_not_be_synchronous_leads_without_standbys() -> None:
    """As `replication.require_synchronous` says with `false` and `engine`."""
    nodes = Nodes(
        "a", engine=MemoryEngine(standbys=""), settings=SETTINGS._replace(require_synchronous=False)
    )
    nodes.run(20.0)
    ticket = nodes.leader.submit(Batch(b"rows"))
    nodes.run(2.0)

    assert any(isinstance(event, Logged) and ticket in event.tickets for event in nodes.events)
    assert [] == nodes.control(nodes.leader).described()["problems"]


def test_a_leader_whose_standbys_are_taken_away_settles_nothing(nodes: Nodes) -> None:
    """It says why, leads no more after a few seconds, and goes on by itself once there are some."""
    leader = nodes.leader
    nodes.engine.standbys = ""
    ticket = leader.submit(Batch(b"rows"))
    nodes.run(1.0)
    shown = nodes.control(leader).described()
    assert [UNSAFE] == shown["problems"]
    nodes.run(20.0)
    assert 3 == len(nodes.others()), "a node leads"
    assert not any(isinstance(event, Logged) and ticket in event.tickets for event in nodes.events)
    nodes.engine.standbys = "ANY 1 (s)"
    nodes.run(20.0)
    assert nodes.leader


def test_batches_are_grouped_up_to_a_size() -> None:
    """That of `replication.max_batch`; a larger one goes alone."""
    nodes = Nodes("a", settings=SETTINGS._replace(max_batch=100))
    nodes.run(20.0)
    last = nodes.engine.visible.lease.last
    for octets in (30, 30, 30, 200, 30):
        nodes.leader.submit(Batch(bytes(octets)))
    nodes.run(2.0)

    entries = [nodes.engine.visible.entries[index].payload for index in range(last + 1, last + 5)]
    assert [[30, 30], [30], [200], [30]] == [
        [len(each.payload) for each in split_batches(payload)] for payload in entries
    ]


def test_a_leader_whose_disk_takes_nothing_hands_over(nodes: Nodes) -> None:
    """After the time of `replication.stall_timeout`; what it has logged is not lost."""
    leader = nodes.leader
    nodes.is_stuck = True
    leader.submit(Batch(b"rows"))
    nodes.run(SETTINGS.stall_timeout - 1.0, leader.name)
    assert leader.role is Role.LEADING
    assert 9.0 < nodes.control(leader).described()["lag_seconds"] + 1.0
    nodes.run(2.0, leader.name)
    assert leader.role is Role.WAITING
    assert any(isinstance(event, Close) for event in nodes.events)
    nodes.is_stuck = False
    others = [name for name in nodes.nodes if name != leader.name]
    nodes.run(5.0, *others)
    assert nodes.leader is not leader
