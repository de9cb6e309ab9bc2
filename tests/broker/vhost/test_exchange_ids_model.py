"""Exchanges that take each message once, beside a model: of each id all queues get the first message, and no other."""

import shutil
import tempfile
from pathlib import Path

import pytest
from doubles.fakes import Client, DiskNode, publish_frames, queue_declare, settle
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from leveret.broker.amqp.commands import Basic, Confirm, Exchange, Queue, Tx, make
from leveret.broker.queue import id_log

IDS = "abcd"
ONCE = {"x-deduplicate": ("longstr", "message_id"), "x-deduplicate-for": ("signedint", 3_600_000)}
QUEUES = {"q": True, "p": True, "t": False}
"""The queues, and whether they are durable."""
WAYS = st.sampled_from(["alone", "run", "expiring", "transaction", "large"])


class Once(RuleBasedStateMachine):
    """One exchange with three queues, over kills and full disks."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(id_log, "FEW_CHANGES", 4)
        self.patch.setattr(id_log, "LEAST_COPIED", 30)
        self.directory = Path(tempfile.mkdtemp(prefix="once-"))
        self.node = DiskNode(self.directory)
        self.bound: set[str] = set()
        self.there: dict[str, list[tuple[int, bool]]] = {name: [] for name in QUEUES}
        """Messages of each queue, by number, and whether they are stored."""
        self.known: dict[str, bool] = {}
        """Ids, and whether they are known by what is stored."""
        self.number = 0
        self._connect()
        self._declare(make(Exchange.Declare, 0, "e", "fanout", False, True, False, False, False, ONCE))
        for name in ("q", "p"):
            self._declare(queue_declare(name, durable=True))
            self.bind(name)
        self._declare(queue_declare("t"))
        self.commit()

    def teardown(self) -> None:
        self.patch.undo()
        self.node.disk.close()
        shutil.rmtree(self.directory)

    def _connect(self) -> None:
        self.client, self.worker = Client(self.node), Client(self.node)
        self.client.send(Confirm.Select())
        self.worker.send(Tx.Select())

    def _declare(self, method: object) -> None:
        self.client.send(method)
        settle(self.node)

    @rule(name=st.sampled_from(sorted(QUEUES)))
    def bind(self, name):
        """A queue gets what is published from now on."""
        self._declare(make(Queue.Bind, 0, name, "e", "", False, {}))
        self.bound.add(name)
        self.commit()

    @rule(name=st.sampled_from(sorted(QUEUES)))
    def unbind(self, name):
        """A queue gets no more."""
        self._declare(make(Queue.Unbind, 0, name, "e", "", {}))
        self.bound.discard(name)
        self.commit()

    @rule(texts=st.lists(st.sampled_from(IDS), min_size=1, max_size=3), stored=st.booleans(), way=WAYS)
    def publish(self, texts, stored, way):
        """A client publishes: one message, or some that are read together, or in a transaction."""
        frames = []
        for text in texts if way in {"run", "transaction"} else texts[:1]:
            self.number += 1
            body = b"%d " % self.number + bytes(self.node.disk.blob_threshold if way == "large" else 0)
            options = {"expiration": "100000000"} if way == "expiring" else {}
            frames.append(
                publish_frames("", body, exchange="e", message_id=text, delivery_mode=1 + stored, **options)
            )
            is_stored = stored and not self.bound.isdisjoint({"q", "p"})
            if self.bound and (text not in self.known or (is_stored and not self.known[text])):
                self.known[text] = is_stored
                for name in self.bound:
                    self.there[name].append((self.number, is_stored and QUEUES[name]))
        client = self.worker if way == "transaction" else self.client
        client.receive(b"".join(frames))
        if way == "large":
            self.node.end_files()
        if way == "transaction":
            client.send(Tx.Commit())
            self.commit()

    @rule(text=st.sampled_from(IDS), is_killed=st.booleans())
    def publish_in_vain(self, text, is_killed):
        """A body gets no file, as the broker is killed, or the disk is full: no queue has the message, or its id."""
        if self.bound.isdisjoint({"q", "p"}) or self.known.get(text):
            return
        self.client.take()
        body = bytes(self.node.disk.blob_threshold)
        self.client.publish("", body, exchange="e", message_id=text, delivery_mode=2)
        if is_killed:
            self.kill(is_full=False)
            return
        self.node.disk.journal.file_failed(*self.node.disk.journal.files)
        self.node.end_files()
        assert [True] == ["nack" in line for line in self.client.sent() if "ack" in line]

    @rule(name=st.sampled_from(sorted(QUEUES)))
    def get(self, name):
        self.node.read()
        self.client.take()
        self.client.send(make(Basic.Get, 0, name, True))
        self.node.read()
        found = [item for item in self.client.take() if isinstance(item.method, Basic.GetOk)]
        assert [int(item.body.split(b" ")[0]) for item in found] == [
            number for number, _ in self.there[name][:1]
        ]
        del self.there[name][:1]

    @rule(text=st.sampled_from(IDS))
    def forget(self, text):
        """An operator has it take such messages again."""
        self.commit()
        assert (text in self.known) is self.node.vhosts["/"].once["e"].forget(text)
        self.known.pop(text, None)
        self.commit()

    @rule()
    def commit(self):
        settle(self.node)
        self.node.write_files()
        self.node.commit()
        assert not self.node.disk.journal.has_work
        assert not any("nack" in line for line in self.client.sent())
        self._saved()

    def _saved(self) -> None:
        self.on_disk = (
            set(self.bound),
            {name: [each for each in found if each[1]] for name, found in self.there.items()},
            {text: True for text, stored in self.known.items() if stored},
        )

    @rule(is_full=st.booleans())
    def kill(self, is_full):
        """The broker is killed, perhaps after a commit that found the disk full: all is as after the last one."""
        if is_full:
            self.node.fail()
        self.node = self.node.killed()
        bound, there, known = self.on_disk
        self.there = {name: list(found) for name, found in there.items()}
        self.known = dict(known)
        self.bound = bound - {"t"}
        self._connect()
        self._declare(queue_declare("t"))
        self.commit()

    @invariant()
    def counts_agree(self):
        """Each queue has what the model says."""
        queues = self.node.vhosts["/"].queues
        assert {name: len(found) for name, found in self.there.items()} == {
            name: queues[name].ready_count for name in QUEUES
        }
        assert self.known.keys() == {
            text for text in IDS if self.node.vhosts["/"].once["e"].known_until(text) is not None
        }


Once.TestCase.settings = settings(
    max_examples=25, stateful_step_count=40, deadline=None, report_multiple_bugs=False, database=None
)
TestOnce = Once.TestCase
