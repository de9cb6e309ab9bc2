"""Control runs of `cycles`: each breaks what the durability of a replicated broker rests on, and must be caught."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from processes.running import BROKER
from replicated.cluster import SECONDS, Cluster, made_cluster
from replicated.database import POLL
from replicated.numbered import Publisher
from replicated.wires import UP, Wire

CHANGED = Path(__file__).parent / "changed"
MUTANTS = Path(__file__).parents[1] / "crash" / "mutants"
LAZY = "wal_writer_delay = 10s\n"
"""A server that writes its log as late as it may."""
SLOW_SECONDS = 0.7
SERVED_SECONDS = 60.0
"""Time for a node to lead again."""


def program(*modules: str) -> tuple[str, ...]:
    """Return words for the interpreter: a broker that is changed by modules of `changed/`, or mutants."""
    imports = f"import sys; sys.path += {[str(CHANGED), str(MUTANTS)]!r}; import {', '.join(modules)}; "
    return ("-c", imports + "from leveret.broker.cli.main import main; main()")


def primary_lost(cluster: Cluster, publisher: Publisher) -> None:
    cluster.database.kill(cluster.database.primary)
    cluster.nodes.kill_all(wiped=True)
    cluster.database.promote()
    cluster.nodes.start_all()


def lagging_promoted(cluster: Cluster, publisher: Publisher) -> None:
    """Lose the primary and all copies, and promote a standby that is behind."""
    database = cluster.database
    behind = database.standbys[0]
    database.follow(behind, "host=/nowhere")
    publisher.goes_on()
    publisher.goes_on()
    database.kill(database.primary)
    cluster.nodes.kill_all(wiped=True)
    database.promote(behind)
    cluster.nodes.start_all()


def late_append(cluster: Cluster, publisher: Publisher) -> None:
    """Deliver an append of a former leader after another node has taken the lease, before that one has appended."""
    nodes, wires, database = cluster.nodes, cluster.wires, cluster.database
    assert wires is not None
    leader = nodes.leader()
    epoch, _, last = database.lease(database.primary)
    wires.do(leader, lambda wire: wire.hold(UP))  # the next append of the publisher's is held there
    for name in nodes.ports:
        if name != leader:
            wires.do(name, lambda wire: setattr(wire, "delay", SLOW_SECONDS))
    deadline = time.monotonic() + SECONDS
    while database.lease(database.primary)[0] == epoch:
        assert time.monotonic() < deadline, "no node takes the lease"
        time.sleep(POLL / 10)
    wires.do(leader, Wire.release)
    while database.lease(database.primary)[2] == last:
        assert time.monotonic() < deadline, "nothing is appended"
        time.sleep(POLL)
    wires.heal()
    nodes.leader()
    time.sleep(SLOW_SECONDS)  # something may be confirmed
    nodes.kill_all(wiped=True)
    nodes.start_all()


def leader_killed(cluster: Cluster, publisher: Publisher) -> None:
    """Kill the leader; the client repeats to the next one what it has seen a confirm for."""
    cluster.nodes.kill(cluster.nodes.leader())
    publisher.goes_on()


class Control(NamedTuple):
    """A change that breaks durability, and the harm that shows it."""

    change: str
    harm: Callable[[Cluster, Publisher], None]
    configuration: str = ""


CONTROLS = {
    "commits that no standby waits for": Control("unsynchronous", primary_lost, LAZY),
    "a standby promoted that is behind": Control("", lagging_promoted),
    "no comparison of epochs": Control("no_epoch_check", late_append),
    "ids in no commit": Control("id_unwritten", leader_killed),
}
SOUND = {
    "primary lost": Control("", primary_lost, LAZY),
    "an append that comes late": Control("", late_append),
}
"""Control runs of an unchanged system, which must lose nothing."""


def run_control(name: str) -> list[str]:
    control = {**CONTROLS, **SOUND}[name]
    changed = program(control.change) if control.change else BROKER
    with made_cluster(wired=True, program=changed, configuration=control.configuration) as cluster:
        publisher = Publisher(cluster.nodes)
        found: list[str] = []
        try:
            publisher.goes_on()
            control.harm(cluster, publisher)
            cluster.nodes.leader(SERVED_SECONDS)
        except (AssertionError, TimeoutError) as error:
            found.append(f"not served again: {str(error).splitlines()[0]}")
        finally:
            with contextlib.suppress(AssertionError):
                publisher.end()
        if not found:
            found += publisher.judge()
    return found
