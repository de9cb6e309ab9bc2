"""Messages read back from disk hold the event loop no longer than those in memory."""

from pathlib import Path

import pytest
from loop.harness import BAR_MS, Site, consume_all, fill, longest_step, queues, size


def paged(site: Site) -> None:
    """Messages that lie on disk are read for a consumer without a prefetch, which acks none of them."""
    channel = site.channel()
    queues(channel, ("q",), durable=True)
    # as many as make the tables of what is unacked grow (at 349,525) in the step that reads
    fill(channel, "q", size(1_000_000, 360_000), body=b"x" * 100, delivery_mode=2)
    consume_all(channel, "q")


@pytest.mark.timeout(900)
def test_reading_what_was_paged_holds_nobody(tmp_path: Path):
    """Paged messages read for one consumer, however many, keep each step of the loop below the bar."""
    step = longest_step(tmp_path, paged, "storage.ram_limit=1MiB")

    assert step.milliseconds <= BAR_MS, step
