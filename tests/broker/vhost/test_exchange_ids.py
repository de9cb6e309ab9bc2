"""Exchanges that take each message once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doubles.fakes import Client, DiskNode, Node, node_in, publish_frames, queue_declare, set_policy, settle

from leveret.broker.amqp.commands import Basic, Confirm, Exchange, Queue, Tx, make
from leveret.broker.amqp.tables import Table
from leveret.broker.queue import id_log
from leveret.broker.server import shutdown
from leveret.storage import delayed
from leveret.storage.store.check import Check, Finding

MINUTE = 60_000
ACKS: Table = {"x-confirm-mode": ("longstr", "consumer-ack")}
ONCE: Table = {"x-deduplicate": ("longstr", "message_id"), "x-deduplicate-for": ("signedint", MINUTE)}


@pytest.fixture(params=["memory", "disk"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    with node_in(request.param, tmp_path) as made:
        yield made


def do(client: Client, *methods: Any) -> list[str]:
    """Send methods, each of which has its effect before the next; returns the answers."""
    for method in methods:
        client.send(method)
        settle(client.node)
    return client.sent()


def declare(
    client: Client, name: str = "e", arguments: Table = ONCE, kind: str = "fanout", **flags: Any
) -> list[str]:
    durable = flags.pop("durable", True)
    return do(client, make(Exchange.Declare, 0, name, kind, False, durable, False, False, False, arguments))


def ready(
    node: Node,
    *queues: str,
    arguments: Table = ONCE,
    confirms: bool = False,
    durable: bool = True,
    **options: Any,
) -> Client:
    """Return a client that has declared an exchange e, and bound durable queues to it."""
    client = Client(node)
    declare(client, arguments=arguments, **options)
    for name in queues or ("q",):
        do(client, queue_declare(name, durable=durable))
        do(client, make(Queue.Bind, 0, name, "e", "", False, {}))
    settle(node)
    if confirms:
        client.send(Confirm.Select())
    client.take()
    return client


def bind_acked(client: Client) -> None:
    """Declare a queue c whose consumers confirm, and bind it to e."""
    do(
        client,
        queue_declare("c", durable=True, arguments=ACKS),
        make(Queue.Bind, 0, "c", "e", "", False, {}),
    )


def publish(client: Client, text: str = "1", body: bytes = b"m", mode: int = 2, **options: Any) -> None:
    options = {"exchange": "e", "message_id": text, "delivery_mode": mode, **options}
    client.publish(options.pop("key", ""), body, **options)


def count(node: Node, name: str = "q") -> int:
    return int(node.vhosts["/"].queues[name].ready_count)


def repeated(node: Node) -> int:
    """Return how many repeats e has dropped."""
    return node.vhosts["/"].once["e"].tally.repeated


def acks(client: Client) -> list[str]:
    """Return the confirms that were sent since the last call."""
    return [line for line in client.sent() if "basic.ack" in line or "basic.nack" in line]


def large(node: DiskNode) -> bytes:
    """Return a body that is written to a file of its own."""
    return bytes(node.disk.blob_threshold)


def bodies(node: DiskNode) -> list[Path]:
    return [*node.disk.environment.bodies.path(0).parent.iterdir()]


def rows(node: DiskNode) -> list[bytes]:
    return [value for _, value in node.disk.environment.rows("ids")]


class TestRepeats:
    def test_an_id_is_answered_once_for_all_queues(self, node):
        """The second publish reaches no queue, whatever became of the first, and is counted and confirmed."""
        client = ready(node, "q", "p", confirms=True)
        for text in ("1", "2", "1"):
            publish(client, text)
        settle(node)
        assert (2, 2, 1) == (count(node), count(node, "p"), repeated(node))
        assert "delivery_tag=3" in acks(client)[-1]
        do(client, make(Queue.Purge, 0, "q", False))
        publish(client, "2")
        client.publish("q", b"m", message_id="1", delivery_mode=2)
        settle(node)
        assert (1, 2) == (count(node), count(node, "p"))

    @pytest.mark.parametrize("mode", [1, 2])
    @pytest.mark.parametrize("durable", [True, False])
    @pytest.mark.parametrize("queues", [("q",), ("q", "p")])
    def test_of_many_publishes_in_one_read_each_id_is_taken_once(self, node, queues, mode, durable):
        """Runs give what single publishes give; all are confirmed."""
        client = ready(node, *queues, confirms=True, durable=durable)
        for read in ("1234", "2561", "77"):
            options = {"exchange": "e", "delivery_mode": mode}
            client.receive(b"".join([publish_frames("", b"m", message_id=text, **options) for text in read]))
            settle(node)
        assert [7] * len(queues) == [count(node, name) for name in queues]
        assert 3 == repeated(node)
        found = acks(client)
        assert "nack" not in "".join(found)
        assert "delivery_tag=10" in found[-1]

    @pytest.mark.parametrize("kind", ["direct", "topic", "headers", "x-random", "x-consistent-hash"])
    def test_exchanges_of_all_types_drop_repeats(self, node, kind):
        """The route does not matter: an exchange that chooses a queue does not choose another one for a repeat."""
        client = Client(node)
        declare(client, kind=kind)
        for name in "qpr":
            do(client, queue_declare(name, durable=True))
            do(client, make(Queue.Bind, 0, name, "e", "1", False, {}))
        for _ in range(20):
            publish(client, key="1")
        settle(node)
        assert (1 if kind.startswith("x-") else 3) == sum(count(node, name) for name in "qpr")
        assert 19 == repeated(node)

    def test_a_window_ends(self, node):
        """An id is known for a time; without one that is ten minutes."""
        client = ready(node)
        do(client, make(Exchange.Delete, 0, "e", False, False))
        declare(client, arguments={"x-deduplicate": ("longstr", "header:task")})
        do(client, make(Queue.Bind, 0, "q", "e", "", False, {}))
        for seconds, expected in ((0, 1), (599, 1), (2, 2)):
            node.pass_time(1000 * seconds)
            publish(client, headers={"task": ("longstr", "1")})
            settle(node)
            assert expected == count(node)

    def test_the_body_is_the_id(self, node):
        """Of equal bodies one is taken; one that is too large for that closes the channel."""
        client = ready(node, arguments={"x-deduplicate": ("longstr", "body")})
        for body in (b"a", b"b", b"a"):
            publish(client, body=body)
        settle(node)
        assert 2 == count(node)
        publish(client, body=bytes(1024 * 1024 + 1))
        assert "406" in "".join(client.sent())

    def test_a_mandatory_repeat_is_returned(self, node):
        """312 with DUPLICATE, before the confirm, also if no queue is bound any more."""
        client = ready(node, confirms=True)
        publish(client, mandatory=True)
        settle(node)
        assert not any("return" in line for line in client.sent())
        for _ in range(2):
            publish(client, mandatory=True)
            settle(node)
            first, last = client.sent()
            assert "DUPLICATE" in first
            assert "basic.ack" in last
            do(client, make(Queue.Unbind, 0, "q", "e", "", {}))
            client.take()

    def test_a_message_without_a_queue_leaves_no_id(self, node):
        """It can be published again once a queue is bound."""
        client = ready(node, confirms=True)
        do(client, make(Queue.Unbind, 0, "q", "e", "", {}))
        publish(client)
        publish(client)
        do(client, make(Queue.Bind, 0, "q", "e", "", False, {}))
        publish(client)
        settle(node)
        assert (1, 0) == (count(node), repeated(node))

    def test_a_message_that_a_queue_refuses_leaves_no_id(self, node):
        """It is nacked, and its repeat is taken by the others again."""
        client = ready(node, confirms=True)
        full: Table = {"x-max-length": ("signedint", 0), "x-overflow": ("longstr", "reject-publish")}
        do(client, queue_declare("p", durable=True, arguments=full))
        do(client, make(Queue.Bind, 0, "p", "e", "", False, {}))
        client.take()
        for _ in range(2):
            publish(client)
            settle(node)
            assert ["basic.nack" in line for line in acks(client)] == [True]
        assert (2, 0) == (count(node), repeated(node))

    def test_beyond_the_room_publishes_are_refused(self, node):
        """They are nacked, and in no queue."""
        client = ready(node, "q", "p", confirms=True)
        node.context.ids.most = 4
        client.receive(b"".join([publish_frames("", b"m", exchange="e", message_id=text) for text in "1231"]))
        publish(client, "4", mandatory=True)
        settle(node)
        assert (2, 2) == (count(node), count(node, "p"))
        assert 2 == sum("nack" in line for line in acks(client))

    def test_alternate_and_bound_exchanges_drop_nothing(self, node):
        """Only publishes to the exchange itself count, wherever it routes them."""
        client = ready(node)
        declare(client, "outer", {"alternate-exchange": ("longstr", "e")}, "direct")
        declare(client, "both", {}, "fanout")
        do(client, make(Exchange.Bind, 0, "e", "both", "", False, {}))
        for exchange in ("outer", "outer", "both", "both"):
            publish(client, exchange=exchange)
        settle(node)
        assert (4, 0) == (count(node), repeated(node))
        arguments: Table = {**ONCE, "alternate-exchange": ("longstr", "amq.fanout")}
        declare(client, "once", arguments, "direct")
        do(client, make(Queue.Bind, 0, "q", "amq.fanout", "", False, {}))
        publish(client, exchange="once", key="none")
        publish(client, exchange="once", key="none")
        settle(node)
        assert 5 == count(node)

    def test_a_delayed_exchange_drops_repeats_as_they_are_published(self, node):
        """The first one waits, and is routed when it is due."""
        client = Client(node)
        declare(client, arguments={**ONCE, "x-delayed-type": ("longstr", "fanout")}, kind="x-delayed-message")
        do(client, queue_declare("q", durable=True))
        do(client, make(Queue.Bind, 0, "q", "e", "", False, {}))
        for _ in range(2):
            publish(client, headers={"x-delay": ("signedint", 100)})
        settle(node)
        assert (0, 1) == (count(node), repeated(node))
        node.pass_time(200)
        settle(node)
        assert 1 == count(node)
        publish(client)
        settle(node)
        assert 1 == count(node)

    def test_a_recent_history_has_no_repeat(self, node):
        """A message that the exchange drops is not in its history, either."""
        client = ready(node, kind="x-recent-history")
        publish(client)
        publish(client)
        do(client, queue_declare("late", durable=True))
        do(client, make(Queue.Bind, 0, "late", "e", "", False, {}))
        settle(node)
        assert (1, 1) == (count(node), count(node, "late"))

    def test_a_transaction_drops_repeats_at_its_commit(self, node):
        """Its own and those of others; a rollback leaves no id."""
        client = ready(node)
        client.send(Tx.Select())
        publish(client)
        client.send(Tx.Rollback())
        publish(Client(node), "0")
        for text in ("0", "1", "2", "1"):
            publish(client, text)
        settle(node)
        assert 1 == count(node)
        client.send(Tx.Commit())
        settle(node)
        assert (3, 2) == (count(node), repeated(node))

    def test_ids_of_exchange_and_queue_are_apart(self, node):
        """A queue that takes each message once drops what comes another way, and leaves no id of the exchange."""
        client = ready(node, "p")
        do(client, queue_declare("q", durable=True, arguments=ONCE))
        do(client, make(Queue.Bind, 0, "q", "e", "", False, {}))
        client.publish("q", b"m", message_id="1", delivery_mode=2)
        publish(client)
        publish(client)
        settle(node)
        assert (1, 1, 1) == (count(node), count(node, "p"), repeated(node))

    def test_where_consumers_confirm_both_hear_from_the_consumer(self, node):
        """A repeat is confirmed when the first one is, and after a kill it is still one."""
        client = ready(node, confirms=True)
        bind_acked(client)
        client.take()
        for text in ("1", "2", "1", "2"):
            publish(client, text)
        settle(node)
        assert [] == acks(client)
        other = Client(node)
        other.send(make(Basic.Get, 0, "c", False))
        settle(node)
        other.send(make(Basic.Ack, 1, False))
        settle(node)
        assert ["1", "3"] == [line.split("delivery_tag=")[1][0] for line in acks(client)]
        do(other, make(Queue.Purge, 0, "c", False))
        assert ["basic.nack" in line for line in acks(client)] == [True, True]
        publish(client, "1")
        publish(client, "2")
        settle(node)
        assert (1, 3) == (count(node, "c"), repeated(node))

    @pytest.mark.parametrize("mode", [1, 2])
    def test_where_only_consumers_confirm_a_message_comes_once(self, node, mode):
        """A durable queue stores no message whose publisher waits for a consumer, so its repeat is as safe as it."""
        client = ready(node, "p", confirms=True)
        do(client, make(Queue.Unbind, 0, "p", "e", "", {}))
        bind_acked(client)
        client.take()
        publish(client, mode=mode)
        settle(node)
        publish(client, mode=mode)
        settle(node)
        assert (1, 1, []) == (count(node, "c"), repeated(node), acks(client))
        answers = do(client, make(Queue.Purge, 0, "c", False))
        assert "nack delivery_tag=2 multiple" in "".join(answers)

    def test_a_verdict_is_that_on_its_own_message(self, node):
        """The time of an id may be over before a consumer acks: repeats of the next message with it wait for that."""
        client = ready(node, confirms=True)
        bind_acked(client)
        client.take()
        for _ in range(2):
            publish(client)
            publish(client)
            settle(node)
            node.pass_time(MINUTE // 2)
            assert [] == acks(client)
            node.pass_time(MINUTE)
        publish(client)  # the fifth one, which is taken again
        other = Client(node)
        found = []
        for tag in (1, 2, 3):
            do(other, make(Basic.Get, 0, "c", False), make(Basic.Ack, tag, False))
            found.append([line.split("delivery_tag=")[1] for line in acks(client)])
        assert [["2 multiple"], ["4 multiple"], ["5"]] == found

    def test_a_verdict_on_an_earlier_message_leaves_the_id(self, node):
        """A verdict on the first message does not change one that was taken after the id was forgotten."""
        client = ready(node, confirms=True)
        bind_acked(client)
        publish(client)
        settle(node)
        assert node.vhosts["/"].once["e"].forget("1")
        do(client, make(Queue.Unbind, 0, "c", "e", "", {}))
        publish(client)
        settle(node)
        do(client, make(Queue.Purge, 0, "c", False))
        publish(client)
        settle(node)
        assert (2, 1) == (count(node), repeated(node))

    def test_a_history_has_what_replaces_a_message_in_memory(self, disk_node):
        """A persistent message that is taken though its id is known is told to all that follow the exchange."""
        client = ready(disk_node, kind="x-recent-history")
        publish(client, mode=1)
        publish(client)
        do(client, queue_declare("late", durable=True), make(Queue.Bind, 0, "late", "e", "", False, {}))
        settle(disk_node)
        assert (2, 2) == (count(disk_node), count(disk_node, "late"))


class TestSettings:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("x-deduplicate", ("longstr", "nothing")),
            ("x-deduplicate-mode", ("longstr", "running")),
            ("x-deduplicate-for", ("signedint", -1)),
        ],
    )
    def test_wrong_arguments_are_refused(self, node, name, value):
        """An exchange knows ids for a time only."""
        answer = "".join(declare(Client(node), arguments={**ONCE, name: value}))
        assert "406" in answer
        assert name in answer

    def test_policies_apply_to_exchanges(self, node):
        """Those of another mode are for queues; one that goes away takes the ids along."""
        client = ready(node, arguments={})
        policies = node.vhosts["/"].policies
        for definition, expected in (
            ({"deduplicate": "message_id", "deduplicate-mode": "running"}, 2),
            ({"deduplicate": "message_id"}, 3),
            ({"deduplicate": "message_id", "deduplicate-for": MINUTE}, 3),
            ({"max-length": 100}, 5),
            ({"deduplicate": "message_id"}, 6),
        ):
            set_policy(policies, "p", "^e$", definition)
            settle(node)
            publish(client)
            publish(client)
            settle(node)
            assert expected == count(node)

    def test_ids_that_are_gone_leave_no_timer(self, node):
        """Of exchanges that come and go nothing stays in memory until the time of their ids is over."""
        client = ready(node)
        before = len(node.context.timers)
        for _ in range(3):
            declare(client, "f")
            do(client, make(Queue.Bind, 0, "q", "f", "", False, {}))
            publish(client, exchange="f")
            settle(node)
            do(client, make(Exchange.Delete, 0, "f", False, False))
        assert before == len(node.context.timers)

    @pytest.mark.parametrize("is_killed", [False, True])
    def test_ids_that_come_after_others_survive_these(self, disk_node, monkeypatch, is_killed):
        """While commits sweep the rows of a policy that went away, those of the next one have a line of their own."""
        monkeypatch.setattr(delayed, "SWEEP_ROWS", 2)
        client, node = ready(disk_node, arguments={}), disk_node
        definition = {"deduplicate": "message_id", "deduplicate-for": MINUTE}
        set_policy(node.vhosts["/"].policies, "p", "^e$", definition)
        settle(node)
        for number in range(30):
            publish(client, f"old {number}")
            node.commit()
        node.vhosts["/"].policies.clear("p")
        settle(node)
        node.commit()
        if is_killed:
            node = disk_node.killed()
            client = Client(node)
        set_policy(node.vhosts["/"].policies, "p", "^e$", definition)
        settle(node)
        for number in range(5):
            publish(client, f"{number}")
            node.commit()
        again = node.killed()
        client, before = Client(again), count(again)
        for number in range(5):
            publish(client, f"{number}")
        again.commit()
        assert (before, 5) == (count(again), repeated(again))
        for _ in range(20):
            publish(client)
            again.commit()
        last = again.killed()
        publish(Client(last), "3")
        settle(last)
        assert (1, []) == (repeated(last), last.disk.damages.take())
        last.disk.close()

    def test_a_shorter_time_is_that_of_later_ids(self, disk_node):
        """Those that were taken before keep theirs, also over a restart."""
        client = ready(disk_node, arguments={})
        for longest in (60 * MINUTE, 1000):
            definition = {"deduplicate": "message_id", "deduplicate-for": longest}
            set_policy(disk_node.vhosts["/"].policies, "p", "^e$", definition)
            settle(disk_node)
            publish(client, str(longest))
        disk_node.commit()
        again = disk_node.killed()
        for passed, expected in ((MINUTE, {"1000"}), (60 * MINUTE, {"1000", "3600000"})):
            again.pass_time(passed)
            settle(again)
            known = again.vhosts["/"].once["e"].known_until
            assert expected == {text for text in ("1000", "3600000") if known(text) is None}
        assert 0 == again.vhosts["/"].once["e"].count
        again.disk.close()

    def test_a_deleted_exchange_takes_its_ids_along(self, disk_node):
        """One of the same name knows none, and no rows are left."""
        client = ready(disk_node)
        publish(client)
        disk_node.commit()
        assert rows(disk_node)
        publish(client, "2")
        do(client, make(Exchange.Delete, 0, "e", False, False))
        declare(client)
        do(client, make(Queue.Bind, 0, "q", "e", "", False, {}))
        disk_node.commit()
        disk_node.commit()
        assert [] == rows(disk_node)
        publish(client)
        settle(disk_node)
        assert 3 == count(disk_node)


class TestDisk:
    def test_ids_survive_a_kill(self, disk_node):
        """Those of stored messages do; those that no commit had, and those of transient messages, do not."""
        client = ready(disk_node, "q", "p")
        publish(client, "1")
        publish(client, "2", mode=1)
        publish(client, "3", mode=1)
        publish(client, "3")  # as safe as its publisher expects: it is taken, too
        disk_node.commit()
        publish(client, "4")
        again = disk_node.killed()
        client = Client(again)
        assert (2, 2) == (count(again), count(again, "p"))
        for text in "1234":
            publish(client, text)
        again.commit()
        assert (4, 4, 2) == (count(again), count(again, "p"), repeated(again))
        last = again.killed()
        for text in "1234":
            publish(Client(last), text)
        assert (4, 4) == (count(last), count(last, "p"))
        found: list[Finding] = []
        last.commit()
        last.disk.close()
        Check(last.data_dir, found.append).run()
        assert [] == found

    @pytest.mark.parametrize("durable", [True, False])
    def test_the_second_publish_is_confirmed_when_the_first_is_safe(self, disk_node, durable):
        """Neither is confirmed before the commit, and both are nacked if that fails."""
        client = ready(disk_node, "q", "p", confirms=True, arguments=ONCE)
        if not durable:
            do(client, make(Exchange.Delete, 0, "e", False, False))
            declare(client, durable=False)
            do(client, make(Queue.Bind, 0, "q", "e", "", False, {}))
            client.take()
        for text in ("1", "2"):
            run = [
                publish_frames("", b"m", exchange="e", message_id=text, delivery_mode=2),
                publish_frames("", b"m", exchange="e", message_id=text, delivery_mode=2),
                publish_frames("", b"m", exchange="e", message_id=text, delivery_mode=2, expiration="100000"),
            ]
            client.receive(b"".join(run))
            assert [] == acks(client)
            if text == "1":
                disk_node.commit()
            else:
                disk_node.fail()
            (found,) = acks(client)
            assert f"delivery_tag={3 * int(text)}" in found
            assert (text == "2") is ("nack" in found)
        assert 2 == count(disk_node)
        assert durable is bool(rows(disk_node))

    @pytest.mark.parametrize("way", ["publish", "run", "transaction"])
    def test_a_large_body_and_its_id_are_in_one_commit(self, disk_node, way):
        """Before the file of a body is written there is no id on disk; after it there are both."""
        client = ready(disk_node, "q", "p")
        body = bytes(disk_node.disk.blob_threshold + 1)
        options = {"exchange": "e", "message_id": "1", "delivery_mode": 2}
        if way == "transaction":
            client.send(Tx.Select())
        else:
            client.send(Confirm.Select())
        client.take()
        run = publish_frames("", body, **options) + publish_frames("", body, **options)
        client.receive(run if way == "run" else publish_frames("", body, expiration="100000", **options))
        if way == "transaction":
            client.send(Tx.Commit())
        disk_node.commit()
        assert [] == rows(disk_node)
        disk_node.write_files()
        again = disk_node.killed()
        publish(Client(again))
        assert (1, 1) == (count(again), count(again, "p"))
        again.disk.close()

    @pytest.mark.parametrize("is_committed", [True, False])
    def test_no_queue_has_a_large_body_before_its_file(self, disk_node, is_committed):
        """So the commit that has what a consumer does with it has the id, too; what comes behind it waits with it."""
        client = ready(disk_node, "q", "p", confirms=True)
        publish(client, body=large(disk_node))
        publish(client, "2")
        settle(disk_node)
        assert ((0, 0), []) == ((count(disk_node), count(disk_node, "p")), acks(client))
        disk_node.end_files()
        assert (2, 2) == (count(disk_node), count(disk_node, "p"))
        Client(disk_node).send(make(Basic.Get, 0, "q", True))
        disk_node.run_turn()
        if is_committed:
            disk_node.commit()
            assert "delivery_tag=2 multiple" in acks(client)[-1]
        again = disk_node.killed()
        client, other = Client(again), count(again, "p")
        assert other == 2 * is_committed
        publish(client)
        again.commit()
        again.write_files()
        assert other + (not is_committed) == count(again, "p")
        again.disk.close()

    @pytest.mark.parametrize("confirms", [True, False])
    def test_on_a_full_disk_a_large_body_is_refused(self, disk_node, confirms):
        """Its publisher hears that, and no queue has it; one that uses no confirms waits until there is space."""
        client = ready(disk_node, confirms=confirms)
        publish(client, body=large(disk_node))
        publish(client, "2")
        files = disk_node.disk.journal.files
        disk_node.disk.journal.file_failed(*files)
        disk_node.clock.run()
        settle(disk_node)
        assert confirms == count(disk_node)
        if confirms:
            found = acks(client)
            assert "nack" in found[0]
            assert "basic.ack delivery_tag=2" in found[1]
        disk_node.write_files()
        assert (1 if confirms else 2) == count(disk_node)
        publish(Client(disk_node))
        settle(disk_node)
        assert confirms is not repeated(disk_node)
        assert 2 == count(disk_node)

    def test_an_operator_publishes_a_large_body(self, disk_node):
        """It waits for its file, too, and is confirmed once it is stored."""
        ready(disk_node)
        done: list[str] = []
        for _ in range(2):
            disk_node.administration.publishing.publish(
                None,
                "/",
                "e",
                "",
                large(disk_node),
                done.append,
                properties={"message_id": "1", "delivery_mode": 2},
            )
            disk_node.run_turn()
            assert (0, []) == (count(disk_node), done)
        disk_node.end_files()
        assert (1, []) == (count(disk_node), done)
        disk_node.commit()
        assert ["confirmed", "confirmed"] == done

    @pytest.mark.parametrize("end", ["connection", "channel", "queue", "exchange", "repeat"])
    def test_a_file_that_no_queue_needs_goes(self, disk_node, end):
        """A publish waits for it, and what it is for goes meanwhile."""
        client, other = ready(disk_node), Client(disk_node)
        publish(client, body=large(disk_node))
        settle(disk_node)
        if end == "connection":
            client.connection.lost()
        elif end == "channel":
            client.connection.channels[1].close()
            del client.connection.channels[1]
        elif end == "queue":
            do(other, make(Queue.Delete, 0, "q", False, False, False))
        elif end == "exchange":
            do(other, make(Exchange.Delete, 0, "e", False, False))
        else:
            publish(other)
        disk_node.write_files()
        disk_node.commit()
        is_there = end in {"exchange", "repeat"}
        assert is_there is bool("q" in disk_node.vhosts["/"].queues and count(disk_node))
        disk_node.commit()
        assert (end == "exchange") is bool(bodies(disk_node))

    def test_a_message_that_is_consumed_at_once_leaves_its_id(self, disk_node):
        """Its confirm waits for that."""
        client = ready(disk_node, confirms=True)
        client.consume("q", no_ack=True)
        client.take()
        publish(client)
        assert [] == acks(client)
        disk_node.commit()
        assert 1 == len(acks(client))
        again = disk_node.killed()
        publish(Client(again))
        assert 0 == count(again)
        again.disk.close()

    def test_the_rows_are_rewritten_and_lose_nothing(self, disk_node, monkeypatch):
        """As those of queues."""
        monkeypatch.setattr(id_log, "FEW_CHANGES", 8)
        monkeypatch.setattr(id_log, "LEAST_COPIED", 60)
        client = ready(disk_node)
        for number in range(100):
            publish(client, str(number))
            if number % 10 == 9:
                disk_node.commit()
        for _ in range(30):
            disk_node.vhosts["/"].once["e"].forget("0")
            publish(client, "0")
            disk_node.commit()
        assert len(rows(disk_node)) < 100
        again = disk_node.killed()
        client = Client(again)
        before = count(again)
        for number in range(100):
            publish(client, str(number))
        assert before == count(again)
        again.disk.close()

    @pytest.mark.parametrize("is_acked", [False, True])
    @pytest.mark.parametrize("is_wide", [False, True])
    def test_a_kill_before_an_ack_frees_the_id_of_all_queues(self, disk_node, monkeypatch, is_acked, is_wide):
        """The queue whose consumers confirm has lost the message; the others get it twice, but for ids of their own."""
        monkeypatch.setattr("leveret.broker.vhost.copies.AT_ONCE", 0 if is_wide else 99)
        client = ready(disk_node, confirms=True)
        do(client, queue_declare("own", durable=True, arguments=ONCE))
        do(client, make(Queue.Bind, 0, "own", "e", "", False, {}))
        bind_acked(client)
        for _ in range(2):
            publish(client)
            settle(disk_node)
            disk_node.commit()
        assert [] == acks(client)
        assert 1 == repeated(disk_node)
        if is_acked:
            do(Client(disk_node), make(Basic.Get, 0, "c", True))
            disk_node.commit()
            assert acks(client)
        again = disk_node.killed()
        assert [1, 1, 0] == [count(again, name) for name in ("q", "own", "c")]
        client = Client(again)
        client.send(Confirm.Select())
        publish(client)
        settle(again)
        again.commit()
        assert is_acked is bool(acks(client))
        assert ([1, 1, 0] if is_acked else [2, 1, 1]) == [count(again, name) for name in ("q", "own", "c")]
        again.disk.close()

    @pytest.mark.parametrize(("durable", "mode"), [(True, 2), (True, 1), (False, 2)])
    def test_a_stop_writes_the_ids_of_promised_messages(self, disk_node, durable, mode):
        """Of those that it writes; the publisher of another one publishes that again, as it saw no confirm."""
        client = ready(disk_node, confirms=True)
        do(client, make(Queue.Unbind, 0, "q", "e", "", {}))
        do(client, queue_declare("c", durable=durable, arguments=ACKS))
        do(client, make(Queue.Bind, 0, "c", "e", "", False, {}))
        publish(client, mode=mode)
        disk_node.commit()
        assert [] == rows(disk_node)
        disk_node.vhosts["/"].once["e"].save()
        disk_node.commit()
        assert (durable and mode == 2) is bool(rows(disk_node))

    async def test_a_stop_writes_no_id_before_its_message(self, disk_node, monkeypatch):
        """If it is killed after some of its commits, what it has not written can be published again."""
        monkeypatch.setattr(shutdown, "COMMIT_OCTETS", 1)
        monkeypatch.setattr(shutdown, "_BATCH", 1)
        monkeypatch.setattr(shutdown, "STEP", 1)
        for name in ("is_behind", "is_preparing"):
            monkeypatch.setattr(disk_node.disk.commits, name, False, raising=False)
        client = ready(disk_node, confirms=True)
        do(client, make(Queue.Unbind, 0, "q", "e", "", {}))
        bind_acked(client)
        for text in "123":
            publish(client, text)
        client.connection.lost()
        settle(disk_node)
        found = []

        async def stored(**_: bool) -> bool:
            disk_node.run_turn()
            disk_node.commit()
            found.append(len(rows(disk_node)))
            return True

        await shutdown._flush_promised(disk_node, disk_node.disk, stored)
        *before, last = found
        assert len(before) > 1
        assert not any(before)
        assert last
        again = disk_node.restarted()
        for text in "123":
            publish(Client(again), text)
        settle(again)
        assert (3, 3) == (count(again, "c"), repeated(again))
        again.disk.close()
