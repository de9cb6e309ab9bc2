"""The cells of the table in docs/confirm-events.md: the test of each, and the scenario that the tests use."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from doubles.fakes import Client, DiskNode, Sent, basic_consume, publish_frames, queue_declare

from leveret.broker.amqp.commands import Basic, Confirm, make
from leveret.broker.amqp.tables import Table

STANDARD, ACK, LIGHT = MODES = ("standard", "consumer-ack", "consumer-ack-light")
LATE = (ACK, LIGHT)
"""The modes in which a consumer's verdict is waited for."""

DLX: Table = {"x-dead-letter-exchange": ("longstr", ""), "x-dead-letter-routing-key": ("longstr", "dead")}
TTL: Table = {"x-message-ttl": ("signedint", 100)}


def cell(*events: str, modes: Collection[str] = MODES) -> Callable[[Any], Any]:
    """Say which cells a test is for: it runs once for each, with `mode`, and `event` where there are several."""
    cells = [(event, mode) for event in events for mode in modes]
    names = [f"{event}-{mode}" for event, mode in cells]

    def mark(test: Any) -> Any:
        test.cells = cells
        if len(events) == 1:
            return pytest.mark.parametrize("mode", modes, ids=names)(test)
        return pytest.mark.parametrize(("event", "mode"), cells, ids=names)(test)

    return mark


def limit(length: int, overflow: str = "drop-head") -> Table:
    return {"x-max-length": ("signedint", length), "x-overflow": ("longstr", overflow)}


class Scenario:
    """A broker in some mode, a publisher who wants confirms, and a consumer.

    Args:
        data_dir: where the broker's data go; nothing is committed but by `commit`.
        mode: the broker's.
        settings: more of its configuration.

    Attributes:
        left_open: the numbers that have no verdict when the test is over, and are not to get one.

    """

    def __init__(self, data_dir: Path, mode: str, **settings: Any) -> None:
        self.mode = mode
        self.node = DiskNode(data_dir, confirm_mode=mode, **settings)
        self.publisher = self.connect()
        self.publisher.ask(Confirm.Select(False))
        self.consumer = self.connect()
        self.published = 0
        self.left_open: list[int] = []
        self.others: list[str] = []
        """Methods sent to the publisher other than verdicts."""
        self._verdicts: dict[int, str] = {}

    @property
    def is_late(self) -> bool:
        """True if the mode waits for consumers."""
        return self.mode != STANDARD

    def connect(self) -> Client:
        return Client(self.node)

    def end(self) -> None:
        """Commit, and check that no verdict is repeated or late and that no other number is open."""
        self.node.commit()
        assert [] == self.verdicts()
        assert self.left_open == self.open
        self.node.disk.close()

    def restarted(self, node: DiskNode) -> None:
        """The broker has ended; another one is there, with another consumer, and the publisher is gone."""
        self.node = node
        self.consumer = self.connect()

    # -- the publisher ----------------------------------------------------------------------------------------------

    def publish(self, key: str = "q", body: bytes = b"", *, exchange: str = "", **properties: Any) -> None:
        """Publish one message, persistent unless it says otherwise; its body is its number."""
        self.published += 1
        properties.setdefault("delivery_mode", 2)
        self.publisher.publish(key, body or b"%d" % self.published, exchange=exchange, **properties)

    def publish_many(self, count: int, key: str = "q") -> None:
        """Publish messages that arrive in one read."""
        first = self.published + 1
        self.published += count
        bodies = [b"%d" % number for number in range(first, first + count)]
        self.publisher.receive(b"".join([publish_frames(key, body, delivery_mode=2) for body in bodies]))

    def verdicts(self) -> list[str]:
        """Return the verdicts sent since the last look: `ack 1`, `nack 2`, one for each number, by number."""
        verdicts = {}
        for sent in self.publisher.take():
            if isinstance(sent.method, Basic.Ack | Basic.Nack):
                verdicts |= self._new_verdicts(sent)
            else:
                self.others.append(str(sent))
        return [f"{verdicts[number]} {number}" for number in sorted(verdicts)]

    def _new_verdicts(self, sent: Sent) -> dict[int, str]:
        method = sent.method
        word = "ack" if isinstance(method, Basic.Ack) else "nack"
        tag = method.delivery_tag
        assert 1 <= tag <= self.published
        numbers = [tag]
        if method.multiple:
            numbers = [number for number in range(1, tag + 1) if number not in self._verdicts]
        assert not self._verdicts.keys() & set(numbers), "a number has its verdict already"
        verdicts = dict.fromkeys(numbers, word)
        self._verdicts |= verdicts
        return verdicts

    @property
    def open(self) -> list[int]:
        return [number for number in range(1, self.published + 1) if number not in self._verdicts]

    def commit(self) -> None:
        self.node.commit()

    def stored(self) -> None:
        """Commit, which confirms all open numbers in standard mode, and none where consumers are waited for."""
        expected = [] if self.is_late else [f"ack {number}" for number in self.open]
        self.commit()
        assert expected == self.verdicts()

    def late(self, *verdicts: str) -> list[str]:
        """Return the verdicts if consumers are waited for; none in standard mode, where all were sent before."""
        return list(verdicts) if self.is_late else []

    # -- queues -----------------------------------------------------------------------------------------------------

    def declare(self, name: str = "q", arguments: Table | None = None, **options: Any) -> None:
        """Declare a queue that is on disk; durable, unless the options say otherwise."""
        options.setdefault("durable", True)
        self.ask(queue_declare(name, arguments=arguments or {}, **options))

    def ask(self, method: Any) -> list[str]:
        """Execute a method by a third client, neither publisher nor consumer, and return the answer."""
        client = self.connect()
        client.send(method)
        self.commit()
        answer = client.sent()
        assert "close" not in answer[0], answer
        return answer

    def counts(self, name: str = "q") -> tuple[int, int]:
        queue = self.node.vhosts["/"].queues[name]
        return queue.ready_count, queue.unacked_count

    def written(self) -> int:
        """Return the number of rows of messages on disk, or about to be."""
        self.commit()
        return len(list(self.node.disk.environment.rows("blocks")))

    # -- the consumer -----------------------------------------------------------------------------------------------

    def consume(self, queue: str = "q", client: Client | None = None, **options: Any) -> None:
        (client or self.consumer).send(basic_consume(queue, f"c-{queue}", **options))

    def prefetch(self, count: int) -> None:
        """Limit what the consumer may have unacked."""
        self.consumer.send(make(Basic.Qos, 0, count, False))

    def deliveries(self, client: Client | None = None) -> list[str]:
        """The bodies that a client was sent since the last look, those redelivered with a star."""
        return [
            sent.body.decode() + "*" * sent.method.redelivered
            for sent in (client or self.consumer).take()
            if isinstance(sent.method, Basic.Deliver | Basic.GetOk)
        ]

    def delivered(self, count: int = 1) -> None:
        """Publish messages to a queue `q` of the consumer's; in standard mode they are on disk and confirmed."""
        self.publish_many(count)
        self.stored()
        assert count == len(self.deliveries())

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        self.consumer.send(make(Basic.Ack, tag, multiple))

    def nack(self, tag: int, *, requeue: bool, multiple: bool = False) -> None:
        self.consumer.send(make(Basic.Nack, tag, multiple, requeue))

    def get(self, queue: str = "q", *, no_ack: bool = True) -> list[str]:
        """Get one message for the consumer: its body, with a star if it is redelivered; nothing if there is none."""
        self.consumer.send(make(Basic.Get, 0, queue, no_ack))
        return self.deliveries()
