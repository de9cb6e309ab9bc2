"""A queue that holds messages beside a model with a clock: steps in any order, kills, clocks that are set, operators.

`make campaign NAME=hold-model` runs it long.
"""

import logging
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from doubles.fakes import Client, DiskNode, basic_consume, settle
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from services.api import OPERATOR, Api

from leveret.broker.amqp.commands import Basic, Confirm, make
from leveret.broker.config.config import StorageConfig
from leveret.broker.queue import due_line
from leveret.storage.delayed import Window
from leveret.storage.store.check import Check, Finding, Stats

ARGUMENTS = {"x-allow-hold": ("bool", True)}
ACTIONS = st.sampled_from(("release", "cancel", "reschedule", "move", "copy"))
QUEUES = ("q", "other")
APART = 200  # bytes from which a body is stored apart: every second one
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Folder of the data: each example starts the broker about forty times, and half of the time was the disk's."""
ROUNDS = 3
"""Rounds of the loop without a change after which nothing more happens: one may only begin, or end, a read.

A message that is got after a kill may have to be read first, and the next one by another read."""


class Holds(RuleBasedStateMachine):
    """Two queues that hold; `pending` has the times of held messages by queue and number, `ready` the others."""

    def __init__(self) -> None:
        super().__init__()
        self.window = patch.object(due_line, "Window", partial(Window, size=2))
        self.window.start()
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY))
        self.config = StorageConfig(sync=False, check_invariants=True, embed_below=APART)
        self.node = DiskNode(self.folder, storage=self.config)
        self.number = 0
        self.pending: dict[tuple[str, int], int] = {}
        self.ready: list[tuple[str, int]] = []
        self.connected: Client | None = None
        for name in QUEUES:
            self.client.declare(name, durable=True, arguments=ARGUMENTS)
        settle(self.node)
        self.publish("q", [90, 30, 60, 20, 80, 90], safe=True)

    @property
    def client(self) -> Client:
        """A client in confirm mode; after a kill it connects when it is needed, as most kills follow another one."""
        if self.connected is None:
            self.connected = Client(self.node)
            self.connected.send(make(Confirm.Select, False))
            settle(self.node)
        return self.connected

    def queue(self, name: str) -> Any:
        return self.node.vhosts["/"].queues[name]

    def calm(self) -> None:
        """Let everything happen that can happen now, and tell the model."""
        counts: list[list[tuple[int, int]]] = []
        while len(counts) < ROUNDS or counts[-ROUNDS:] != ROUNDS * counts[-1:]:
            settle(self.node)
            self.node.clock.run()
            self.node.pass_time(0)
            queues = map(self.queue, QUEUES)
            counts.append([(queue.held_count, queue.ready_count) for queue in queues])
        now = self.node.wall_clock()
        due = [key for key, at in self.pending.items() if at <= now]
        self.ready += due
        for key in due:
            del self.pending[key]

    @rule(
        name=st.sampled_from(QUEUES),
        delays=st.lists(st.integers(1, 90), min_size=1, max_size=6),
        safe=st.booleans(),
    )
    def publish(self, name: str, delays: list[int], safe: bool) -> None:
        """Publish messages, whose publisher hears; or kill the broker before that, and they are gone."""
        for delay in delays:
            self.number += 1
            at = self.node.wall_clock() + delay
            body = (b"%d " % self.number).ljust(self.number % 2 * APART)
            self.client.publish(
                name, body, headers={"x-deliver-at": ("long", at), "n": ("long", self.number)},
                delivery_mode=2,
            )  # fmt: skip
            if safe:
                self.pending[name, self.number] = at
        if safe:
            self.calm()
        else:
            self.kill()

    @rule(milliseconds=st.integers(-40, 60), then_kill=st.booleans())
    def set_clock(self, milliseconds: int, then_kill: bool) -> None:
        """Let time pass, or set the clock back; what is due may not be on disk when the broker is killed."""
        self.node.pass_time(milliseconds)
        if then_kill:
            self.kill()
        self.calm()

    @rule(milliseconds=st.integers(0, 60), count=st.integers(1, 5))
    def take(self, milliseconds: int, count: int) -> None:
        """Let time pass, and take messages for good, also those released since the last commit."""
        self.node.pass_time(milliseconds)
        self.client.take()
        for _ in range(count):
            self.client.send(make(Basic.Get, 0, "q", True))
        self.calm()
        for each in self.client.take():
            if isinstance(each.method, Basic.GetOk):
                self.ready.remove(("q", int(each.body)))

    @rule()
    def kill(self) -> None:
        """Kill the broker: what is on disk is there."""
        self.check()
        self.node = self.node.killed()
        self.connected = None
        self.calm()

    def check(self) -> Stats | None:
        """Each body on disk has its row or record, and each reference its body; returns what there is."""
        findings: list[Finding] = []
        self.node.disk.close()
        stats = Check(self.folder, findings.append).run()
        assert [] == findings, findings
        return stats

    @rule(
        action=ACTIONS,
        least=st.integers(0, 12),
        most=st.integers(5, 30),
        later=st.integers(-10, 60),
        then_kill=st.booleans(),
    )
    def act(self, action: str, least: int, most: int, later: int, then_kill: bool) -> None:
        """Have an operator act on held messages of the first queue, and kill the broker when that is on disk."""
        body: dict[str, Any] = {
            "action": action,
            "where": f"headers.n >= {least} and headers.n <= {least + most}",
        }
        now = self.node.wall_clock()
        if action == "reschedule":
            body["to"] = max(0, now + later)
        if action in {"move", "copy"}:
            body["destination"] = "other"
        answer = Api(self.node, OPERATOR).post("leveret/queues/%2F/q/held", body)
        assert 200 == answer.status
        chosen = [key for key in self.pending if key[0] == "q" and least <= key[1] <= least + most]
        assert len(chosen) == answer.body["done"]
        for key in chosen:
            at = self.pending[key]
            if action in {"move", "copy"}:
                if ("other", key[1]) in self.pending:  # there are two of it
                    self.number += 1
                    self.pending["other", -self.number] = at
                else:
                    self.pending["other", key[1]] = at
            if action in {"move", "cancel"}:
                del self.pending[key]
            elif action != "copy":
                self.pending[key] = body.get("to", now)
        self.calm()
        if then_kill:
            self.kill()

    @rule()
    def purge(self) -> None:
        count = self.queue("other").purge()
        held = [key for key in self.pending if key[0] == "other"]
        gone = [key for key in self.ready if key[0] == "other"]
        assert len(held) + len(gone) == count
        for key in held:
            del self.pending[key]
        self.ready = [key for key in self.ready if key[0] == "q"]
        self.calm()

    @invariant()
    def counts(self) -> None:
        """Each queue holds what is not due, no more and no less, and the rest is ready."""
        for name in QUEUES:
            held = sum(key[0] == name for key in self.pending)
            ready = sum(key[0] == name for key in self.ready)
            queue = self.queue(name)
            assert (held, ready) == (queue.held_count, queue.ready_count)

    def teardown(self) -> None:
        """Each message comes once, after all others that are due earlier."""
        try:
            self.node.pass_time(10_000)
            self.calm()
            assert not self.pending
            for name in QUEUES:
                self.client.take()
                self.client.send(basic_consume(name, name, no_ack=True))
                for _ in range(self.number + 10):
                    settle(self.node)
                    self.node.clock.run()
                found = [
                    int(each.body) for each in self.client.take() if isinstance(each.method, Basic.Deliver)
                ]
                expected = [number for queue, number in self.ready if queue == name]
                assert len(expected) == len(found)
                assert {number for number in expected if number > 0} == set(found)
            self.calm()
            stats = self.check()
            assert stats is not None
            assert (0, 0, 0) == (stats.messages, stats.bodies, stats.delayed)
        finally:
            self.window.stop()
            self.node.disk.close()
            shutil.rmtree(self.folder)


def run(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        Holds,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_hold_is_as_its_model():
    """Whatever happens in whatever order, no message is early, lost or delivered twice."""
    run(25, 30)


if __name__ == "__main__":
    logging.disable()
    run(int(sys.argv[1]), int(sys.argv[2]))
    print(f"{sys.argv[1]} examples of at most {sys.argv[2]} steps: no difference")
