"""Repeats where consumers confirm, beside a model: each hears what consumers say of its own message, and no other."""

from doubles.fakes import Client, Node, queue_declare
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from leveret.broker.amqp.commands import Basic, Confirm, Exchange, Queue, make

MINUTE = 60_000
IDS = st.sampled_from("ab")


class Sent:
    """A message, with the numbers of the confirms that wait for its consumer."""

    def __init__(self, text: str, until: int, *, is_awaited: bool) -> None:
        self.text = text
        self.until = until
        self.is_awaited = is_awaited
        """True if its own publisher waits, so that it is known which message its consumer answers."""
        self.is_done = False
        self.at = 0
        self.waiting: set[int] = set()


class Verdicts(RuleBasedStateMachine):
    """A consumer-ack queue whose messages have ids, or an exchange before it; the time of an id may be over first."""

    @initialize(is_exchange=st.booleans())
    def begin(self, is_exchange):
        self.node = Node()
        self.is_exchange = is_exchange
        once = {"x-deduplicate": ("longstr", "message_id"), "x-deduplicate-for": ("signedint", MINUTE)}
        of_exchange, of_queue = (once, {}) if is_exchange else ({}, once)
        self.client, self.silent, self.worker = Client(self.node), Client(self.node), Client(self.node)
        for method in (
            make(Exchange.Declare, 0, "e", "fanout", False, True, False, False, False, of_exchange),
            queue_declare(
                "q", durable=True, arguments={"x-confirm-mode": ("longstr", "consumer-ack"), **of_queue}
            ),
            make(Queue.Bind, 0, "q", "e", "", False, {}),
            Confirm.Select(),
        ):
            self.client.send(method)
        self.client.sent()
        self.number = self.now = self.count = 0
        self.latest: dict[str, Sent] = {}
        self.ready: list[Sent] = []
        self.unacked: dict[int, Sent] = {}
        self.open: dict[int, Sent] = {}
        """Messages by the numbers of confirms that have not come."""

    def _publish(self, client: Client, text: str) -> Sent:
        known = self.latest.get(text)
        if known is None or known.until < self.now:
            known = Sent(text, self.now + MINUTE, is_awaited=client is self.client)
            self.latest[text] = known
            known.at = self.count = self.count + 1
            self.ready.append(known)
        client.publish("", b"m", exchange="e", message_id=text)
        return known

    @rule(text=IDS)
    def publish(self, text):
        """A client publishes, and waits for a confirm."""
        self.number += 1
        sent = self._publish(self.client, text)
        sent.waiting.add(self.number)
        self.open[self.number] = sent
        self._hear()

    @rule(text=IDS)
    def publish_silently(self, text):
        """A client publishes without confirms."""
        self._publish(self.silent, text)
        self._hear()

    @rule(minutes=st.sampled_from([0.4, 1.1, 2.5]))
    def pass_time(self, minutes):
        """Time passes, perhaps that of ids."""
        self.now += int(minutes * MINUTE)
        self.node.pass_time(int(minutes * MINUTE))
        self._hear()

    @rule()
    def get(self):
        """A consumer gets the oldest message."""
        if self.ready:
            self.worker.send(make(Basic.Get, 0, "q", False))
            (found,) = [item for item in self.worker.take() if isinstance(item.method, Basic.GetOk)]
            self.unacked[found.method.delivery_tag] = self.ready.pop(0)

    @rule(at=st.integers(0, 3), is_ack=st.booleans())
    def settle(self, at, is_ack):
        """One of the unacked messages is acked, or rejected: the consumer is done with it in either way."""
        if self.unacked:
            tag = sorted(self.unacked)[at % len(self.unacked)]
            sent = self.unacked.pop(tag)
            self.worker.send(make(Basic.Ack, tag, False) if is_ack else make(Basic.Reject, tag, False))
            sent.is_done = True
            self._hear()

    @rule()
    def requeue(self):
        """All unacked messages come back."""
        self.worker.send(make(Basic.Nack, 0, True, True))
        self.ready = [*(self.unacked[tag] for tag in sorted(self.unacked)), *self.ready]
        self.ready.sort(key=lambda sent: sent.at)
        self.unacked.clear()
        self._hear()

    @rule()
    def purge(self):
        """All ready messages are dropped."""
        self.worker.send(make(Queue.Purge, 0, "q", False))
        self.worker.sent()
        gone, self.ready = self.ready, []
        self._refuse(gone)
        self._hear()

    def _refuse(self, gone: list[Sent]) -> None:
        """Messages end whose publishers hear that: an exchange forgets their ids, and a queue waits for nobody."""
        for sent in gone:
            sent.is_done = True
            if self.is_exchange and sent.is_awaited and self.latest.get(sent.text) is sent:
                del self.latest[sent.text]
        told = self._told()
        for number in {
            number for sent in gone if sent.is_awaited for number in sent.waiting
        } & self.open.keys():
            assert told.pop(number) is False
            del self.open[number]
        self._take(told)

    def _hear(self) -> None:
        """Compare confirms with messages that are done; repeats of a purged one may wait for an earlier one."""
        self._take(self._told())
        there = {sent.text for sent in (*self.ready, *self.unacked.values())}
        for number, sent in self.open.items():
            assert not (sent.is_done and sent.is_awaited and sent.text not in there), (
                f"{number} waits for ever"
            )

    def _take(self, told: dict[int, bool]) -> None:
        for number, is_ack in told.items():
            sent = self.open.pop(number)
            if not is_ack:
                assert not sent.is_awaited, f"{number} is refused"
            elif sent.is_awaited or not self.is_exchange:
                assert sent.is_done, f"{number} is confirmed before the consumer is done"

    def _told(self) -> dict[int, bool]:
        """Return confirms that have come by their numbers."""
        self.node.run_turn()
        self.node.clock.run()
        told: dict[int, bool] = {}
        for item in self.client.take():
            method = item.method
            first = min(self.open) if method.multiple else method.delivery_tag
            for number in range(first, method.delivery_tag + 1):
                if number in self.open and number not in told:
                    told[number] = isinstance(method, Basic.Ack)
        return told

    def teardown(self) -> None:
        """Everybody hears at last."""
        if hasattr(self, "node"):
            while self.ready or self.unacked:
                self.get()
                self.settle(at=0, is_ack=True)
            assert not self.open


Verdicts.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, report_multiple_bugs=False, database=None
)
TestVerdicts = Verdicts.TestCase
