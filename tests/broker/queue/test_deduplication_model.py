"""Queues that take each message once, beside a model: nothing is lost, no id outlives its message, and few come twice."""

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from doubles.fakes import Client, DiskNode, set_policy
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from leveret.broker.amqp.commands import Basic, Confirm, Tx, make
from leveret.broker.amqp.properties import Properties
from leveret.broker.queue.id_log import IdLog

MODES = {
    "window": {"deduplicate-for": 3_600_000},
    "queued": {},
    "running": {},
    "running for a time": {"deduplicate-for": 3_600_000},
}
SOURCES = ["message_id", "header:other"]
IDS = st.sampled_from("ab")
OTHERS = {"a": "b", "b": "a"}
"""The header of each id: one source has the same messages for repeats as the other, by other ids."""


class Sent(NamedTuple):
    """A message that the queue has taken, by the order in which it came."""

    number: int
    text: str
    stored: bool


class Once(RuleBasedStateMachine):
    """One queue and its publishers and consumers, over kills."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="once-"))
        self.node = DiskNode(self.directory)
        self.mode, self.source = "running", "message_id"
        client = Client(self.node)
        client.declare("q", durable=True)
        self._set_policy("running")
        self.node.commit()
        self._connect()
        self.number = 0
        self.ready: list[Sent] = []
        self.unacked: dict[int, Sent] = {}
        self.delivered: set[int] = set()
        """Messages that were delivered once."""
        self.owed: set[str] = set()
        """Ids of which a message was promised to be safe, and not settled since."""
        self.settled: set[str] = set()
        self.safely_settled: set[str] = set()
        """Those of the last commit."""
        self.events: list[tuple[str, str]] = []
        """Ends and stored publishes that are safe with the next commit."""
        self.on_disk: list[Sent] = []
        self.is_timed = False
        """True if ids may be known for a time."""
        self.is_exact = True
        """False once messages of another mode may be there, or those whose ids have ended."""

    def teardown(self) -> None:
        try:
            self.drain()
        finally:
            self.node.disk.close()
            shutil.rmtree(self.directory)

    def _connect(self) -> None:
        self.client, self.publisher, self.worker = Client(self.node), Client(self.node), Client(self.node)
        self.publisher.send(Confirm.Select())
        self.worker.send(Tx.Select())

    @property
    def queue(self):
        return self.node.vhosts["/"].queues["q"]

    def _set_policy(self, mode: str) -> None:
        definition = {"deduplicate": self.source, "deduplicate-mode": mode.partition(" ")[0], **MODES[mode]}
        set_policy(self.node.vhosts["/"].policies, "p", "^q$", definition)
        self.node.run_turn()

    def _send(self, client: Client, text: str, *, stored: bool) -> Sent:
        self.number += 1
        headers = {"other": ("longstr", OTHERS[text])}
        client.publish("q", b"%d" % self.number, message_id=text, headers=headers, delivery_mode=1 + stored)
        return Sent(self.number, text, stored)

    def _took(self, sent: Sent, repeated: int) -> None:
        is_taken = self.queue.tally.repeated == repeated
        if is_taken:
            self.ready.append(sent)
        if sent.stored and (is_taken or not self.settled or sent.text not in self.settled):
            self.events.append(("publish", sent.text))

    def _ended(self, sent: Sent) -> None:
        self.events.append(("end", sent.text))
        if self.mode in {"window", "running for a time"}:
            self.settled.add(sent.text)

    @rule(text=IDS, stored=st.booleans())
    def publish(self, text, stored):
        repeated = self.queue.tally.repeated
        self._took(self._send(self.publisher, text, stored=stored), repeated)

    @rule(transactional=st.booleans())
    def get(self, transactional):
        """A client, or the one with transactions, gets a message; those before it were replaced."""
        if transactional:
            self.commit()  # its channel executes nothing before
        client = self.worker if transactional else self.client
        client.take()
        client.send(make(Basic.Get, 0, "q", False))
        self.node.read()
        found = [item for item in client.take() if isinstance(item.method, Basic.GetOk)]
        self.ready.sort()
        gone, self.ready = self.ready, []
        if found:
            number = int(found[0].body)
            at = [sent.number for sent in gone].index(number)
            gone, self.ready = gone[:at], gone[at + 1 :]
            read = Properties(found[0].header)
            sent = Sent(number, read.message_id, read.delivery_mode == 2)
            self.unacked[
                found[0].method.delivery_tag if not transactional else -found[0].method.delivery_tag
            ] = sent
            self.delivered.add(number)
        for sent in gone:
            if sent.stored:
                self.events.append(("end", sent.text))

    @precondition(lambda self: any(tag > 0 for tag in self.unacked))
    @rule(requeue=st.booleans())
    def settle(self, requeue):
        """The oldest unacked message is acked, or comes back."""
        tag = min(tag for tag in self.unacked if tag > 0)
        sent = self.unacked.pop(tag)
        self.client.send(make(Basic.Nack, tag, False, True) if requeue else make(Basic.Ack, tag, False))
        self.node.run_turn()
        if requeue:
            self.ready.append(sent)
        else:
            self._ended(sent)

    @precondition(lambda self: any(tag < 0 for tag in self.unacked))
    @rule(text=IDS, is_first=st.booleans(), stored=st.booleans())
    def transact(self, text, is_first, stored):
        """A transaction acks a message and publishes one, perhaps with the same id, in any order."""
        self.commit()  # as `get`
        tag = max(tag for tag in self.unacked if tag < 0)
        ended = self.unacked.pop(tag)
        end = make(Basic.Ack, -tag, False)
        if is_first:
            self.worker.send(end)
        sent = self._send(self.worker, text, stored=stored)
        if not is_first:
            self.worker.send(end)
        repeated = self.queue.tally.repeated
        self.worker.send(Tx.Commit())
        self._ended(ended)
        self._took(sent, repeated)

    @rule(is_first=st.booleans())
    def queue_again(self, is_first):
        """A transaction publishes what it acks once more."""
        if not any(tag < 0 for tag in self.unacked):
            self.get(transactional=True)
        if any(tag < 0 for tag in self.unacked):
            text = self.unacked[max(tag for tag in self.unacked if tag < 0)].text
            self.transact(text=text, is_first=is_first, stored=True)

    @rule(text=IDS, is_killed=st.booleans())
    def make_safe(self, text, is_killed):
        """A message that is published as a transient one is published as a persistent one; perhaps a kill follows."""
        self.publish(text=text, stored=False)
        self.publish(text=text, stored=True)
        if is_killed:
            self.commit()
            self.kill()

    @rule()
    def commit(self):
        """All is on disk: what was confirmed is owed."""
        self.node.commit()
        self.node.commit()
        assert not any("nack" in line for line in self.publisher.sent())
        for event, text in self.events:
            if event == "publish":
                self.owed.add(text)
            else:
                self.owed.discard(text)
        self.events.clear()
        self.safely_settled = set(self.settled)
        self.on_disk = [sent for sent in (*self.ready, *self.unacked.values()) if sent.stored]

    @rule()
    def kill(self):
        """The broker is killed: stored messages are there again, and the others are gone."""
        self.node = self.node.killed()
        self._came_back()

    @rule()
    def kill_on_a_full_disk(self):
        """The last commit has found space for ends of ids only: no message that is on no disk has an id."""
        self.node.fail()
        if any(event == "end" for event, _ in self.events):
            self.is_exact = False  # an id may have ended before its message
        self.kill()
        self.settled = set(self.safely_settled)
        for text in sorted({"a", "b"} - self.settled - {sent.text for sent in self.ready}):
            self.publish(text=text, stored=True)
            assert [text] == [sent.text for sent in self.ready[-1:]], (
                "it would be confirmed, and is not there"
            )

    @rule(mode=st.sampled_from(sorted(MODES)), source=st.sampled_from(SOURCES), is_cut=st.booleans())
    def change_settings(self, mode, source, is_cut):
        """A policy changes mode and source; perhaps a kill comes before the commit that has the end of the ids."""
        self.commit()
        before = self.mode.partition(" ")[0], self.source
        self.mode, self.source = mode, source
        with pytest.MonkeyPatch.context() as patch:
            if is_cut:
                patch.setattr(IdLog, "start_anew", lambda _: None)
            self._set_policy(mode)
            self.node.commit()
        if is_cut:
            self.node = self.node.killed()
            self._came_back()
        if before != (mode.partition(" ")[0], source):
            self.is_exact = not (self.ready or self.unacked)
            self.settled.clear()
            self.safely_settled.clear()
            self.is_timed = False
        self.is_timed = self.is_timed or bool(MODES[mode])

    def _came_back(self) -> None:
        self.node.commit()
        self._connect()
        self.ready, self.unacked = sorted(self.on_disk), {}
        self.delivered.clear()  # nobody can tell
        self.events.clear()
        assert len(self.ready) == self.queue.ready_count
        assert self.owed <= {sent.text for sent in self.ready}, (
            "a message that was promised to be safe is lost"
        )

    @invariant()
    def few_come_twice(self):
        """Of stored messages that are waiting each is the only one of its id."""
        if self.is_exact and self.mode != "window":
            there = [*self.ready, *(() if self.mode == "queued" else self.unacked.values())]
            fresh = [
                each.text
                for each in there
                if each.stored and (self.mode != "queued" or each.number not in self.delivered)
            ]
            assert len(fresh) == len(set(fresh)) or self.mode == "queued"

    @rule()
    def drain(self):
        """All messages are consumed: those that were owed come, and no id stays that depends on its message."""
        while any(tag > 0 for tag in self.unacked):
            self.settle(requeue=False)
        while any(tag < 0 for tag in self.unacked):
            tag = max(tag for tag in self.unacked if tag < 0)
            self.worker.send(make(Basic.Ack, -tag, False))
            self.worker.send(Tx.Commit())
            self._ended(self.unacked.pop(tag))
        self.commit()
        self.node.read()
        while self.queue.ready_count:
            self.get(transactional=False)
            if self.unacked:
                self.settle(requeue=False)
            self.node.commit()
        self.get(transactional=False)
        assert not self.unacked
        self.commit()
        assert set() == self.owed
        self.is_exact = True
        assert not any(self.queue.ids.known_until(text) == 0 for text in "ab"), "an id outlives its message"
        if not self.is_timed:
            assert 0 == self.queue.ids.count


Once.TestCase.settings = settings(
    max_examples=20, stateful_step_count=40, deadline=None, report_multiple_bugs=False, database=None
)
TestOnce = Once.TestCase
