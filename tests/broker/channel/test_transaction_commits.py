"""A transaction is one commit: whenever the broker is killed, all of it has taken effect or nothing."""

from pathlib import Path
from typing import Any

import pytest
from deferred.hurried import HurriedNode, PacedClient
from deferred.pipeline import walk_pipeline
from doubles.fakes import Client, DiskNode, basic_consume, hurry, publish_frames, queue_declare

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Basic, Channel, Confirm, Exchange, Queue, Tx, make
from leveret.broker.amqp.tables import Table
from leveret.broker.config.config import StorageConfig
from leveret.storage.errors import DiskFullError, Done

LARGE = bytes(20_000)
MODES = ("standard", "consumer-ack", "consumer-ack-light")


class Pipeline:
    """A broker with an input that is not on disk yet, and a consumer of it whose channel is transactional."""

    def __init__(self, path: Path, node_class: type[DiskNode] = DiskNode, **settings: Any) -> None:
        arguments: Table = settings.pop("arguments", {})
        is_stored = settings.pop("is_stored", False)
        storage = StorageConfig(sync=False, check_invariants=True, blob_threshold=len(LARGE))
        self.node = node_class(path, storage=storage, **settings)
        self.publisher, self.worker = Client(self.node), Client(self.node)
        standard: Table = {"x-confirm-mode": ("longstr", "standard")}
        self.ask(queue_declare("in", durable=True, arguments=arguments))
        self.ask(queue_declare("out", durable=True, arguments=standard))
        self.ask(make(Confirm.Select, False))
        self.worker.send(Tx.Select())
        self.worker.send(basic_consume("in", "c"))
        self.publisher.publish("in", b"1", delivery_mode=2)
        if is_stored:
            self.node.commit()
        self.worker.take()
        self.publisher.take()

    def ask(self, method: Any, client: Client | None = None) -> None:
        (client or self.publisher).send(method)
        self.node.commit()

    def sent(self, client: Client) -> list[str]:
        """Let the loop do what it can; returns what was sent to a client."""
        self.node.clock.run()
        return client.sent()

    def fail(self) -> None:
        """Let a commit find no space for more than its deletions."""
        self.node.clock.run()
        disk = self.node.disk
        batch = disk.journal.cut()
        done = disk.environment._commit_deletions(disk.environment.store, batch.durable)
        disk.journal.settled(DiskFullError("no room", durable=done, paged=Done.ALL))
        self.node._go_on()

    def write_files(self) -> None:
        """Write the bodies that wait for files, and commit what has waited for that."""
        self.node.write_files()

    def after_kill(self) -> tuple[int, int]:
        """Kill the broker; returns how many messages the next one has in `in` and in `out`."""
        node = self.node.killed()
        queues = node.vhosts["/"].queues
        found = queues["in"].ready_count, queues["out"].ready_count
        node.disk.close()
        return found


def commit(body: bytes = b"2", end: Any = None, queue: str = "out") -> bytes:
    """Return the frames of a transaction that publishes a message and ends the first delivery."""
    end = make(Basic.Ack, 1, False) if end is None else end
    return (
        publish_frames(queue, body, delivery_mode=2) + encode_method(1, end) + encode_method(1, Tx.Commit())
    )


ENDS = (make(Basic.Ack, 1, False), make(Basic.Reject, 1, False), make(Basic.Nack, 1, False, False))
KINDS: tuple[Table, ...] = (
    {},
    {"x-max-priority": ("long", 2)},
    {"x-queue-type": ("longstr", "quorum")},
    {"x-max-length": ("long", 10)},
    {"x-dead-letter-exchange": ("longstr", "missing")},
    {"x-retain-for": ("long", 60_000)},
)


@pytest.mark.parametrize("seed", range(16))
def test_each_input_is_in_one_place(seed: int) -> None:
    """A confirmed input is in its queue or its output is, whatever is deferred, found full, or killed."""
    walk_pipeline(seed)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("arguments", KINDS)
def test_a_publish_is_confirmed_when_the_transaction_that_ends_it_is_safe(
    tmp_path: Path, mode: str, end: Any, arguments: Table
) -> None:
    """A publisher that waits for the confirm of a message that a transaction ends hears of it after the commit, in each mode."""
    pipeline = Pipeline(tmp_path, confirm_mode=mode, arguments=arguments)
    pipeline.worker.receive(commit(end=end))
    before = pipeline.sent(pipeline.publisher), pipeline.sent(pipeline.worker)
    pipeline.node.commit()
    after = pipeline.sent(pipeline.publisher), pipeline.sent(pipeline.worker)

    assert ([], []) == before
    assert (["1 basic.ack delivery_tag=1"], ["1 tx.commit-ok"]) == after
    assert (0, 1) == pipeline.after_kill()


@pytest.mark.parametrize("mode", MODES)
def test_a_publish_is_nacked_if_the_transaction_that_ends_it_finds_the_disk_full(
    tmp_path: Path, mode: str
) -> None:
    """A message that a transaction ended is not confirmed if the transaction is not safe."""
    pipeline = Pipeline(tmp_path, confirm_mode=mode)
    pipeline.worker.receive(commit())
    pipeline.fail()

    assert ["1 basic.nack delivery_tag=1 requeue"] == pipeline.sent(pipeline.publisher)
    assert "506" in pipeline.sent(pipeline.worker)[0]
    assert (0, 0) == pipeline.after_kill()


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("arguments", KINDS)
def test_a_commit_that_finds_the_disk_full_leaves_neither_half(
    tmp_path: Path, end: Any, arguments: Table
) -> None:
    """The ends of a transaction that publishes are not written without what it publishes, on a full disk too."""
    pipeline = Pipeline(tmp_path, arguments=arguments, is_stored=True)
    pipeline.node.turn.is_full = lambda: True
    pipeline.worker.receive(commit(end=end))
    pipeline.fail()

    assert "506" in pipeline.sent(pipeline.worker)[0]
    assert (1, 0) == pipeline.after_kill()


OVER_LIMIT = make(Basic.Nack, 1, False, True)
LIMITED: Table = {"x-queue-type": ("longstr", "quorum"), "x-delivery-limit": ("long", 0)}


@pytest.mark.parametrize("mode", MODES)
def test_a_requeue_over_the_delivery_limit_ends_a_message_as_a_reject_does(tmp_path: Path, mode: str) -> None:
    """A message that a transaction requeues too often is confirmed when the transaction is safe."""
    pipeline = Pipeline(tmp_path, confirm_mode=mode, arguments=LIMITED)
    pipeline.worker.receive(commit(end=OVER_LIMIT))
    before = pipeline.sent(pipeline.publisher)
    pipeline.node.commit()

    assert ([], ["1 basic.ack delivery_tag=1"]) == (before, pipeline.sent(pipeline.publisher))
    assert (0, 1) == pipeline.after_kill()


def test_a_full_disk_keeps_what_a_transaction_requeues_over_the_limit(tmp_path: Path) -> None:
    """Such an end is not written either without what the transaction publishes."""
    pipeline = Pipeline(tmp_path, arguments=LIMITED, is_stored=True)
    pipeline.node.turn.is_full = lambda: True
    pipeline.worker.receive(commit(end=OVER_LIMIT))
    pipeline.fail()

    assert (1, 0) == pipeline.after_kill()


def test_acks_alone_free_space_on_a_full_disk(tmp_path: Path) -> None:
    """A transaction that publishes nothing deletes what it acks although the disk is full."""
    pipeline = Pipeline(tmp_path, is_stored=True)
    pipeline.worker.receive(encode_method(1, make(Basic.Ack, 1, False)) + encode_method(1, Tx.Commit()))
    pipeline.fail()

    assert (0, 0) == pipeline.after_kill()


@pytest.mark.parametrize("count", [1, 3])
def test_a_large_body_is_in_its_file_before_anything_takes_effect(tmp_path: Path, count: int) -> None:
    """The input of a transaction stays until the files of its outputs are written, and ends with their records."""
    pipeline = Pipeline(tmp_path, is_stored=True)
    node, worker = pipeline.node, pipeline.worker
    worker.receive(publish_frames("out", LARGE, delivery_mode=2) * (count - 1) + commit(LARGE))
    node.commit()
    queues = node.vhosts["/"].queues
    before = queues["in"].unacked_count, queues["out"].ready_count, pipeline.sent(worker)
    pipeline.write_files()

    assert (1, 0, []) == before
    assert ["1 tx.commit-ok"] == pipeline.sent(worker)
    assert (0, count) == pipeline.after_kill()


def test_a_kill_before_the_files_of_a_transaction_leaves_its_input(tmp_path: Path) -> None:
    """Nothing of a transaction is on disk while a file of it is being written."""
    pipeline = Pipeline(tmp_path, is_stored=True)
    pipeline.worker.receive(publish_frames("out", b"small", delivery_mode=2) + commit(LARGE))
    pipeline.node.commit()

    assert (1, 0) == pipeline.after_kill()


def test_a_transaction_without_room_for_a_file_takes_no_effect(tmp_path: Path) -> None:
    """If a body finds no space the channel ends with 506, and its input is requeued; the files go."""
    pipeline = Pipeline(tmp_path, is_stored=True)
    node = pipeline.node
    pipeline.worker.receive(publish_frames("out", LARGE, delivery_mode=2) + commit(LARGE))
    first, second = list(node.disk.journal.files)
    node.disk.journal.file_written(first)
    node.disk.journal.file_failed(second)
    node._go_on()
    text = "RESOURCE_ERROR - no disk space left: nothing of the transaction took effect"
    queues = node.vhosts["/"].queues

    assert text in pipeline.sent(pipeline.worker)[0]
    assert (1, 0, 0) == (queues["in"].ready_count, queues["in"].unacked_count, queues["out"].ready_count)
    assert not node.disk.journal.file_written(second)
    unlinked = node.disk.environment.commit(node.disk.journal.cut())
    assert [first] == unlinked


def test_a_file_that_no_queue_needs_is_removed(tmp_path: Path) -> None:
    """The body of a message that goes straight to a consumer without acks leaves no file."""
    pipeline = Pipeline(tmp_path)
    node = pipeline.node
    node.commit()
    pipeline.publisher.send(basic_consume("out", "d", no_ack=True))
    pipeline.worker.receive(commit(LARGE))
    (msg_id,) = node.disk.journal.files
    assert node.disk.journal.file_written(msg_id)
    node._go_on()

    assert [msg_id] == node.disk.environment.commit(node.disk.journal.cut())


@pytest.mark.parametrize("bodies", ["small", "large"])
def test_runs_of_publishes_keep_their_order(tmp_path: Path, bodies: str) -> None:
    """Messages of a transaction stay in order among those that are taken one by one, in each queue, over a kill."""
    pipeline = Pipeline(tmp_path)
    node = pipeline.node
    options: list[dict[str, Any]] = [{}, {"mandatory": True}, {"expiration": "60000"}, {}]
    body = LARGE if bodies == "large" else b""
    sent = []
    for number in range(24):
        sent.append(b"%d " % number + (body if number % 5 == 0 else b""))
        more = options[number % 7 % 4]
        pipeline.worker.receive(publish_frames("out", sent[-1], delivery_mode=2, **more))
    pipeline.worker.receive(encode_method(1, Tx.Commit()))
    pipeline.write_files()
    assert "1 tx.commit-ok" in pipeline.sent(pipeline.worker)
    again = node.killed()
    client = Client(again)
    client.send(basic_consume("out", "c", no_ack=True))
    again.read()
    got = [item.body for item in client.take() if isinstance(item.method, Basic.Deliver)]
    assert sent == got


@pytest.mark.parametrize("looks", [1, 2, 3, 7])
def test_no_commit_begins_between_the_pieces_of_a_transaction(
    tmp_path: Path, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction in pieces is held back until all of it is journaled, though no queue is deferred."""
    monkeypatch.setattr("leveret.broker.channel.transaction.PIECE", 1)
    pipeline = Pipeline(tmp_path, HurriedNode, is_stored=True)
    node: Any = pipeline.node
    worker = PacedClient(node)
    worker.send(Tx.Select())
    worker.receive(publish_frames("out", b"2", delivery_mode=2) * 100)
    hurry(node, looks=looks)
    worker.receive(encode_method(1, Tx.Commit()))
    tried = 0
    while node.turn.transactions:
        tried += 1
        node.committer.begin_commit()
        assert node.disk.journal.in_flight is None
        node.step()

    assert tried > 5
    while node.is_waiting:
        node.advance()
    assert ["1 tx.select-ok", "1 tx.commit-ok"] == worker.sent()
    assert (1, 100) == pipeline.after_kill()


def test_a_transaction_goes_on_though_its_client_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pieces of a transaction wait neither for its client to read nor for the disk: commits wait for them."""
    monkeypatch.setattr("leveret.broker.channel.transaction.PIECE", 1)
    pipeline = Pipeline(tmp_path, HurriedNode)
    node: Any = pipeline.node
    worker = PacedClient(node)
    worker.send(Tx.Select())
    worker.receive(publish_frames("out", b"2", delivery_mode=2) * 100)
    hurry(node, looks=2)
    worker.driver.process_buffered = lambda: None  # type: ignore[method-assign]
    worker.receive(encode_method(1, Tx.Commit()))
    was_begun = bool(node.turn.transactions)
    node.committer.begin_commit()
    while node.is_waiting:
        node.advance()

    assert was_begun
    assert not node.turn.transactions
    assert 100 == node.killed().vhosts["/"].queues["out"].ready_count


def test_a_transaction_above_the_limit_is_refused_before_anything_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publishes count once for each queue, settlements once; the channel ends with 506, and all is as before."""
    monkeypatch.setattr("leveret.broker.channel.transaction.MOST_OPERATIONS", 4)
    pipeline = Pipeline(tmp_path, is_stored=True)
    for name in ("in", "out"):
        pipeline.ask(make(Queue.Bind, 0, name, "amq.fanout", "", False, {}))
    pipeline.publisher.take()
    wide = publish_frames("", b"2", exchange="amq.fanout", delivery_mode=2)
    pipeline.worker.receive(wide + commit())
    pipeline.node.commit()
    done = pipeline.sent(pipeline.worker)
    pipeline.worker.receive(wide * 2 + commit(end=make(Basic.Ack, 0, True)))
    refused = pipeline.sent(pipeline.worker)

    assert "1 tx.commit-ok" in done
    assert (
        "RESOURCE_ERROR - transaction has 6 publishes (one for each queue) and acknowledgements, more than 4: "
        "nothing of the transaction took effect"
    ) in refused[0]
    pipeline.node.commit()
    assert (1, 2) == pipeline.after_kill()


@pytest.mark.parametrize("is_declared_again", [False, True])
@pytest.mark.parametrize("is_wide", [False, True])
def test_a_commit_for_a_deleted_queue_is_partial(
    tmp_path: Path, *, is_declared_again: bool, is_wide: bool
) -> None:
    """If a queue of a publish was deleted before `tx.commit` the reply is 406, and all else takes effect."""
    pipeline = Pipeline(tmp_path, is_stored=True)
    node = pipeline.node
    pipeline.ask(queue_declare("gone", durable=True))
    for name in ("gone", "out"):
        pipeline.ask(make(Queue.Bind, 0, name, "amq.fanout", "", False, {}))
    key, exchange = ("", "amq.fanout") if is_wide else ("gone", "")
    pipeline.worker.receive(publish_frames(key, b"0", exchange=exchange, delivery_mode=2))
    pipeline.ask(make(Queue.Delete, 0, "gone", False, False, False))
    if is_declared_again:
        pipeline.ask(queue_declare("gone", durable=True))
    pipeline.worker.receive(commit())
    node.commit()
    closed = pipeline.sent(pipeline.worker)
    node.commit()

    assert 'reply_text="PRECONDITION_FAILED - partial tx completion"' in closed[0]
    assert not is_declared_again or not node.vhosts["/"].queues["gone"].ready_count
    assert (0, 1 + is_wide) == pipeline.after_kill()


def test_a_message_to_a_queue_and_a_delayed_exchange_is_in_both_or_neither(tmp_path: Path) -> None:
    """The delayed copy of a large message waits until the queue's copy has its body in a file."""
    pipeline = Pipeline(tmp_path)
    node, publisher = pipeline.node, pipeline.publisher
    node.commit()
    late: Table = {"x-delayed-type": ("longstr", "fanout")}
    pipeline.ask(
        make(Exchange.Declare, 0, "late", "x-delayed-message", False, True, False, False, False, late)
    )
    pipeline.ask(make(Exchange.Bind, 0, "late", "amq.fanout", "", False, {}))
    pipeline.ask(make(Queue.Bind, 0, "out", "amq.fanout", "", False, {}))
    publisher.take()
    headers: Table = {"x-delay": ("signedint", 60_000)}
    publisher.publish("", LARGE, exchange="amq.fanout", delivery_mode=2, headers=headers)
    node.commit()
    line = node.vhosts["/"].exchange("late").line
    assert (0, []) == (line.window.count, pipeline.sent(publisher))

    pipeline.write_files()
    assert ["1 basic.ack delivery_tag=2"] == pipeline.sent(publisher)
    following = node.killed()
    assert 1 == following.vhosts["/"].queues["out"].ready_count
    assert 1 == following.vhosts["/"].exchange("late").line.count
    following.disk.close()


def test_a_client_may_open_the_channel_again_after_a_refused_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused transaction closes its channel and not its connection."""
    monkeypatch.setattr("leveret.broker.channel.transaction.MOST_OPERATIONS", 1)
    pipeline = Pipeline(tmp_path, is_stored=True)
    pipeline.worker.receive(commit())
    pipeline.worker.take()
    pipeline.worker.send(Channel.CloseOk())

    assert ["1 channel.open-ok"] == pipeline.worker.ask(Channel.Open())
