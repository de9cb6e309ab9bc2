"""Delayed messages: exchanges that delay, their lines, and restarts of the broker."""

import gc
from typing import Any

import pytest
from checks.internals import has_unfinished
from doubles.fakes import Client, DiskNode, Node, hurry, publish_frames
from services.api import Api

from leveret.broker.amqp.commands import Basic, Channel, Confirm, Exchange, Queue, Tx, make
from leveret.broker.amqp.tables import Table
from leveret.broker.config.config import StorageConfig
from leveret.broker.queue.compatibility import QueueCompatibility
from leveret.storage.damage import DELAYED
from leveret.storage.delayed import unpack_count
from leveret.storage.message import Persistent
from leveret.storage.store.check import Check, Finding
from leveret.storage.store.compact import compact


def declare_exchange(
    client: Client, name: str = "d", inner: str = "direct", *, durable: bool = True, **arguments: Any
) -> list[str]:
    """Declare an exchange that delays; more arguments as typed fields."""
    table: Table = {"x-delayed-type": ("longstr", inner)} | {
        key.replace("_", "-"): value for key, value in arguments.items()
    }
    client.send(
        make(Exchange.Declare, 0, name, "x-delayed-message", False, durable, False, False, False, table)
    )
    settle(client)
    return client.sent()


def settle(client: Client) -> None:
    """Commit until all replies that wait for it are sent and all requested work is done."""
    while client.connection.pending_reply is not None:
        client.node.commit()


def bind(
    client: Client, key: str = "k", queue: str = "q", exchange: str = "d", arguments: Any = None
) -> None:
    """Bind a queue."""
    client.send(make(Queue.Bind, 0, queue, exchange, key, False, arguments or {}))


def delayed(
    client: Client, delay: Any, body: bytes = b"m", key: str = "k", exchange: str = "d", **options: Any
) -> None:
    """Publish a message with a delay in ms, or with any field as the header; options are properties."""
    field = delay if isinstance(delay, tuple) else ("signedint", delay)
    headers = {"x-delay": field} | options.pop("headers", {})
    options.setdefault("delivery_mode", 2)
    client.publish(key, body, exchange=exchange, headers=headers, **options)


def setup(node: Node, inner: str = "direct", **options: Any) -> Client:
    """Return a client with an exchange, a durable queue bound to it, and a consumer of that."""
    client = Client(node)
    declare_exchange(client, inner=inner, **options)
    client.declare("q", durable=True)
    bind(client)
    client.consume("q", no_ack=True)
    settle(client)
    client.take()
    return client


def bodies(client: Client) -> list[bytes]:
    """Return the bodies delivered since the last call."""
    return [item.body for item in client.take() if isinstance(item.method, Basic.Deliver)]


def test_a_body_that_is_too_large_to_be_an_id_is_delayed():
    """No exchange that delays takes bodies for ids."""
    node = Node()
    client = setup(node)
    body = bytes(2 * 1024 * 1024)
    delayed(client, 1000, body)
    assert [] == bodies(client)
    node.pass_time(1001)
    node.run_turn()
    assert [body] == bodies(client)


def line_of(node: Node, name: str = "d") -> Any:
    """Return the delay line of an exchange."""
    return node.vhosts["/"].router.exchanges[name].line


def _counted(node: DiskNode) -> tuple[int, int]:
    """Return how many rows of a line there are, and the number that is stored beside them."""
    (line, value), *rows = node.disk.environment.rows("delayed")
    return len(rows), unpack_count(int.from_bytes(line, "big"), value)


class TestDelay:
    def test_a_message_is_delivered_when_its_delay_is_over_and_not_before(self, node):
        """A delayed message is visible only in the count until the header's number of milliseconds has passed."""
        client = setup(node)
        delayed(client, 500)
        assert [] == bodies(client)
        assert 1 == line_of(node).count
        node.pass_time(499)
        assert [] == bodies(client)
        node.pass_time(1)
        assert [b"m"] == bodies(client)
        assert 0 == line_of(node).count

    def test_a_step_without_time_releases_one_message(self, node):
        """Messages that are due together are released in order, in several steps if each of them takes as long as a step."""
        client = setup(node)
        for number in range(5):
            delayed(client, 500, b"%d" % number)
        hurry(node, looks=1)
        node.clock.now += 0.5
        node.context.timers.run(node.wall_clock())
        node.run_turn()
        left = line_of(node).count
        node.clock.run()

        assert 4 == left
        assert 0 == line_of(node).count
        assert [b"0", b"1", b"2", b"3", b"4"] == bodies(client)

    def test_the_delay_is_negated(self, node):
        """The header of a delivered message has the negated delay; everything else is as published."""
        client = setup(node)
        delayed(client, 500, headers={"a": ("longstr", "b")}, content_type="text/plain", message_id="7")
        node.pass_time(500)
        (sent,) = client.sent()
        assert sent.endswith(
            "exchange=d routing_key=k content_type=text/plain headers={'x-delay': ('signedint', -500), 'a': ('longstr', 'b')} "
            "delivery_mode=2 message_id=7 'm'"
        )

    def test_messages_come_out_by_time_and_then_in_the_order_they_came(self, node):
        """Messages are released by the end of their delays; equal ones keep their order."""
        client = setup(node)
        for delay, body in ((300, b"c"), (100, b"a1"), (200, b"b"), (100, b"a2")):
            delayed(client, delay, body)
        node.pass_time(1000)
        assert [b"a1", b"a2", b"b", b"c"] == bodies(client)

    @pytest.mark.parametrize(
        "field",
        [
            ("signedint", 0), ("signedint", -5), ("long", 4294967296), ("bool", True), ("void", None), ("longstr", "soon"),
            ("longstr", ""), ("longstr", "-3"), ("table", {}), ("array", []), ("double", 0.5), ("timestamp", 5), ("longstr", "9" * 400),
        ],
    )  # fmt: skip
    def test_what_is_no_delay_delays_nothing(self, node, field):
        """A delay that is zero, negative, too large or not a number delays nothing, and the header stays."""
        client = setup(node)
        delayed(client, field)
        (sent,) = client.take()
        assert b"m" == sent.body
        assert 0 == line_of(node).count

    @pytest.mark.parametrize(
        "field",
        [
            ("byte", 100), ("unsignedbyte", 100), ("short", 100), ("unsignedshort", 100), ("unsignedint", 100), ("long", 100),
            ("longstr", "100"), ("double", 100.9), ("float", 100.5),
        ],
    )  # fmt: skip
    def test_a_delay_may_be_any_number(self, node, field):
        """A delay is an integer of any width, or what the plugin converts to one: digits, and a float, truncated."""
        client = setup(node)
        delayed(client, field)
        node.pass_time(99)
        assert [] == bodies(client)
        node.pass_time(1)
        (sent,) = client.sent()
        assert "headers={'x-delay': ('signedint', -100)}" in sent

    def test_the_longest_delay_is_nearly_fifty_days(self, node):
        """The longest delay is 2^32-1 ms; its negation takes a wider type."""
        client = setup(node)
        delayed(client, ("long", 4294967295))
        node.pass_time(4294967294)
        assert [] == bodies(client)
        node.pass_time(1)
        assert "headers={'x-delay': ('long', -4294967295)}" in client.sent()[0]

    def test_a_longer_delay_is_ignored_with_a_warning(self, node, caplog):
        """The plugin routes a message with a longer delay at once; here the log says so, once."""
        client = setup(node)
        for _ in range(2):
            delayed(client, ("long", 4294967296))
        assert [b"m"] * 2 == bodies(client)
        assert 1 == caplog.text.count("an x-delay of 4294967296 ms is ignored")

    @pytest.mark.parametrize("field", [("long", 4294967296), ("longstr", "4294967296"), ("long", 2**41)])
    def test_a_longer_delay_is_obeyed_on_request(self, node, field):
        """With `compatibility.long_delays = held` a message with a longer delay comes at its time, be it in 30 years."""
        node.vhosts["/"].compatibility = QueueCompatibility(long_delays="held")
        client = setup(node)
        delayed(client, field)
        node.pass_time(int(field[1]) - 1)
        assert [] == bodies(client)
        assert 1 == line_of(node).count
        node.pass_time(1)
        assert [b"m"] == bodies(client)

    def test_a_message_without_the_header_goes_at_once(self, node):
        """A message without the header is routed at once, as by any other exchange."""
        client = setup(node)
        client.publish("k", b"m", exchange="d")
        client.publish("other", b"n", exchange="d")
        assert [b"m"] == bodies(client)

    def test_the_bindings_count_when_the_delay_is_over(self, node):
        """A queue that is bound during the delay gets the message, one that is unbound does not."""
        client = setup(node)
        client.declare("late")
        delayed(client, 100)
        bind(client, queue="late")
        client.send(make(Queue.Unbind, 0, "q", "d", "k", {}))
        node.pass_time(100)
        assert [] == bodies(client)
        assert 1 == node.vhosts["/"].queues["late"].ready_count

    def test_a_delayed_message_without_a_queue_is_neither_returned_nor_given_to_the_alternate_exchange(
        self, node
    ):
        """A delayed message is routed when it is due, and only then to the alternate exchange."""
        client = Client(node)
        client.declare("lost")
        client.send(make(Queue.Bind, 0, "lost", "amq.fanout", "", False, {}))
        declare_exchange(client, alternate_exchange=("longstr", "amq.fanout"))
        client.take()
        delayed(client, 100, mandatory=True)
        assert [] == client.sent()
        assert 0 == node.vhosts["/"].queues["lost"].ready_count
        node.pass_time(100)
        assert [] == client.sent()
        assert 1 == node.vhosts["/"].queues["lost"].ready_count

    def test_a_message_that_nobody_wants_in_the_end_is_gone(self, node):
        """A message without a route when it is due is dropped, not kept for later bindings."""
        client = setup(node)
        delayed(client, 100, key="other")
        node.pass_time(100)
        assert 0 == line_of(node).count
        assert [] == bodies(client)

    def test_many_that_are_due_at_once_are_given_back_in_several_turns(self, node):
        """One turn releases a few hundred messages, and requests another turn."""
        client = setup(node)
        for number in range(1000):
            delayed(client, 100, str(number).encode())
        node.pass_time(100)
        assert 800 == line_of(node).count
        node.clock.run()
        assert 0 == line_of(node).count
        assert [str(number).encode() for number in range(1000)] == bodies(client)

    def test_copies_are_routed_when_the_delay_is_over(self, node):
        """CC and BCC keys are routed when the message is due, and BCC is removed."""
        client = setup(node)
        for name in ("cc", "bcc"):
            client.declare(name)
            bind(client, name, name)
        client.take()
        keys = {
            "CC": ("array", [("longstr", "cc")]),
            "BCC": ("array", [("longstr", "bcc")]),
        }
        delayed(client, 100, headers=keys)
        node.pass_time(100)
        queues = node.vhosts["/"].queues
        assert (1, 1) == (queues["cc"].ready_count, queues["bcc"].ready_count)
        (sent,) = client.sent()
        assert "headers={'x-delay': ('signedint', -100), 'CC': ('array', [('longstr', 'cc')])}" in sent

    def test_a_transaction_delays_from_its_commit_on(self, node):
        """A message in a transaction is delayed from its commit on."""
        client = setup(node)
        client.ask(make(Channel.Open, ""), 2)
        client.send(Tx.Select(), 2)
        client.receive(
            publish_frames("k", b"m", exchange="d", channel=2, headers={"x-delay": ("signedint", 100)})
        )
        assert 0 == line_of(node).count
        node.pass_time(50)
        client.send(Tx.Commit(), 2)
        client.take()
        assert 1 == line_of(node).count
        node.pass_time(99)
        assert [] == bodies(client)
        node.pass_time(1)
        assert [b"m"] == bodies(client)


class TestQueues:
    def test_a_message_begins_to_expire_when_it_is_released(self, node):
        """A message's expiration counts from its arrival in a queue."""
        client = setup(node)
        client.declare("slow")
        bind(client, queue="slow", key="slow")
        delayed(client, 500, key="slow", expiration="100")
        node.pass_time(500)
        queue = node.vhosts["/"].queues["slow"]
        assert 1 == queue.ready_count
        node.pass_time(101)
        assert 0 == queue.ready_count

    def test_dead_letters_may_be_delayed(self, node):
        """Dead letters may be delayed, also by an exchange with the queue's name: no cycle, as it takes time."""
        client = setup(node)
        declare_exchange(client, "work", "fanout")
        client.send(make(Queue.Bind, 0, "q", "work", "", False, {}))
        arguments = {"x-dead-letter-exchange": ("longstr", "work"), "x-message-ttl": ("signedint", 50)}
        client.declare("work", arguments=arguments)
        client.take()
        delayed(client, 100, key="work", exchange="")
        node.pass_time(51)
        assert 1 == line_of(node, "work").count
        node.pass_time(99)
        assert [] == bodies(client)
        node.pass_time(1)
        assert [b"m"] == bodies(client)

    def test_a_queue_that_refuses_a_released_message_has_nobody_to_tell(self, node):
        """A released message that a queue refuses is dropped, as with the plugin."""
        client = setup(node)
        arguments = {"x-max-length": ("signedint", 1), "x-overflow": ("longstr", "reject-publish")}
        client.declare("short", arguments=arguments)
        bind(client, queue="short", key="short")
        client.take()
        delayed(client, 100, key="short")
        delayed(client, 100, key="short")
        node.pass_time(100)
        assert (1, 0) == (node.vhosts["/"].queues["short"].ready_count, line_of(node).count)
        assert [] == client.sent()

    def test_the_service_layer_shows_how_many_wait(self, node):
        """An exchange that delays has `messages_delayed` in listings, as with the plugin, and no other has."""
        client = setup(node)
        delayed(client, 100)
        shown = {each["name"]: each for each in Api(node).get("exchanges")}
        assert 1 == shown["d"]["messages_delayed"]
        assert "messages_delayed" not in shown["amq.fanout"]


class TestTypes:
    def test_a_topic_exchange_may_delay(self, node):
        """Patterns of a delaying topic exchange are matched when the message is due."""
        client = setup(node, "topic")
        bind(client, "a.*.#")
        delayed(client, 100, key="a.b.c")
        delayed(client, 100, key="b.b.c")
        node.pass_time(100)
        assert [b"m"] == bodies(client)

    def test_a_fanout_exchange_may_delay(self, node):
        """All queues get the message, with or without a delay."""
        client = setup(node, "fanout")
        delayed(client, 100, key="whatever")
        client.publish("whatever", b"now", exchange="d")
        client.publish("whatever", b"now", exchange="d")
        assert [b"now", b"now"] == bodies(client)
        node.pass_time(100)
        assert [b"m"] == bodies(client)

    def test_a_headers_exchange_may_delay(self, node):
        """Other headers are matched when the message is due."""
        client = setup(node, "headers")
        client.send(make(Queue.Unbind, 0, "q", "d", "k", {}))
        bind(client, "", arguments={"colour": ("longstr", "red")})
        client.take()
        delayed(client, 100, headers={"colour": ("longstr", "red")})
        delayed(client, 100, headers={"colour": ("longstr", "blue")})
        node.pass_time(100)
        assert [b"m"] == bodies(client)

    @pytest.mark.parametrize("first", ["amq.fanout", "d2"])
    def test_an_exchange_bound_to_one_that_delays_hands_over_and_the_delay_counts_there_once(
        self, node, first
    ):
        """A message routed by bindings between exchanges is delayed once, by the first exchange that delays."""
        client = setup(node)
        declare_exchange(client, "d2", "fanout")
        client.send(make(Exchange.Bind, 0, "d", first, "", False, {}))
        client.take()
        delayed(client, 100, exchange=first)
        node.pass_time(99)
        assert [] == bodies(client)
        node.pass_time(1)
        assert [b"m"] == bodies(client)
        assert (0, 0) == (line_of(node).count, line_of(node, "d2").count)

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ({}, "Invalid argument, 'x-delayed-type' must be an existing exchange type"),
            ({"x-delayed-type": ("signedint", 1)}, "Invalid argument, 'x-delayed-type' must be an existing exchange type"),
            ({"x-delayed-type": ("longstr", "x-delayed-message")}, "Invalid argument, 'x-delayed-message' can't be used for 'x-delayed-type'"),
            ({"x-delayed-type": ("longstr", "sharded")}, "unknown exchange type 'sharded'"),
        ],
    )  # fmt: skip
    def test_the_type_behind_has_to_be_one(self, node, arguments, text):
        """A missing or wrong `x-delayed-type` is 406 with the plugin's text."""
        client = Client(node)
        declare = make(
            Exchange.Declare, 0, "d", "x-delayed-message", False, True, False, False, False, arguments
        )
        (sent,) = client.ask(declare)
        assert (
            f'1 channel.close reply_code=406 reply_text="PRECONDITION_FAILED - {text}" class_id=40 method_id=10'
            == sent
        )
        assert "d" not in node.vhosts["/"].router.exchanges

    def test_a_redeclaration_compares_what_that_of_any_exchange_compares(self, node):
        """A redeclaration compares no argument but the alternate exchange, as in RabbitMQ."""
        client = Client(node)
        assert ["1 exchange.declare-ok"] == declare_exchange(client)
        assert ["1 exchange.declare-ok"] == declare_exchange(client, inner="topic")
        (sent,) = client.ask(make(Exchange.Declare, 0, "d", "direct", False, True, False, False, False, {}))
        assert (
            "inequivalent arg 'type' for exchange 'd' in vhost '/': received 'direct' but current is ''x-delayed-message''"
            in sent
        )


class TestOnDisk:
    def test_a_confirm_waits_for_the_commit(self, disk_node):
        """A persistent message is confirmed when its row is on disk, not when it is due."""
        client = setup(disk_node)
        client.send(Confirm.Select())
        client.take()
        delayed(client, 10_000)
        assert [] == client.sent()
        disk_node.commit()
        assert ["1 basic.ack delivery_tag=1"] == client.sent()

    def test_a_transient_message_is_confirmed_at_once_and_kept_all_the_same(self, disk_node):
        """A transient delayed message is confirmed at once, and stored on disk as with the plugin."""
        client = setup(disk_node)
        client.send(Confirm.Select())
        client.take()
        delayed(client, 10_000, delivery_mode=1)
        assert ["1 basic.ack delivery_tag=1"] == client.sent()
        disk_node.commit()
        following = disk_node.killed()
        assert 1 == line_of(following).count
        following.disk.close()

    def test_a_full_disk_refuses_and_keeps_the_message(self, disk_node):
        """A publish on a full disk is nacked; the message is delivered when due, and stored once there is space."""
        client = setup(disk_node)
        client.send(Confirm.Select())
        client.take()
        delayed(client, 100)
        disk_node.fail()
        assert "1 basic.nack delivery_tag=1 requeue" == client.sent()[0]
        disk_node.commit()
        assert 1 == line_of(disk_node).count
        disk_node.pass_time(100)
        assert [b"m"] == bodies(client)

    @pytest.mark.parametrize("end", ["killed", "restarted"])
    def test_what_is_pending_survives(self, disk_node, end):
        """After a stop or a kill the count is right, no message is early, and overdue ones are released in order."""
        client = setup(disk_node)
        for delay in (5000, 1000, 3000, 2000, 9000):
            delayed(client, delay, str(delay).encode())
        disk_node.commit()
        client.connection.lost()
        disk_node.clock.now += 4
        following = getattr(disk_node, end)()
        assert 5 == line_of(following).count
        client = Client(following)
        client.consume("q", no_ack=True)
        client.take()
        following.read()
        assert [b"1000", b"2000", b"3000"] == bodies(client)
        assert 2 == line_of(following).count
        following.pass_time(999)
        assert [] == bodies(client)
        following.pass_time(1)
        assert [b"5000"] == bodies(client)
        following.pass_time(4000)
        assert [b"9000"] == bodies(client)
        following.commit()
        last = following.killed()
        assert 0 == line_of(last).count
        assert [] == list(last.disk.environment.rows("delayed"))[1:]
        last.disk.close()

    def test_what_was_not_committed_is_lost_and_was_not_confirmed(self, disk_node):
        """A message lost by a kill before its commit was not confirmed."""
        client = setup(disk_node)
        client.send(Confirm.Select())
        client.take()
        delayed(client, 1000)
        assert [] == client.sent()
        following = disk_node.killed()
        assert 0 == line_of(following).count
        following.disk.close()

    def test_a_message_is_in_its_row_or_in_its_queue(self, disk_node):
        """A kill between release and commit repeats the release; after the commit the message is in its queue."""
        client = setup(disk_node)
        delayed(client, 1000)
        disk_node.commit()
        client.connection.lost()
        disk_node.pass_time(1000)
        queue = disk_node.vhosts["/"].queues["q"]
        assert (1, 0) == (queue.ready_count, line_of(disk_node).count)
        second = disk_node.killed()
        assert (0, 1) == (second.vhosts["/"].queues["q"].ready_count, line_of(second).count)
        second.read()
        assert (1, 0) == (second.vhosts["/"].queues["q"].ready_count, line_of(second).count)
        second.commit()
        third = second.killed()
        third.read()
        assert (1, 0) == (third.vhosts["/"].queues["q"].ready_count, line_of(third).count)
        third.disk.close()

    def test_the_row_of_a_large_message_stays_until_its_body_is_in_a_file(self, tmp_path):
        """The row of a large message is deleted when its queue has its body in a file: no commit waits for that."""
        node = DiskNode(
            tmp_path, storage=StorageConfig(sync=False, check_invariants=True, blob_threshold=10_000)
        )
        client = setup(node)
        client.ask(make(Basic.Cancel, "c-q", False))
        assert client.connection.pending_reply is None
        delayed(client, 1000, bytes(20_000))
        node.commit()
        node.pass_time(1000)
        node.commit()
        assert (1, 1) == _counted(node)
        (msg_id,) = node.disk.journal.files
        assert node.disk.journal.file_written(msg_id)
        node.commit()
        node.commit()
        assert (0, 0) == _counted(node)
        assert 0 == line_of(node).count
        node.disk.close()

    def test_deleting_the_exchange_deletes_its_messages(self, disk_node):
        """Rows of a deleted exchange are removed in slices; none returns, and those of other exchanges stay."""
        client = setup(disk_node)
        declare_exchange(client, "other")
        for number in range(2500):
            delayed(client, 1000 + number)
        delayed(client, 1000, exchange="other")
        disk_node.commit()
        settle(client)
        line = line_of(disk_node)
        client.send(make(Exchange.Delete, 0, "d", False, True))
        assert line.deleted
        disk_node.commit()
        rows = len(list(disk_node.disk.environment.rows("delayed")))
        assert 2 < rows < 2500
        while has_unfinished(disk_node.disk.environment):
            disk_node.commit()
        assert 2 == len(list(disk_node.disk.environment.rows("delayed")))
        disk_node.pass_time(10_000)
        assert [] == bodies(client)

    def test_what_a_kill_leaves_of_a_deleted_exchange_goes_after_the_next_start(self, disk_node):
        """Rows left by a deleted or a transient exchange are removed after the next start."""
        client = setup(disk_node)
        declare_exchange(client, "brief", durable=False)
        for number in range(2500):
            delayed(client, 1000 + number)
        delayed(client, 1000, exchange="brief")
        disk_node.commit()
        client.send(make(Exchange.Delete, 0, "d", False, True))
        disk_node.commit()
        following = disk_node.killed()
        while has_unfinished(following.disk.environment):
            following.commit()
        assert [] == list(following.disk.environment.rows("delayed"))
        following.disk.close()

    def test_more_than_a_window_comes_back_in_order(self, disk_node):
        """Messages outside of memory are read as they become due, also after a kill; none is lost or duplicated."""
        client = setup(disk_node)
        delays = [1 + number * 7919 % 9000 for number in range(9000)]
        for delay in delays[:8000]:
            delayed(client, delay, str(delay).encode())
        disk_node.commit()
        assert len(line_of(disk_node).window) <= 4096
        out = []

        def drain(node, client, milliseconds):
            for step in range(milliseconds // 50):
                node.pass_time(50)
                for _ in range(3):
                    node.clock.run()
                    node.read()
                if step % 7 == 0:
                    node.commit()
                out.extend(map(int, bodies(client)))

        drain(disk_node, client, 3000)
        client.connection.lost()
        disk_node.commit()
        following = disk_node.killed()
        client = Client(following)
        client.consume("q", no_ack=True)
        for delay in delays[8000:]:
            delayed(client, 9000 + delay, str(9000 + delay).encode())
        client.take()
        drain(following, client, 20_000)
        assert sorted([*delays[:8000], *[9000 + delay for delay in delays[8000:]]]) == sorted(out)
        assert sorted(out[:2000]) == out[:2000]
        assert 0 == line_of(following).count
        following.disk.close()

    def test_nothing_of_a_message_that_is_on_disk_alone_stays_in_memory(self, disk_node):
        """A message that is committed and not due soon leaves memory at once, without reference cycles."""
        client = setup(disk_node)
        gc.collect()
        gc.disable()
        before = sum(type(each) is Persistent for each in gc.get_objects())
        try:
            for number in range(8):
                delayed(client, 10_000 - number, bytes(800_000))
                disk_node.commit()
            assert 8 > len(line_of(disk_node).window)
            assert before == sum(type(each) is Persistent for each in gc.get_objects())
        finally:
            gc.enable()

    def test_a_broker_that_stops_gives_nothing_back(self, disk_node):
        """A message due while queues are saved waits for the next start, as it would be in none of them."""
        client = setup(disk_node)
        delayed(client, 100)
        disk_node.commit()
        line_of(disk_node).stop()
        disk_node.pass_time(100)
        disk_node.read()
        assert [] == bodies(client)
        client.connection.lost()
        following = disk_node.restarted()
        assert 1 == line_of(following).count
        following.read()
        assert 1 == following.vhosts["/"].queues["q"].ready_count
        following.disk.close()

    def test_compacting_keeps_delayed_messages(self, disk_node, tmp_path):
        """Compaction copies delayed messages unchanged."""
        client = setup(disk_node)
        for number in range(100):
            delayed(client, 1000 + number, bytes(1000))
        disk_node.commit()
        before = list(disk_node.disk.environment.rows("delayed"))
        disk_node.disk.close()
        compact(tmp_path)
        following = DiskNode(tmp_path)
        assert before == list(following.disk.environment.rows("delayed"))
        assert 100 == line_of(following).count
        following.disk.close()

    def test_the_check_reads_delayed_messages(self, disk_node, tmp_path):
        """The check reports a damaged row, a wrong count and a missing exchange, and nothing in a healthy table."""
        client = setup(disk_node)
        for delay in (1000, 2000):
            delayed(client, delay)
        disk_node.commit()
        disk_node.disk.close()
        findings: list[Finding] = []
        stats = Check(tmp_path, findings.append).run()
        assert [] == [finding for finding in findings if finding.where.startswith("delayed")]
        assert stats is not None
        assert 2 == stats.delayed
        environment = DiskNode(tmp_path).disk.environment
        (count, _), (key, value), _ = environment.rows("delayed")
        with environment.store.env.begin(write=True) as txn:
            db = environment.store.db["delayed"]
            txn.put(key, value[:-1] + b"?", db=db)
            txn.put(key[:7] + b"\xff" + key[8:], value, db=db)
            txn.delete(count, db=db)
        environment.close()
        Check(tmp_path, findings.append).run()
        reported = [(finding.text.partition(" message ")[0], finding.damage) for finding in findings]
        assert ("delayed", True) in reported
        assert ("2 delayed messages, but the count is missing", True) in reported
        assert ("1 delayed messages of an exchange or queue that does not exist", False) in reported

    def test_a_damaged_row_is_lost_and_reported_and_the_others_are_delivered(self, disk_node, caplog):
        """A damaged row, or a count that cannot be read, is skipped and logged, and the others are delivered."""
        client = setup(disk_node)
        for delay in (1000, 2000, 3000):
            delayed(client, delay, str(delay).encode())
        disk_node.commit()
        client.connection.lost()
        environment = disk_node.disk.environment
        (count, _), _, (key, value), _ = environment.rows("delayed")
        with environment.store.env.begin(write=True) as txn:
            db = environment.store.db["delayed"]
            txn.put(key, value[:-1] + b"?", db=db)
            txn.put(count, b"nonsense", db=db)
        following = disk_node.killed()
        assert 3 == line_of(following).count
        client = Client(following)
        client.consume("q", no_ack=True)
        client.take()
        following.read()
        following.pass_time(3000)
        assert [b"1000", b"3000"] == bodies(client)
        assert 0 == line_of(following).count
        assert [DELAYED] == [each.kind for each in following.disk.damages.take()]
        following.disk.close()
