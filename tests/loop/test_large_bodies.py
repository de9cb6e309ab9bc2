"""Bodies of any size do not hold the event loop: neither on their way in, nor to the disk and back, nor out."""

import pika
import pytest
from loop.harness import BAR_MS, Site, longest_step, size


def through(site: Site, *, delivery_mode: int, frame_max: int, is_got: bool) -> None:
    """A body of up to 120 MiB, published on one channel number and delivered on another in frames of another size."""
    host, port = site.broker.address
    body = bytes(size(120, 60) * 1024 * 1024)
    with (
        pika.BlockingConnection(pika.ConnectionParameters(host, port)) as sender,
        pika.BlockingConnection(pika.ConnectionParameters(host, port, frame_max=frame_max)) as taker,
    ):
        channel = sender.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=delivery_mode))
        taker.channel()
        other = taker.channel()
        got = other.basic_get("q", auto_ack=True)[2] if is_got else next(other.consume("q", auto_ack=True))[2]
        assert body == got


@pytest.mark.parametrize(
    ("delivery_mode", "frame_max", "is_got"),
    [(2, 131072, False), (1, 8192, False), (2, 8192, True)],
    ids=["persistent", "transient", "got"],
)
def test_a_large_body_does_not_hold_the_loop(tmp_path, delivery_mode, frame_max, is_got):
    """Assembling a large body, writing it to a file, and cutting it again for another channel are no long steps."""

    def case(site: Site) -> None:
        through(site, delivery_mode=delivery_mode, frame_max=frame_max, is_got=is_got)

    assert longest_step(tmp_path, case).milliseconds <= BAR_MS
