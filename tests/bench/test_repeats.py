"""The benchmark of repeated publishes, with a few messages and one kill."""

import asyncio
from pathlib import Path

import pytest

from bench import brokers, repeats
from bench.client import Client, publish_frames
from bench.repeats import MODES, ONCE, QUEUE, Publishing, _connect, _count, pass_through


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


def test_a_rate_is_that_of_fresh_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every mode takes all messages, and again those with later ids; an id that is known is found to be a repeat."""

    async def run() -> None:
        with brokers.alone() as running:
            for mode in MODES:
                for first in (0, 300):
                    rate, used = await pass_through(running, mode, first, 300)
                    assert rate > 0 <= used
            monkeypatch.setattr(repeats, "PATIENCE", 1.0)
            with pytest.raises(TimeoutError):
                await pass_through(running, "window", 300, 1)

    asyncio.run(run())
