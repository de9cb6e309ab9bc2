"""What a variable queue says of itself."""

from math import inf

from stored import Stored, content_of

from storage.message import Message
from storage.status import status

RABBITMQ = {
    "mode", "q1", "q2", "delta", "q3", "q4", "len", "target_ram_count", "next_seq_id", "next_deliver_seq_id",
    "avg_ingress_rate", "avg_egress_rate", "avg_ack_ingress_rate", "avg_ack_egress_rate",
}  # fmt: skip


def test_an_empty_queue(tmp_path):
    """A new queue has RabbitMQ's keys, an empty delta without ends, no target, and nothing in it."""
    stored = Stored(tmp_path, "q")
    first = stored.queues["q"].next_seq
    told = status(stored.queues["q"])
    stored.close()

    assert set(told) >= RABBITMQ
    assert ["delta", "undefined", 0, 0, "undefined"] == told["delta"]
    assert ("default", 0, "infinity", first, first) == tuple(
        told[name] for name in ("mode", "len", "target_ram_count", "next_seq_id", "next_deliver_seq_id")
    )


def test_where_messages_are(tmp_path):
    """Messages are counted where they are: in memory, in the delta, requeued, unacked; and so are their octets."""
    stored = Stored(tmp_path, "q")
    queue = stored.queues["q"]
    first = queue.next_seq
    for number in range(600):
        stored.publish(f"{number:04}", "q")
    stored.commit()
    fetched = queue.fetch(3, ack_required=True).seq_ids
    queue.requeue(fetched[1:2])
    before = status(queue)
    queue.set_ram_target(0, 1 << 20)
    stored.commit()
    queue.set_ram_target(0, 1 << 20)
    stored.commit()
    told = status(queue)
    size = len(content_of("0000"))
    counts = [told[name] for name in ("q1", "q2", "q3", "q4")]
    stored.close()

    assert (598, 598 * size, 2) == (
        before["q4"],
        before["ready_bytes_ram"],
        before["messages_unacknowledged_ram"],
    )
    assert first + 1 == before["next_deliver_seq_id"]
    assert (598, 0) == (told["len"], told["target_ram_count"])
    _, start, count, transient, stop = told["delta"]
    assert told["len"] == sum(counts) + count
    assert count > 0
    assert first < start < stop == first + 600
    assert (0, count * len("0000")) == (transient, told["delta_bytes"])
    assert count == told["states"]["delta"]
    assert sum(told["states"].values()) == told["len"]
    assert told["transitions"]["to_delta"] >= count


def test_rates_and_mode(tmp_path):
    """Rates are messages per second, halved in influence every five seconds; a lazy queue says so."""
    stored = Stored(tmp_path, "q")
    queue = stored.queues["q"]
    queue.rates.update(0.0, 0, 0, 0)
    queue.publish([Message(b"", content_of("x"), 1)] * 100)
    queue.rates.update(5.0, 100, 50, 10)
    queue.set_lazy(lazy=True)
    told = status(queue)
    stored.close()

    assert "lazy" == told["mode"]
    assert inf != told["target_ram_count"]
    names = ("avg_ingress_rate", "avg_egress_rate", "avg_ack_ingress_rate", "avg_ack_egress_rate")
    assert (10.0, 5.0, 5.0, 1.0) == tuple(round(told[name], 6) for name in names)
