"""Queues that take each message once."""

import logging
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from doubles.fakes import Client, DiskNode, Node, basic_consume, node_in, publish_frames, set_policy, settle

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Basic, Channel, Confirm, Exchange, Queue, Tx, make
from leveret.broker.amqp.fastpath import content_frames
from leveret.broker.amqp.properties import build
from leveret.broker.amqp.tables import Table
from leveret.broker.queue import id_log, id_source
from leveret.broker.server.shutdown import ShutdownFlush
from leveret.broker.vhost.copies import distribute
from leveret.storage.message import Message
from leveret.storage.message_ids import value_until
from leveret.storage.store.check import Check, Finding
from leveret.storage.store.compact import compact

MINUTE = 60_000


def once(source: str = "message_id", mode: str = "", time: int | None = None, **others: Any) -> Table:
    """Return the arguments of a queue that takes each message once."""
    found: Table = {"x-deduplicate": ("longstr", source), **others}
    if mode:
        found["x-deduplicate-mode"] = ("longstr", mode)
    if time is not None:
        found["x-deduplicate-for"] = ("signedint", time)
    return found


WINDOW = once(time=MINUTE)
QUEUED, RUNNING = once(mode="queued"), once(mode="running")


TO_Q: Table = {
    "x-dead-letter-exchange": ("longstr", ""),
    "x-dead-letter-routing-key": ("longstr", "q"),
}
"""Arguments of a queue whose dead letters go to q."""


@pytest.fixture(params=["memory", "disk"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    with node_in(request.param, tmp_path) as made:
        yield made


def ready(node: Node, arguments: Table, name: str = "q", *, confirms: bool = False) -> Client:
    """Return a client that has declared a durable queue."""
    client = Client(node)
    client.declare(name, durable=True, arguments=arguments)
    settle(node)
    if confirms:
        client.send(Confirm.Select())
    client.take()
    return client


def publish(client: Client, text: str = "1", key: str = "q", body: bytes = b"m", **options: Any) -> None:
    client.publish(key, body, message_id=text, delivery_mode=options.pop("mode", 2), **options)


def published(client: Client, *texts: str) -> None:
    """Publish a message with each of these ids, `1` by default, and let turns and commits end."""
    for text in texts or ("1",):
        publish(client, text)
    settle(client.node)


def queue(node: Node, name: str = "q") -> Any:
    return node.vhosts["/"].queues[name]


def count(node: Node, name: str = "q") -> int:
    return int(queue(node, name).ready_count)


def acks(client: Client) -> list[str]:
    """Return the confirms that were sent since the last call."""
    return [line for line in client.sent() if "basic.ack" in line or "basic.nack" in line]


def get(client: Client, *, settled: bool = True) -> int:
    """Fetch a message from q, and ack it unless it is to stay unacked; returns its delivery tag."""
    client.send(make(Basic.Get, 0, "q", False))
    settle(client.node)
    (tag,) = [item.method.delivery_tag for item in client.take() if isinstance(item.method, Basic.GetOk)]
    if settled:
        client.send(make(Basic.Ack, tag, False))
        settle(client.node)
    return int(tag)


def findings(node: DiskNode) -> list[Finding]:
    """Close the data directory, and return what a check of it finds."""
    node.disk.close()
    found: list[Finding] = []
    Check(node.data_dir, found.append).run()
    return found


def rows(node: DiskNode) -> list[bytes]:
    return [value for _, value in node.disk.environment.rows("ids")]


class TestIds:
    def test_the_second_publish_of_an_id_is_dropped_and_counted(self, node):
        """A queue has one message of each id, and those without an id."""
        client = ready(node, WINDOW)
        for text in ("1", "2", "1", "1", ""):
            publish(client, text)
        client.publish("q", b"none", delivery_mode=2)
        client.publish("q", b"none", delivery_mode=2)
        settle(node)
        assert 5 == count(node)
        assert 2 == queue(node).counts().repeated

    @pytest.mark.parametrize(
        "value", [("longstr", "a"), ("signedint", 0), ("bool", False), ("long", 1 << 60)]
    )
    def test_a_header_is_the_id(self, node, value):
        """The value of the header counts, of whatever type; a message without the header has no id."""
        client = ready(node, once("header:task", "running"))
        for headers in ({"task": value}, {"task": value, "x": ("longstr", "y")}, {"other": value}, {}):
            client.publish("q", b"m", headers=headers, delivery_mode=2)
        settle(node)
        assert 3 == count(node)

    def test_the_body_is_the_id(self, node):
        """Messages with the same body are one, whatever their properties; an empty body is one, too."""
        client = ready(node, once("body", "running"))
        for number, body in enumerate((b"a", b"b", b"a", b"", b"")):
            publish(client, str(number), body=body)
        settle(node)
        assert 3 == count(node)
        assert 0 == queue(node).ids.known_until(sha256(b"a").hexdigest())

    def test_a_body_that_is_too_large_to_be_hashed_is_refused(self, node):
        """The publisher learns the limit; what was in a queue before is taken without an id."""
        client = ready(node, once("body", "running"))
        ready(node, {**TO_Q, "x-message-ttl": ("signedint", 10)}, "other")
        body = bytes(id_source.MOST_HASHED)
        for _ in range(2):
            client.publish("q", body)
            client.publish("other", body + b"1")
        node.pass_time(10)
        settle(node)
        assert 3 == count(node)
        client.take()
        client.publish("q", body + b"1")
        (line,) = client.sent()
        assert "406" in line
        assert "x-deduplicate=body takes at most 1048576 bytes" in line

    @pytest.mark.parametrize(
        ("name", "value", "text"),
        [
            ("x-deduplicate", ("longstr", "id"), "invalid_deduplicate"),
            ("x-deduplicate", ("longstr", "header:"), "invalid_deduplicate"),
            ("x-deduplicate", ("bool", True), "unacceptable_type"),
            ("x-deduplicate-mode", ("longstr", "once"), "invalid_deduplicate_mode"),
            ("x-deduplicate-for", ("long", 30 * 86_400_000 + 1), "value_too_large"),
            ("x-deduplicate-for", ("signedint", -1), "value_negative"),
        ],
    )
    def test_wrong_arguments_are_refused(self, node, name, value, text):
        """A declaration with a wrong value is answered with 406 and the name of the argument."""
        (answer,) = Client(node).declare("q", durable=True, arguments={name: value})
        assert "406" in answer
        assert name in answer
        assert text in answer

    def test_a_queue_refuses_ids_for_which_it_has_no_room(self, node, caplog):
        """Beyond the largest number of ids a publish is nacked, with one line in the log, until an id has expired."""
        node.context.ids.most = 4
        client = ready(node, WINDOW, confirms=True)
        for text in ("1", "2", "3", "4", "1"):
            publish(client, text)
        settle(node)
        assert 2 == count(node)
        assert 2 == sum("nack" in line for line in acks(client))
        (record,) = [each for each in caplog.records if "knows" in each.getMessage()]
        assert logging.WARNING == record.levelno
        assert 2 == node.context.ids.refused
        node.pass_time(MINUTE + 20)
        published(client, "3")
        assert 3 == count(node)


class TestRuns:
    """Publishes that are read in one go are taken as one by one."""

    @pytest.mark.parametrize("mode", [1, 2])
    @pytest.mark.parametrize("source", ["message_id", "header:task"])
    def test_of_many_publishes_in_one_read_each_id_is_taken_once(self, node, source, mode):
        """Repeats of earlier reads and of the same one are dropped, and all publishes are confirmed."""
        client = ready(node, once(source, "running"), confirms=True)
        texts = ["1", "2", "", "3", "2", "4", "5", "1", "6", "", "7"]
        for read in (texts, ["8", "3", "9", *texts], ["10", "11", "12", "13"]):
            client.receive(
                b"".join(
                    [
                        publish_frames(
                            "q",
                            b"m",
                            message_id=text,
                            delivery_mode=mode,
                            headers={"task": ("longstr", text)},
                        )
                        for text in read
                    ]
                )
            )
            settle(node)
        assert 13 + 4 == count(node)
        assert 2 + 1 + 9 == queue(node).counts().repeated
        found = acks(client)
        assert "nack" not in "".join(found)
        assert "delivery_tag=29" in found[-1]

    @pytest.mark.parametrize("mode", [1, 2])
    @pytest.mark.parametrize("name", ["q", "other"])
    def test_what_is_refused_among_many_is_nacked(self, node, name, mode):
        """Those for which there is no room are nacked, and no others, in queues that store messages and that do not."""
        client = Client(node)
        client.declare(name, durable=name == "q", arguments=RUNNING)
        client.send(Confirm.Select())
        client.take()
        node.context.ids.most = 7
        client.receive(
            b"".join([publish_frames(name, b"m", message_id=text, delivery_mode=mode) for text in "12314526"])
        )
        settle(node)
        assert 4 == count(node, name)
        found = {}
        for item in client.take():
            if isinstance(item.method, Basic.Nack | Basic.Ack):
                first = 1 if item.method.multiple else item.method.delivery_tag
                tags = range(first, item.method.delivery_tag + 1)
                found |= {tag: isinstance(item.method, Basic.Ack) for tag in tags if tag not in found}
        assert [True, True, True, True, True, False, True, False] == [found[tag] for tag in sorted(found)]

    def test_several_queues_sift_one_run(self, disk_node):
        """Each queue of a fanout drops its own repeats, and a confirm waits for all of them."""
        client = ready(disk_node, WINDOW, confirms=True)
        ready(disk_node, once(mode="running"), "p")
        ready(disk_node, {}, "r")
        for name in "qpr":
            client.send(make(Queue.Bind, 0, name, "amq.fanout", "", False, {}))
        publish(client, "1")
        publish(client, "2", key="p")
        settle(disk_node)
        client.take()
        run = [
            publish_frames("", b"m", exchange="amq.fanout", message_id=text, delivery_mode=2)
            for text in "34123"
        ]
        client.receive(b"".join(run))
        assert [] == acks(client)
        settle(disk_node)
        assert "delivery_tag=7" in acks(client)[-1]
        assert (4, 4, 5) == (count(disk_node), count(disk_node, "p"), count(disk_node, "r"))
        again = disk_node.killed()
        client = Client(again)
        client.receive(b"".join(run))
        assert (4, 4, 10) == (count(again), count(again, "p"), count(again, "r"))
        again.disk.close()

    def test_a_confirm_waits_for_the_ids_of_a_run_that_is_consumed_at_once(self, disk_node):
        """Messages that end before they are written are confirmed with their ids, or nacked with them."""
        client = ready(disk_node, WINDOW, confirms=True)
        client.send(basic_consume("q", "c", no_ack=True))
        for is_full in (False, True):
            client.take()
            texts = "5678" if is_full else "1234"
            client.receive(
                b"".join([publish_frames("q", b"m", message_id=text, delivery_mode=2) for text in texts])
            )
            assert [] == acks(client)
            if is_full:
                disk_node.fail()
            else:
                disk_node.commit()
            found = acks(client)
            assert is_full is any("nack" in line for line in found)
        again = disk_node.killed()
        client = Client(again)
        client.receive(
            b"".join([publish_frames("q", b"m", message_id=text, delivery_mode=2) for text in "1234"])
        )
        assert 0 == count(again)
        again.disk.close()


class TestModes:
    def test_a_window_is_a_time_after_the_publish(self, node):
        """In a window an id is known for its time, whether or not the message was consumed."""
        client = ready(node, WINDOW)
        published(client)
        get(client)
        node.pass_time(MINUTE - 1)
        published(client)
        assert 0 == count(node)
        node.pass_time(20)
        published(client)
        assert 1 == count(node)

    def test_a_window_without_a_time_is_one_of_ten_minutes(self, node):
        """The default of x-deduplicate-for applies in this mode only."""
        client = ready(node, once(mode="window"))
        publish(client)
        node.pass_time(10 * MINUTE - 1)
        published(client)
        assert 1 == count(node)

    def test_while_it_is_queued_an_id_is_known_until_the_delivery(self, node):
        """A message that is delivered makes room for another one, before it is acked, and when it comes back."""
        client = ready(node, QUEUED)
        published(client, "1", "1")
        assert 1 == count(node)
        tag = get(client, settled=False)
        published(client, "1", "1")
        assert 1 == count(node)
        client.send(make(Basic.Nack, tag, False, True))
        settle(node)
        assert 2 == count(node)
        get(client)
        published(client)
        assert 1 == count(node)
        get(client)
        published(client)
        assert 1 == count(node)

    @pytest.mark.parametrize("end", ["ack", "reject"])
    def test_while_it_runs_an_id_is_known_until_it_is_settled(self, node, end):
        """A message that is unacked, or was requeued, is the only one of its id; after its end there may be another."""
        client = ready(node, RUNNING)
        published(client)
        for _ in range(2):
            tag = get(client, settled=False)
            published(client)
            assert 0 == count(node)
            client.send(make(Basic.Nack, tag, False, True))
            published(client)
            assert 1 == count(node)
        tag = get(client, settled=False)
        client.send(make(Basic.Ack, tag, False) if end == "ack" else make(Basic.Reject, tag, False))
        settle(node)
        published(client)
        assert 1 == count(node)

    @pytest.mark.parametrize("end", [make(Basic.Ack, 1, False), make(Basic.Reject, 1, False)])
    def test_a_publish_after_an_ack_is_no_repeat_in_the_same_read_either(self, node, end):
        """A task that settles its message and publishes it again at once is queued again."""
        client = ready(node, RUNNING)
        published(client)
        assert 1 == get(client, settled=False)
        again = publish_frames("q", b"m", message_id="1", delivery_mode=2)
        client.receive(encode_method(1, end) + again + again)
        settle(node)
        assert (1, 1) == (count(node), queue(node).counts().repeated)

    def test_an_id_may_be_known_for_a_time_after_the_end(self, node):
        """With a time too, it begins when the message is settled."""
        client = ready(node, once(mode="running", time=MINUTE))
        published(client)
        node.pass_time(5 * MINUTE)
        publish(client)
        get(client)
        node.pass_time(MINUTE - 1)
        published(client)
        assert 0 == count(node)
        node.pass_time(20)
        published(client)
        assert 1 == count(node)

    @pytest.mark.parametrize("arguments", [QUEUED, RUNNING])
    def test_a_consumer_without_acks_frees_the_id_with_the_delivery(self, node, arguments):
        """A delivery that needs no ack is the end of its message, direct or from the queue."""
        client = ready(node, arguments)
        publish(client)
        publish(client)
        client.send(basic_consume("q", "c", no_ack=True))
        settle(node)
        published(client, "1", "1")
        assert 3 == sum(isinstance(item.method, Basic.Deliver) for item in client.take())

    def test_another_mode_or_source_forgets_all_ids_and_another_time_none(self, node):
        """A policy that changes what an id is, or how long it is known in principle, begins anew; messages stay."""
        client = ready(node, {})
        policies = node.vhosts["/"].policies
        expected = 0
        for definition, is_new in (
            ({"deduplicate": "message_id", "deduplicate-for": MINUTE}, True),
            ({"deduplicate": "message_id", "deduplicate-for": 2 * MINUTE}, False),
            ({"deduplicate": "message_id", "deduplicate-mode": "running"}, True),
            ({"deduplicate": "body", "deduplicate-mode": "running"}, True),
        ):
            set_policy(policies, "p", "^q$", definition)
            node.run_turn()
            published(client, "1", "1")
            expected += is_new
            assert expected == count(node)
        policies.clear("p")
        node.run_turn()
        published(client, "1", "1")
        assert expected + 2 == count(node)

    def test_ids_that_have_all_expired_are_forgotten_without_another_publish(self, node):
        """An idle queue gives back the memory and the rows of its ids."""
        client = ready(node, WINDOW)
        for number in range(100):
            publish(client, str(number))
        settle(node)
        assert 100 == queue(node).ids.count
        node.pass_time(MINUTE + 2000)
        settle(node)
        assert 0 == queue(node).ids.count
        if isinstance(node, DiskNode):
            settle(node)
            assert [] == rows(node)


class TestAnswers:
    def test_the_second_publish_is_confirmed_when_the_first_is_safe(self, disk_node):
        """Neither is confirmed before the commit; after it a repeat is confirmed at once."""
        client = ready(disk_node, WINDOW, confirms=True)
        publish(client)
        publish(client)
        assert [] == acks(client)
        disk_node.commit()
        assert 1 == len(found := acks(client))
        assert "multiple" in found[0]
        publish(client)
        assert 1 == len(acks(client))

    def test_on_a_full_disk_both_are_nacked(self, disk_node):
        """A repeat is not confirmed while the first message is in memory only."""
        client = ready(disk_node, WINDOW, confirms=True)
        publish(client)
        publish(client)
        disk_node.fail()
        assert [True] == ["nack" in line and "multiple" in line for line in acks(client)]
        disk_node.commit()
        assert [] == acks(client)
        assert 1 == count(disk_node)
        again = disk_node.killed()
        publish(Client(again))
        assert 1 == count(again)
        again.disk.close()

    def test_a_confirm_waits_for_the_id_of_a_message_that_is_gone(self, disk_node):
        """A message that is consumed before its commit is not written; its id is, and the publisher hears then."""
        client = ready(disk_node, WINDOW, confirms=True)
        client.send(basic_consume("q", "c", no_ack=True))
        client.take()
        publish(client)
        assert [] == acks(client)
        disk_node.commit()
        assert 1 == len(acks(client))
        again = disk_node.killed()
        publish(Client(again))
        assert 0 == count(again)
        again.disk.close()

    def test_a_mandatory_repeat_is_returned(self, node):
        """A publisher that asks learns that a message was a repeat: 312 with DUPLICATE, before the confirm."""
        client = ready(node, WINDOW, confirms=True)
        publish(client, mandatory=True)
        settle(node)
        assert not any("return" in line for line in client.sent())
        publish(client, mandatory=True)
        settle(node)
        first, last = client.sent()
        assert "basic.return" in first
        assert "312" in first
        assert "DUPLICATE" in first
        assert "basic.ack" in last

    def test_a_mandatory_message_that_one_queue_takes_is_not_returned(self, node):
        """Of several queues all must know the id."""
        client = ready(node, WINDOW)
        ready(node, {}, "p")
        publish(client)
        publish(client, mandatory=True, headers={"CC": ("array", [("longstr", "p")])})
        settle(node)
        assert not any("return" in line for line in client.sent())
        assert (1, 1) == (count(node), count(node, "p"))

    def test_where_consumers_confirm_both_hear_from_the_consumer(self, node):
        """In the mode consumer-ack a repeat is confirmed when the consumer has acked the first message."""
        client = ready(
            node, once(time=MINUTE, **{"x-confirm-mode": ("longstr", "consumer-ack")}), confirms=True
        )
        published(client, "1", "1")
        assert [] == acks(client)
        other = Client(node)
        tag = get(other, settled=False)
        published(client)
        assert [] == acks(client)
        other.send(make(Basic.Ack, tag, False))
        settle(node)
        (line,) = acks(client)
        assert "delivery_tag=3" in line
        published(client)
        assert 1 == len(acks(client))
        assert 0 == count(node)

    @pytest.mark.parametrize("arguments", [WINDOW, QUEUED, RUNNING])
    def test_where_consumers_confirm_both_are_nacked_with_a_purge(self, node, arguments):
        """A promise is refused with its message, and those of repeats too."""
        client = ready(
            node, {**arguments, "x-confirm-mode": ("longstr", "consumer-ack-light")}, confirms=True
        )
        published(client, "1", "1")
        queue(node).purge()
        node.run_turn()
        assert ["basic.nack" in line for line in acks(client)] == [True]
        assert 0 == queue(node).awaiting.open_count

    def test_the_second_of_a_transaction_is_dropped(self, node):
        """A transaction takes ids with its commit, and a rollback takes none."""
        client = ready(node, WINDOW)
        client.send(Tx.Select())
        publish(client)
        client.send(Tx.Rollback())
        publish(client)
        publish(client)
        assert 0 == count(node)
        client.send(Tx.Commit())
        settle(node)
        assert any("commit-ok" in line for line in client.sent())
        assert 1 == count(node)

    @pytest.mark.parametrize("arguments", [RUNNING, QUEUED])
    @pytest.mark.parametrize("is_first", [True, False])
    @pytest.mark.parametrize("outcome", ["ack", "reject", "requeue"])
    def test_a_transaction_that_ends_a_message_may_publish_it_again(self, node, arguments, is_first, outcome):
        """Its publish is new in whatever order the two come, and a second one is a repeat; after a requeue all are."""
        client = ready(node, arguments)
        published(client)
        tag = get(client, settled=False)
        client.send(Tx.Select())
        end = (
            make(Basic.Ack, tag, False) if outcome == "ack" else make(Basic.Reject, tag, outcome == "requeue")
        )
        if is_first:
            client.send(end)
        publish(client)
        publish(client)
        if not is_first:
            client.send(end)
        client.send(Tx.Commit())
        settle(node)
        is_free = arguments is QUEUED and outcome == "requeue"  # since the delivery
        assert (1 + is_free, 1 + (outcome == "requeue" and not is_free)) == (
            count(node),
            queue(node).counts().repeated,
        )
        if isinstance(node, DiskNode):
            node = node.killed()
            client = Client(node)
            assert 1 + is_free == count(node)
            published(client)
            assert 1 + is_free == count(node)
        for _ in range(1 + is_free):
            get(Client(node))
        assert 0 == queue(node).ids.count
        if isinstance(node, DiskNode):
            node.disk.close()

    def test_a_transaction_may_publish_what_it_ends_where_consumers_confirm(self, node):
        """Publishers of the first message hear with the transaction, and those of the second from its consumer."""
        client = ready(node, {**RUNNING, "x-confirm-mode": ("longstr", "consumer-ack")}, confirms=True)
        published(client, "1", "1")
        other = Client(node)
        tag = get(other, settled=False)
        other.send(Tx.Select())
        publish(other)
        other.send(make(Basic.Ack, tag, False))
        other.send(Tx.Commit())
        settle(node)
        assert any("delivery_tag=2" in line for line in acks(client))
        published(client)
        assert (1, []) == (count(node), acks(client))
        tag = get(other, settled=False)
        other.send(make(Basic.Ack, tag, False))
        other.send(Tx.Commit())
        settle(node)
        assert "delivery_tag=3" in acks(client)[-1]

    def test_a_publish_after_a_reject_is_no_repeat_while_the_dead_letter_waits(self, node):
        """A message that was rejected in the same read is on its way elsewhere: its id is free."""
        client = ready(node, {**RUNNING, "x-dead-letter-exchange": ("longstr", "amq.fanout")})
        published(client)
        assert 1 == get(client, settled=False)
        again = publish_frames("q", b"m", message_id="1", delivery_mode=2)
        client.receive(encode_method(1, make(Basic.Reject, 1, False)) + again)
        settle(node)
        assert 1 == count(node)

    @pytest.mark.parametrize("arguments", [WINDOW, QUEUED, RUNNING])
    def test_where_consumers_confirm_a_requeue_delays_the_confirm(self, node, arguments):
        """Publishers of messages that come back, and of repeats, hear from the consumer that acks at last."""
        client = ready(node, {**arguments, "x-confirm-mode": ("longstr", "consumer-ack")}, confirms=True)
        other = Client(node)
        published(client, "1", "1")
        tag = get(other, settled=False)
        published(client)
        other.send(make(Basic.Nack, tag, False, True))
        settle(node)
        assert [] == acks(client)
        while count(node):
            get(other)
        found = acks(client)
        assert 3 == len(found) or "multiple" in found[0]
        assert "delivery_tag=3" in found[-1]
        assert all("nack" not in line for line in found)

    @pytest.mark.parametrize("arguments", [WINDOW, QUEUED, RUNNING])
    @pytest.mark.parametrize("way", ["policy", "forgotten", "delayed", "deleted"])
    def test_where_consumers_confirm_nobody_waits_for_ever(self, node, arguments, way):
        """Publishers of repeats are answered with that of the first message, whatever becomes of its id."""
        definition = {name.removeprefix("x-"): value[1] for name, value in arguments.items()}
        more: Table = {"x-confirm-mode": ("longstr", "consumer-ack")}
        if way == "delayed":
            more |= {"x-delayed-retry-type": ("longstr", "all"), "x-delayed-retry-min": ("signedint", 100)}
        client = ready(node, more, confirms=True)
        set_policy(node.vhosts["/"].policies, "p", "^q$", definition)
        node.run_turn()
        published(client, "1", "1")
        other = Client(node)
        tag = get(other, settled=False)
        if way == "policy":
            node.vhosts["/"].policies.clear("p")
            other.send(make(Basic.Ack, tag, False))
        elif way == "forgotten":
            queue(node).ids.forget_all()
            other.send(make(Basic.Nack, tag, False, True))
            other.send(make(Basic.Get, 0, "q", False))
            assert [] == acks(client)
            other.send(make(Basic.Ack, tag + 1, False))
        elif way == "delayed":
            other.send(make(Basic.Nack, tag, False, True))
            settle(node)
            queue(node).purge()
        else:
            other.send(make(Queue.Delete, 0, "q", False, False, False))
            other.send(make(Basic.Ack, tag, False))
        node.run_turn()
        settle(node)
        found = acks(client)
        assert (way in {"delayed", "deleted"}) is any("nack" in line for line in found)
        assert "delivery_tag=2" in found[-1]

    @pytest.mark.parametrize("order", [(1, 2), (2, 1)])
    def test_where_consumers_confirm_a_verdict_is_that_on_its_own_message(self, node, order):
        """The time of an id may be over before a consumer acks: repeats of the next message with it wait for that."""
        client = ready(
            node, once(time=MINUTE, **{"x-confirm-mode": ("longstr", "consumer-ack")}), confirms=True
        )
        for _ in range(2):
            published(client, "1", "1")
            node.pass_time(2 * MINUTE)
        other = Client(node)
        for _ in order:
            get(other, settled=False)
        assert [] == acks(client)
        for tag in order:
            other.send(make(Basic.Ack, tag, False))
            settle(node)
            told = "".join(acks(client))
            assert f"delivery_tag={2 * tag}" in told
            assert (tag == 2 or order == (2, 1)) or "delivery_tag=4" not in told

    def test_where_consumers_confirm_repeats_wait_for_a_message_whose_publisher_does_not(self, node):
        """They hear when the last message with their id is settled; those of an earlier one have to repeat again."""
        arguments = once(time=MINUTE, **{"x-confirm-mode": ("longstr", "consumer-ack")})
        silent, client, other = ready(node, arguments), Client(node), Client(node)
        client.send(Confirm.Select())
        client.sent()
        for _ in range(2):
            published(silent)
            published(client)
            node.pass_time(2 * MINUTE)
        assert ["nack" in line for line in acks(client)] == [True]
        for tag in (1, 2):
            get(other, settled=False)
            assert [] == acks(client)
            other.send(make(Basic.Ack, tag, False))
            settle(node)
        assert "delivery_tag=2" in acks(client)[-1]

    def test_where_consumers_confirm_a_purge_frees_the_second_of_an_id(self, node):
        """In the mode `queued` an unacked message keeps no id of a purged one."""
        client = ready(node, {**QUEUED, "x-confirm-mode": ("longstr", "consumer-ack")}, confirms=True)
        published(client)
        get(Client(node), settled=False)
        published(client)
        queue(node).purge()
        node.run_turn()
        assert "basic.nack" in acks(client)[-1]
        published(client)
        assert 1 == count(node)


class TestOtherWays:
    @pytest.mark.parametrize("arguments", [WINDOW, QUEUED, RUNNING])
    def test_a_dead_letter_that_comes_back_is_no_repeat(self, node, arguments):
        """A message that is dead-lettered and returns to its queue is there, with its id."""
        client = ready(
            node,
            {
                **arguments,
                "x-dead-letter-exchange": ("longstr", ""),
                "x-dead-letter-routing-key": ("longstr", "wait"),
            },
        )
        back: Table = {
            "x-dead-letter-exchange": ("longstr", ""),
            "x-dead-letter-routing-key": ("longstr", "q"),
            "x-message-ttl": ("signedint", 100),
        }
        ready(node, back, "wait")
        published(client)
        for _ in range(2):
            tag = get(client, settled=False)
            client.send(make(Basic.Reject, tag, False))
            settle(node)
            assert (0, 1) == (count(node), count(node, "wait"))
            node.pass_time(100)
            settle(node)
            assert (1, 0) == (count(node), count(node, "wait"))
            published(client)
            assert 1 == count(node)

    def test_of_two_messages_with_an_id_the_last_one_frees_it(self, node):
        """A dead letter with the id of a queued message is taken; the id is known until both are gone."""
        client = ready(node, RUNNING)
        to_q: Table = {
            "x-dead-letter-exchange": ("longstr", ""),
            "x-dead-letter-routing-key": ("longstr", "q"),
            "x-message-ttl": ("signedint", 10),
        }
        ready(node, to_q, "other")
        publish(client)
        publish(client, key="other")
        node.pass_time(10)
        settle(node)
        assert 2 == count(node)
        get(client)
        published(client)
        assert 1 == count(node)
        get(client)
        published(client)
        assert 1 == count(node)

    def test_a_dropped_message_frees_its_id_with_all_that_is_known_of_it(self, node):
        """Of three messages with an id one is dropped for room; the others leave nothing behind."""
        client = ready(node, {**RUNNING, "x-max-length": ("signedint", 2)})
        ready(node, {**TO_Q, "x-message-ttl": ("signedint", 10)}, "other")
        for _ in range(3):
            publish(client, key="other")
        node.pass_time(10)
        settle(node)
        assert 2 == count(node)
        for _ in range(2):
            get(client)
        for _ in range(2):
            published(client)
            assert 1 == count(node)
            get(client)

    def test_while_it_is_queued_nothing_of_a_message_stays(self, node):
        """Messages with one id, and messages without any that come back, take no memory after their end."""
        client = ready(node, QUEUED)
        ready(node, {**TO_Q, "x-message-ttl": ("signedint", 10)}, "other")
        for _ in range(3):
            publish(client, key="other")
        node.pass_time(10)
        client.publish("q", b"none", delivery_mode=2)
        settle(node)
        for _ in range(4):
            tag = get(client, settled=False)
            client.send(make(Basic.Nack, tag, False, True))
            settle(node)
            get(client)
        assert (0, 0, 0) == (count(node), queue(node).ids.count, len(queue(node).ids._loose))

    def test_a_dead_letter_needs_no_room_for_its_id(self, node):
        """A queue that knows as many ids as it may takes a message that was in a queue before, without its id."""
        node.context.ids.most = 2
        client = ready(node, RUNNING)
        ready(node, {**TO_Q, "x-message-ttl": ("signedint", 10)}, "other")
        publish(client, "1")
        publish(client, "2", key="other")
        node.pass_time(10)
        settle(node)
        assert (2, 1) == (count(node), queue(node).ids.count)

    @pytest.mark.parametrize(
        ("arguments", "is_free"), [(WINDOW, False), (QUEUED, True), (RUNNING, True), (once("body"), True)]
    )
    def test_an_expired_message_has_left_the_queue(self, node, arguments, is_free):
        """Expiry ends what depends on the queue, and no window."""
        client = ready(node, {**arguments, "x-message-ttl": ("signedint", 100)})
        publish(client)
        node.pass_time(100)
        settle(node)
        assert 0 == count(node)
        publish(client)
        assert int(is_free) == count(node)

    @pytest.mark.parametrize("arguments", [WINDOW, QUEUED, RUNNING])
    def test_what_a_full_queue_drops_or_refuses_leaves_no_id(self, node, arguments):
        """The publisher of a message that was dropped for room, or refused, may publish it once more."""
        client = ready(node, {**arguments, "x-max-length": ("signedint", 1)}, confirms=True)
        for text in ("1", "2", "1"):
            publish(client, text)
            settle(node)
        assert 1 == count(node)
        assert 0 == queue(node).counts().repeated
        rejecting: Table = {"x-max-length": ("signedint", 1), "x-overflow": ("longstr", "reject-publish")}
        ready(node, {**arguments, **rejecting}, "p")
        client.take()
        for text in ("1", "2", "1"):
            publish(client, text, key="p")
            settle(node)
        assert ["ack" in line and "nack" not in line for line in acks(client)] == [True, False, True]
        assert 1 == queue(node, "p").counts().repeated
        queue(node, "p").purge()
        publish(client, "2", key="p")
        settle(node)
        assert 1 == count(node, "p")

    def test_a_purge_frees_ids_that_depend_on_the_queue_but_those_of_unacked_messages(self, node):
        """After a purge the purged messages may be published again, and an unacked one may not."""
        client = ready(node, RUNNING)
        published(client, "1", "2")
        tag = get(client, settled=False)
        queue(node).purge()
        settle(node)
        published(client, "1", "2")
        assert 1 == count(node)
        client.send(make(Basic.Ack, tag, False))
        published(client)
        assert 2 == count(node)

    def test_a_purge_ends_no_window(self, node):
        """In a window an id is known for its time."""
        client = ready(node, WINDOW)
        published(client)
        queue(node).purge()
        published(client)
        assert 0 == count(node)

    def test_a_retry_that_waits_is_in_the_queue(self, node):
        """A message that waits for its next delivery keeps its id, and a purge of it frees that."""
        delays: Table = {
            "x-delayed-retry-type": ("longstr", "all"),
            "x-delayed-retry-min": ("signedint", 100),
        }
        client = ready(node, {**RUNNING, **delays})
        published(client)
        tag = get(client, settled=False)
        client.send(make(Basic.Nack, tag, False, True))
        settle(node)
        assert 1 == queue(node).held_count
        published(client)
        assert 0 == count(node)
        node.pass_time(100)
        settle(node)
        assert 1 == count(node)
        tag = get(client, settled=False)
        client.send(make(Basic.Nack, tag, False, True))
        settle(node)
        assert 1 == queue(node).held_count
        queue(node).purge()
        published(client)
        assert 1 == count(node)

    def test_a_held_message_is_in_the_queue(self, node):
        """A message that waits for its time is the only one of its id; a cancelled one leaves none."""
        client = ready(node, {**RUNNING, "x-allow-hold": ("bool", True)})
        later: Table = {"x-delay": ("signedint", 500)}
        publish(client, headers=later)
        publish(client)
        publish(client, headers=later)
        settle(node)
        assert (1, 0) == (queue(node).held_count, count(node))
        node.pass_time(500)
        settle(node)
        published(client)
        assert (0, 1) == (queue(node).held_count, count(node))
        get(client)
        publish(client, headers=later)
        settle(node)
        steps = node.administration.held.act(None, "/", "q", "cancel")
        for _ in steps:
            pass
        published(client)
        assert (0, 1) == (queue(node).held_count, count(node))

    def test_a_held_message_that_moves_takes_its_id_along(self, node):
        """Its id is free in the queue that has held it, and known in the other one, also after a kill."""
        holding: Table = {**RUNNING, "x-allow-hold": ("bool", True)}
        client = ready(node, holding)
        ready(node, holding, "p")
        publish(client, headers={"x-delay": ("signedint", 500)})
        settle(node)
        for _ in node.administration.held.act(None, "/", "q", "move", destination="p"):
            pass
        node.run_turn()
        settle(node)
        if isinstance(node, DiskNode):
            node = node.killed()
            client = Client(node)
        publish(client)
        publish(client, key="p")
        settle(node)
        assert (1, 0) == (count(node), count(node, "p"))
        if isinstance(node, DiskNode):
            node.disk.close()

    def test_a_message_that_is_not_held_for_want_of_room_leaves_no_id(self, node):
        """A queue that holds as many as it may refuses the next one."""
        client = ready(
            node, {**RUNNING, "x-allow-hold": ("bool", True), "x-max-held": ("signedint", 0)}, confirms=True
        )
        publish(client, headers={"x-delay": ("signedint", 500)})
        published(client)
        assert 1 == count(node)

    def test_a_delayed_message_is_a_repeat_when_it_is_due(self, node):
        """An exchange that delays takes all; the queue takes the first of an id that is due."""
        client = ready(node, WINDOW)
        kind: Table = {"x-delayed-type": ("longstr", "fanout")}
        client.send(
            make(Exchange.Declare, 0, "d", "x-delayed-message", False, True, False, False, False, kind)
        )
        client.send(make(Queue.Bind, 0, "q", "d", "", False, {}))
        settle(node)
        for delay in (100, 200):
            publish(client, exchange="d", headers={"x-delay": ("signedint", delay)})
        settle(node)
        node.pass_time(200)
        settle(node)
        settle(node)
        assert 1 == count(node)
        assert 1 == queue(node).counts().repeated

    def test_each_queue_of_a_fanout_knows_its_own_ids(self, node):
        """A message is a repeat in one queue and not in another; its confirm waits for both."""
        client = ready(node, WINDOW, confirms=True)
        ready(node, once(mode="running"), "p")
        ready(node, {}, "r")
        for name in "qpr":
            client.send(make(Queue.Bind, 0, name, "amq.fanout", "", False, {}))
        settle(node)
        client.take()
        publish(client)
        publish(client, exchange="amq.fanout")
        publish(client, exchange="amq.fanout", headers={"BCC": ("array", [("longstr", "q")])})
        settle(node)
        assert (1, 1, 2) == (count(node), count(node, "p"), count(node, "r"))
        assert all("nack" not in line for line in acks(client))

    @pytest.mark.parametrize("kind", ["priorities", "quorum"])
    def test_other_queues_take_each_message_once_too(self, node, kind):
        """Queues with priorities, and quorum queues, which store all messages."""
        more: Table = (
            {"x-max-priority": ("signedint", 5)}
            if kind == "priorities"
            else {"x-queue-type": ("longstr", kind)}
        )
        client = ready(node, {**RUNNING, **more})
        publish(client, priority=1)
        publish(client, priority=4)
        publish(client, "2", mode=1, priority=4)
        publish(client, "2", mode=1)
        settle(node)
        assert 2 == count(node)
        if isinstance(node, DiskNode):
            node = node.killed()
            client = Client(node)
            publish(client)
            publish(client, "2", mode=1)
            assert 2 == count(node)
            node.disk.close()

    def test_a_channel_that_closes_gives_its_messages_back(self, node):
        """Unacked messages of a closed channel are queued again, each once."""
        client = ready(node, RUNNING)
        published(client)
        get(client, settled=False)
        client.send(make(Channel.Close, 200, "", 0, 0))
        settle(node)
        publish(Client(node))
        settle(node)
        assert 1 == count(node)

    def test_an_internal_error_leaves_no_id(self, node, monkeypatch):
        """A message that a queue could not take because of a bug may be published again."""
        client = ready(node, WINDOW)
        backing = queue(node).backing
        with monkeypatch.context() as patch:
            patch.setattr(type(backing), "publish", lambda *_args, **_options: 1 / 0)
            publish(client)
        published(client)
        assert 1 == count(node)


class TestReplaced:
    """A persistent message is no repeat of a message that is in memory only."""

    @pytest.mark.parametrize("arguments", [WINDOW, QUEUED, RUNNING])
    @pytest.mark.parametrize("is_one_read", [True, False])
    def test_a_stored_message_replaces_one_in_memory(self, disk_node, arguments, is_one_read):
        """It is taken and confirmed, the first one is dropped before it is delivered, and a kill loses nothing."""
        client = ready(disk_node, arguments, confirms=True)
        publish(client, mode=1)
        if not is_one_read:
            settle(disk_node)
        publish(client)
        publish(client)
        publish(client, mode=1)
        settle(disk_node)
        assert "nack" not in "".join(acks(client))
        assert 2 == queue(disk_node).counts().repeated
        again = disk_node.killed()
        assert 1 == count(again)
        publish(Client(again))
        publish(Client(again), mode=1)
        settle(again)
        assert 1 == count(again)
        get(Client(again))
        assert (0, 0) == (count(again), queue(again).ids.count if arguments is not WINDOW else 0)
        again.disk.close()

    @pytest.mark.parametrize("arguments", [WINDOW, QUEUED, RUNNING])
    @pytest.mark.parametrize("way", ["get", "consumer", "no-ack", "waiting"])
    def test_of_the_two_consumers_get_one(self, disk_node, arguments, way):
        """The first one is dropped as it would be delivered, in whatever way, and its place is free."""
        client = ready(disk_node, {**arguments, "x-max-length-bytes": ("signedint", 1000)})
        if way == "waiting":
            client.send(basic_consume("q", "c"))
            client.receive(
                publish_frames("q", b"m", message_id="1", delivery_mode=1)
                + publish_frames("q", b"m", message_id="1", delivery_mode=2)
            )
        else:
            publish(client, mode=1)
            publish(client)
        settle(disk_node)
        if way == "get":
            get(client)
        elif way != "waiting":
            client.send(basic_consume("q", "c", no_ack=way == "no-ack"))
        settle(disk_node)
        found = sum(isinstance(item.method, Basic.Deliver) for item in client.take())
        assert int(way != "get") == found
        assert (0, 0) == (count(disk_node), queue(disk_node).limits.octets)
        assert int(way in {"consumer", "waiting"}) == queue(disk_node).unacked_count

    @pytest.mark.parametrize("arguments", [WINDOW, RUNNING])
    def test_a_message_that_is_settled_meanwhile_is_not_delivered_again(self, disk_node, arguments):
        """While the first is unacked the second waits; if the first is acked the second is dropped, else it is not."""
        client = ready(disk_node, arguments)
        for end in (make(Basic.Ack, 0, True), make(Basic.Nack, 0, True, True)):
            publish(client, mode=1)
            settle(disk_node)
            get(client, settled=False)
            published(client)
            assert 1 == count(disk_node)
            client.send(end)
            settle(disk_node)
            is_acked = isinstance(end, Basic.Ack)
            assert 2 - is_acked == count(disk_node)
            client.send(make(Basic.Get, 0, "q", False))
            settle(disk_node)
            assert int(not is_acked) == sum(isinstance(item.method, Basic.GetOk) for item in client.take())
            assert 0 == count(disk_node)
            if arguments is WINDOW:
                queue(disk_node).ids.forget_all()

    @pytest.mark.parametrize("arguments", [WINDOW, once(mode="running", time=MINUTE)])
    def test_a_stored_message_is_a_repeat_of_one_that_was_settled(self, disk_node, arguments):
        """A consumer is done with the first: the second is dropped, and a kill forgets that no more."""
        client = ready(disk_node, arguments, confirms=True)
        publish(client, mode=1)
        settle(disk_node)
        get(Client(disk_node))
        publish(client)
        publish(client)
        assert 1 == len(acks(client)), "they wait for the commit"
        settle(disk_node)
        assert 1 == len(acks(client))
        again = disk_node.killed()
        publish(Client(again))
        assert 0 == count(again)
        again.disk.close()

    @pytest.mark.parametrize("way", ["expired", "purged", "dropped"])
    def test_what_replaces_a_message_is_delivered_if_that_goes(self, disk_node, way):
        """The end of the first without a consumer leaves the second one and its id."""
        client = ready(disk_node, {**RUNNING, "x-max-length": ("signedint", 2)})
        options = {"expiration": "10"} if way == "expired" else {}
        publish(client, mode=1, **options)
        published(client)
        if way == "expired":
            disk_node.pass_time(20)
        elif way == "dropped":
            publish(client, "2")
        else:
            queue(disk_node).purge()
            publish(client)
        settle(disk_node)
        disk_node = disk_node.killed()
        client = Client(disk_node)
        published(client)
        assert 1 + (way == "dropped") == count(disk_node)
        get(client)
        published(client)
        assert 1 + (way == "dropped") == count(disk_node)
        disk_node.disk.close()

    def test_in_a_queue_that_stores_nothing_it_is_a_repeat(self, node):
        """A queue that no message survives answers a persistent repeat by a transient message."""
        client = Client(node)
        client.declare("q", arguments=RUNNING)
        publish(client, mode=1)
        published(client)
        assert 1 == count(node)


class TestRecovery:
    @pytest.mark.parametrize("is_cut", [True, False])
    def test_a_mode_that_was_changed_between_two_commits_leaves_no_id(self, disk_node, is_cut):
        """A kill may leave the policy without the end of the ids: a start with other settings forgets them."""
        client = ready(disk_node, {})
        policies = disk_node.vhosts["/"].policies
        set_policy(policies, "p", "^q$", {"deduplicate": "message_id", "deduplicate-mode": "running"})
        disk_node.run_turn()
        publish(client)
        disk_node.commit()
        get(client)
        published(client)
        start = id_log.IdLog.start_anew
        with pytest.MonkeyPatch.context() as patch:
            if is_cut:  # the change of the rows is in a later commit, which never comes
                patch.setattr(id_log.IdLog, "start_anew", lambda _: None)
            set_policy(policies, "p", "^q$", {"deduplicate": "message_id", "deduplicate-for": MINUTE})
            disk_node.commit()
        assert start is id_log.IdLog.start_anew
        again = disk_node.killed()
        again.commit()
        get(Client(again))
        assert 0 == queue(again).ids.count
        publish(Client(again))
        settle(again)
        assert 1 == count(again)
        again.disk.close()

    def test_of_two_stored_messages_with_an_id_the_last_one_frees_it_after_a_kill(self, disk_node):
        """The number of messages that have an id is recovered with it."""
        client = ready(disk_node, RUNNING)
        ready(disk_node, {**TO_Q, "x-message-ttl": ("signedint", 10)}, "other")
        publish(client)
        publish(client, key="other")
        disk_node.pass_time(10)
        settle(disk_node)
        for left in (1, 0):
            disk_node = disk_node.killed()
            client = Client(disk_node)
            assert left + 1 == count(disk_node)
            published(client)
            assert left + 1 == count(disk_node)
            get(client)
            settle(disk_node)
        published(client)
        assert 1 == count(disk_node)
        disk_node.disk.close()

    @pytest.mark.parametrize("when", ["before", "after"])
    def test_while_queued_a_message_that_comes_back_after_a_kill_frees_no_other(self, disk_node, when):
        """The id is that of the message which was never delivered, whether it came before the kill or after it."""
        client = ready(disk_node, QUEUED)
        published(client)
        get(client, settled=False)
        if when == "before":
            publish(client)
        settle(disk_node)
        disk_node = disk_node.killed()
        client = Client(disk_node)
        published(client)
        assert 2 == count(disk_node)
        get(client)
        published(client)
        assert 1 == count(disk_node), "the other is queued still"
        get(client)
        assert 0 == queue(disk_node).ids.count
        published(client)
        assert 1 == count(disk_node)
        disk_node.disk.close()

    def test_a_message_in_memory_keeps_no_id_on_disk(self, disk_node):
        """The stored message of an id frees it on disk, although another one that a kill loses has it."""
        client = ready(disk_node, RUNNING)
        publish(client, "1", mode=1)
        published(client, "2")
        tag = get(client, settled=False)
        published(client)
        get(client)
        get(client)
        assert tag == 1
        again = disk_node.killed()
        publish(Client(again), "1")
        settle(again)
        assert 1 == count(again)
        again.disk.close()


class TestOperators:
    def test_what_is_forgotten_while_it_is_unacked_stays_forgotten(self, node):
        """The end of a message whose id was forgotten, alone or with all, begins no time and frees no other id."""
        client = ready(node, once(mode="running", time=MINUTE))
        for text in ("1", "2", "3"):
            publish(client, text)
        settle(node)
        tags = [get(client, settled=False) for _ in range(2)]
        queue(node).ids.forget("1")
        client.send(make(Basic.Ack, tags[0], False))
        published(client)
        assert 2 == count(node)
        queue(node).ids.forget_all()
        client.send(make(Basic.Ack, tags[1], False))
        published(client, "2", "2")
        assert 3 == count(node)

    def test_an_id_can_be_looked_up_and_forgotten(self, node):
        """Whoever asks learns until when an id is known; a forgotten one is taken again, also after a kill."""
        client = ready(node, WINDOW)
        published(client, "1", "2")
        ids = queue(node).ids
        assert 0 <= ids.known_until("1") - node.wall_clock() - MINUTE < 16
        assert ids.known_until("3") is None
        assert ids.forget("1")
        assert not ids.forget("1")
        settle(node)
        published(client, "1", "2")
        assert 3 == count(node)
        assert 2 == ids.forget_all()
        settle(node)
        published(client, "2")
        assert 4 == count(node)


def large(node: DiskNode) -> bytes:
    """Return a body that is written to a file of its own."""
    return bytes(node.disk.blob_threshold + 1)


class TestDisk:
    @pytest.mark.parametrize("arguments", [WINDOW, QUEUED, RUNNING])
    @pytest.mark.parametrize("end", ["killed", "restarted"])
    def test_ids_survive_a_kill_and_a_restart(self, disk_node, arguments, end):
        """After either the queue knows the ids of its messages, and a check finds nothing."""
        client = ready(disk_node, arguments)
        published(client, "1", "2")
        get(client)
        again = getattr(disk_node, end)()
        client = Client(again)
        publish(client, "2")
        assert 1 == count(again)
        publish(client, "1")
        assert 1 + (arguments is not WINDOW) == count(again)
        again.commit()
        assert [] == findings(again)

    def test_a_message_of_an_earlier_run_that_expires_leaves_the_id_to_another(self, disk_node):
        """It was delivered there, so its id was free, and the next message has it."""
        client = ready(disk_node, QUEUED)
        publish(client, expiration="60000")
        get(client, settled=False)
        again = disk_node.killed()
        client = Client(again)
        publish(client)
        assert 2 == count(again)
        again.pass_time(60_001)
        settle(again)
        assert 1 == count(again)
        publish(client)
        assert 1 == count(again)
        again.disk.close()

    def test_the_dead_letter_of_a_promised_message_comes_with_its_id(self, disk_node):
        """One commit has both, although publishers hear after that only."""
        dead: Table = {
            "x-confirm-mode": ("longstr", "consumer-ack"),
            "x-dead-letter-exchange": ("longstr", ""),
            "x-dead-letter-routing-key": ("longstr", "dead"),
        }
        Client(disk_node).declare("dead", durable=True)
        client = ready(disk_node, once(time=MINUTE) | dead, confirms=True)
        published(client)
        client.send(make(Basic.Reject, get(client, settled=False), False))
        disk_node.commit()
        again = disk_node.killed()
        publish(Client(again))
        assert (0, 1) == (count(again), count(again, "dead"))
        again.disk.close()

    @pytest.mark.parametrize("scope", ["queue", "exchange"])
    @pytest.mark.parametrize("mode", [1, 2])
    def test_a_transaction_that_ends_a_promised_message_has_its_id(self, disk_node, scope, mode):
        """One commit has what a consumer publishes instead, and the id that keeps a repeat out."""
        acks_confirm: Table = {"x-confirm-mode": ("longstr", "consumer-ack")}
        arguments = once(time=MINUTE)
        client = ready(disk_node, acks_confirm | (arguments if scope == "queue" else {}), confirms=True)
        for method in (
            make(Exchange.Declare, 0, "e", "fanout", False, True, False, False, False, arguments),
            make(Queue.Bind, 0, "q", "e", "", False, {}),
            make(Queue.Declare, 0, "out", False, True, False, False, False, {}),
        ):
            client.send(method)
            settle(disk_node)
        options = {"exchange": "e"} if scope == "exchange" else {}
        publish(client, mode=mode, **options)
        publish(client, mode=mode, **options)
        settle(disk_node)
        other = Client(disk_node)
        tag = get(other, settled=False)
        client.sent()
        other.send(Tx.Select())
        other.publish("out", b"m", delivery_mode=2)
        other.send(make(Basic.Ack, tag, False))
        other.send(Tx.Commit())
        assert [] == acks(client)
        disk_node.commit()
        again = disk_node.killed()
        publish(Client(again), **options)
        assert (0, 1) == (count(again), count(again, "out"))
        again.disk.close()

    @pytest.mark.parametrize("size", [1, None])
    @pytest.mark.parametrize("arguments", [QUEUED, RUNNING])
    @pytest.mark.parametrize("no_ack", [True, False])
    def test_a_message_that_is_delivered_at_once_leaves_no_id_on_disk(
        self, disk_node, arguments, size, no_ack
    ):
        """An id that was free again before it was noted is unknown after a kill."""
        client = ready(disk_node, arguments)
        client.send(basic_consume("q", "c", no_ack=no_ack))
        publish(client, body=bytes(size or disk_node.disk.blob_threshold + 1))
        disk_node.commit()
        disk_node.write_files()
        if not no_ack:
            client.send(make(Basic.Ack, 1, False))
        disk_node.commit()
        again = disk_node.killed()
        publish(Client(again))
        assert 1 == count(again)
        again.disk.close()

    @pytest.mark.parametrize("arguments", [WINDOW, QUEUED, RUNNING])
    def test_a_message_that_is_dropped_at_once_leaves_no_id_on_disk(self, disk_node, arguments):
        """A message over a limit is dropped in the run that took it, and may be published again after a kill."""
        ready(disk_node, {**arguments, "x-max-length": ("signedint", 1)})
        for text in ("1", "2"):
            header = build(0, message_id=text, delivery_mode=2)
            message = Message(b"\0\1q", content_frames(1, 4096, header, b""), 1)
            distribute(disk_node.turn, [queue(disk_node)], message, persistent=True)
        disk_node.run_turn()
        disk_node.commit()
        again = disk_node.killed()
        publish(Client(again), "1")
        assert 0 == queue(again).counts().repeated
        again.disk.close()

    @pytest.mark.parametrize("arguments", [QUEUED, RUNNING])
    def test_a_transient_dead_letter_leaves_the_stored_id_of_another_message(self, disk_node, arguments):
        """The last of them frees the id on disk, too."""
        client = ready(disk_node, arguments)
        ready(disk_node, {**TO_Q, "x-message-ttl": ("signedint", 10)}, "other")
        publish(client)
        publish(client, key="other", mode=1)
        disk_node.pass_time(10)
        settle(disk_node)
        for _ in range(2):
            get(client)
        again = disk_node.killed()
        publish(Client(again))
        assert 1 == count(again)
        again.disk.close()

    def test_a_kill_before_the_commit_forgets_message_and_id(self, disk_node):
        """An id is on disk if, and only if, its message is: what was not committed can be published again."""
        client = ready(disk_node, WINDOW)
        publish(client)
        again = disk_node.killed()
        publish(Client(again))
        assert 1 == count(again)
        again.commit()
        last = again.killed()
        assert 1 == count(last)
        publish(Client(last))
        assert 1 == count(last)
        last.disk.close()

    @pytest.mark.parametrize("arguments", [WINDOW, RUNNING])
    def test_a_large_body_and_its_id_are_in_one_commit(self, disk_node, arguments):
        """Before the file of a body is written there is no id on disk; after it there are both."""
        client = ready(disk_node, arguments, confirms=True)
        publish(client, body=large(disk_node))
        publish(client)
        disk_node.commit()
        assert [] == acks(client)
        assert [] == rows(disk_node)
        disk_node.write_files()
        assert 1 == len(acks(client))
        again = disk_node.killed()
        publish(Client(again))
        assert 1 == count(again)
        again.disk.close()

    @pytest.mark.parametrize("arguments", [WINDOW, once(mode="running", time=MINUTE)])
    @pytest.mark.parametrize("size", [1, None])
    @pytest.mark.parametrize("is_full", [True, False])
    def test_an_id_is_stored_with_the_end_of_a_message_that_is_not(self, disk_node, arguments, size, is_full):
        """A message whose answer comes before its own commit is answered once, and not lost if the disk is full."""
        client = ready(disk_node, arguments)
        ready(disk_node, {}, "out")
        publish(client, "0")
        disk_node.commit()
        get(client)
        disk_node.commit()
        worker = Client(disk_node)
        worker.send(Tx.Select())
        publish(client, body=bytes(size or disk_node.disk.blob_threshold + 1))
        if size is None:
            settle(disk_node)
            disk_node.end_files()
        worker.send(make(Basic.Get, 0, "q", False))  # nothing is committed before it is delivered
        disk_node.run_turn()
        publish(worker, "answer", key="out")
        worker.send(make(Basic.Ack, 1, False))
        worker.send(Tx.Commit())
        if is_full:
            disk_node.fail()
        else:
            disk_node.commit()
        again = disk_node.killed()
        publish(Client(again))
        assert 1 == count(again) + count(again, "out")
        assert is_full == count(again)
        again.disk.close()

    def test_the_end_of_a_message_that_no_commit_had_makes_no_id_known(self, disk_node):
        """If neither of two commits finds space, the message is published again after a kill."""
        client = ready(disk_node, once(mode="running", time=MINUTE))
        publish(client, "0")
        disk_node.commit()
        publish(client)
        disk_node.fail()
        get_now = make(Basic.Get, 0, "q", False)
        for _ in range(2):
            client.send(get_now)
        disk_node.run_turn()
        client.send(make(Basic.Ack, 2, True))
        disk_node.run_turn()
        disk_node.fail()
        again = disk_node.killed()
        before = count(again)
        publish(Client(again))
        assert before + 1 == count(again)
        again.disk.close()

    @pytest.mark.parametrize("arguments", [WINDOW, RUNNING])
    @pytest.mark.parametrize("end", ["kill", "file", "ack"])
    def test_a_large_dead_letter_has_its_id_with_its_file(self, disk_node, arguments, end):
        """Before that its id is on no disk, as it may be in the other queue only; but repeats are dropped."""
        to = {"x-dead-letter-exchange": ("longstr", ""), "x-dead-letter-routing-key": ("longstr", "q")}
        client = ready(disk_node, arguments, confirms=True)
        ready(disk_node, to, "first")
        publish(client, body=large(disk_node), key="first")
        disk_node.commit()
        disk_node.write_files()
        worker = Client(disk_node)
        worker.send(make(Basic.Get, 0, "first", False))
        worker.send(make(Basic.Reject, 1, False))
        disk_node.run_turn()
        client.sent()
        publish(client)
        disk_node.commit()
        assert (1, [], []) == (count(disk_node), acks(client), rows(disk_node))
        if end == "ack":
            get(Client(disk_node))
            disk_node.commit()
        if end != "kill":
            disk_node.write_files()
            assert 1 == len(acks(client))
        again = disk_node.killed()
        other = Client(again)
        publish(other)
        settle(again)
        is_known = end == "file" or (end == "ack" and arguments is WINDOW)
        assert (end == "file") + (not is_known) == count(again)
        again.disk.close()

    def test_a_large_body_in_a_transaction_has_its_id_too(self, disk_node):
        """Its file is written before anything takes effect."""
        client = ready(disk_node, WINDOW)
        client.send(Tx.Select())
        publish(client, body=large(disk_node))
        client.send(Tx.Commit())
        disk_node.write_files()
        disk_node.commit()
        again = disk_node.killed()
        assert 1 == count(again)
        publish(Client(again))
        assert 1 == count(again)
        again.disk.close()

    def test_transient_messages_leave_no_id_on_disk(self, disk_node):
        """A message that a restart loses may be published again after it."""
        client = ready(disk_node, WINDOW)
        publish(client, mode=1)
        publish(client, mode=1)
        assert 1 == count(disk_node)
        disk_node.commit()
        again = disk_node.killed()
        publish(Client(again), mode=1)
        assert 1 == count(again)
        again.disk.close()

    def test_the_rows_are_rewritten_and_lose_nothing(self, disk_node, monkeypatch):
        """However long a queue runs, its rows are those of a few times its ids, and a kill finds exactly these."""
        monkeypatch.setattr(id_log, "FEW_CHANGES", 10)
        monkeypatch.setattr(id_log, "LEAST_COPIED", 60)
        monkeypatch.setattr(id_log, "FEW_ROWS", 4)
        client = ready(disk_node, RUNNING)
        for number in range(5):
            publish(client, f"stays {number}")
        most = 0
        for number in range(300):
            publish(client, str(number))
            tags = [get(client, settled=False) for _ in range(6)]
            client.send(make(Basic.Ack, tags.pop(), False))
            for tag in tags:
                client.send(make(Basic.Nack, tag, False, True))
            disk_node.commit()
            most = max(most, len(rows(disk_node)))
            if not number % 50:
                disk_node = disk_node.killed()
                client = Client(disk_node)
        assert most < 60
        for number in range(5):
            publish(client, f"stays {number}")
        publish(client, "0")
        assert 6 == count(disk_node)
        disk_node.commit()
        assert [] == findings(disk_node)

    def test_a_rewritten_log_has_no_id_before_its_message(self, disk_node, monkeypatch):
        """A table that is written again leaves out ids whose messages wait for a file."""
        monkeypatch.setattr(id_log, "FEW_CHANGES", -1000)
        client = ready(disk_node, WINDOW)
        publish(client, "1")
        disk_node.commit()
        body = large(disk_node)
        message = Message(
            b"\0\1q", content_frames(1, 1 << 20, build(len(body), message_id="2", delivery_mode=2), body), 1
        )
        distribute(disk_node.turn, [queue(disk_node)], message, persistent=True)
        disk_node.run_turn()
        queue(disk_node).ids.forget("1")
        for _ in range(3):
            queue(disk_node).ids._ids.log.known.put(b"x" * 10, value_until(disk_node.wall_clock() + 1000))
            disk_node.disk.environment.commit(disk_node.disk.journal.cut())
            disk_node.disk.journal.settled(None)
        again = disk_node.killed()
        publish(Client(again), "2")
        assert 2 == count(again)
        again.disk.close()

    def test_compaction_keeps_ids(self, disk_node):
        """A compacted file has them."""
        client = ready(disk_node, WINDOW)
        publish(client)
        disk_node.commit()
        disk_node.disk.close()
        compact(disk_node.data_dir)
        again = DiskNode(disk_node.data_dir)
        again.clock.now = disk_node.clock.now
        publish(Client(again))
        assert 1 == count(again)
        again.disk.close()

    def test_a_deleted_queue_leaves_no_rows(self, disk_node, monkeypatch):
        """The ids of a queue go with it, a part with each commit, and those of a new queue of its name are its own."""
        monkeypatch.setattr("leveret.storage.delayed.SWEEP_ROWS", 1)
        client = ready(disk_node, WINDOW)
        for number in range(3):
            publish(client, str(number))
            disk_node.commit()
        client.send(make(Queue.Delete, 0, "q", False, False, False))
        disk_node.commit()
        again = disk_node.killed()
        client = ready(again, WINDOW)
        publish(client, "1")
        for _ in range(5):
            again.commit()
        assert 1 == count(again)
        assert 2 == len(rows(again))
        again.disk.close()

    def test_ids_of_a_queue_that_deduplicates_no_more_are_forgotten_at_the_start(self, disk_node):
        """A policy that was removed before a start leaves no rows."""
        client = ready(disk_node, {})
        set_policy(
            disk_node.vhosts["/"].policies, "p", "^q$", {"deduplicate": "body", "deduplicate-for": MINUTE}
        )
        disk_node.run_turn()
        publish(client)
        disk_node.commit()
        assert 2 == len(rows(disk_node))
        disk_node.vhosts["/"].policies.clear("p")
        disk_node.commit()
        again = disk_node.killed()
        again.commit()
        again.commit()
        assert [] == rows(again)
        again.disk.close()

    @pytest.mark.parametrize("arguments", [RUNNING, QUEUED, once(mode="running", time=MINUTE)])
    def test_on_a_full_disk_an_id_is_freed_before_its_message_is_deleted(
        self, disk_node, monkeypatch, arguments
    ):
        """A kill after a commit that found space for deletions only leaves no id without a message."""
        client = ready(disk_node, arguments)
        published(client)
        client.send(make(Basic.Get, 0, "q", True))
        environment = disk_node.disk.environment
        whole = environment._put_rows
        calls = []

        def put_rows(txn: Any, rows: Any) -> Any:
            calls.append(1)
            if len(calls) == 1:
                raise environment_full()
            return whole(txn, rows)

        monkeypatch.setattr(environment, "_put_rows", put_rows)
        publish(client, "new")
        with pytest.raises(Exception, match="full"):
            environment.commit(disk_node.disk.journal.cut())
        again = disk_node.killed()
        assert 0 == count(again)
        if "x-deduplicate-for" in arguments:
            again.pass_time(MINUTE + 20)
        publish(Client(again))
        publish(Client(again), "new")
        assert 2 == count(again)
        again.disk.close()

    def test_a_damaged_row_is_reported_and_the_others_count(self, disk_node):
        """A start that cannot read some ids counts that, and knows the others."""
        client = ready(disk_node, WINDOW)
        for text in ("1", "2"):
            publish(client, text)
            disk_node.commit()
        store = disk_node.disk.environment.store
        with store.env.begin(write=True) as txn:
            key = next(key for key, _ in txn.cursor(store.db["ids"]) if len(key) > 8)
            txn.put(key, b"x" * 30, db=store.db["ids"])
        again = disk_node.killed()
        publish(Client(again), "1")
        publish(Client(again), "2")
        assert 3 == count(again)
        assert 1 == sum(damage.kind == "ids" for damage in again.disk.damages.take())
        assert ["ids"] == [each.where.split()[0] for each in findings(again)]

    def test_what_a_stop_writes_of_promised_messages_has_its_ids(self, disk_node):
        """A graceful stop writes persistent messages whose consumers have not acked, with their ids."""
        client = ready(disk_node, {**RUNNING, "x-confirm-mode": ("longstr", "consumer-ack")}, confirms=True)
        published(client)
        for flush in ShutdownFlush.all_of(queue(disk_node), disk_node.disk.blob_threshold):
            while flush.left:
                flush.step()
        again = disk_node.restarted()
        publish(Client(again))
        assert 1 == count(again)
        again.disk.close()


def environment_full() -> Exception:
    """Return the error of a database that has no room."""
    import lmdb

    return lmdb.MapFullError("full")
