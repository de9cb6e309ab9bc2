"""The benchmark of repeated publishes, with a few messages and one kill."""

import asyncio
from pathlib import Path

import pytest

from bench import brokers
from bench.client import Client, publish_frames
from bench.repeats import ONCE, QUEUE, Publishing, _connect, _count


@pytest.mark.parametrize("arguments", [ONCE, {}])
def test_messages_that_are_there_twice_are_counted(tmp_path: Path, arguments: dict[str, str]) -> None:
    """None is lost over a kill. A repeat of a confirmed message is found, unless the queue takes each id once."""

    async def run() -> tuple[int, int, int]:
        publishing = Publishing(brokers.start("leveret", tmp_path), tmp_path, arguments, 300, [100])
        try:
            await publishing.run()
            client: Client = await _connect(publishing.running, arguments)
            await client.publish(publish_frames(QUEUE, b"7", persistent=True, message_id="7"), 1)
            found = await _count(publishing.running, arguments)
            client.close()
        finally:
            publishing.running.stop()
        return publishing.repeated, len(found), found[b"7"]

    repeated, present, sevens = asyncio.run(run())
    assert repeated > 0
    assert (present, sevens > 1) == (300, arguments != ONCE)
