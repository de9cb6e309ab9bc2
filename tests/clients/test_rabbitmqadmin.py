"""`rabbitmqadmin` of Debian's rabbitmq-server: what it prints against Leveret is what it prints against RabbitMQ."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients.conftest import Broker
from clients.rabbitmqadmin_lines import RECORDED, script, transcript

EXPLAINED = {
    "declare permission vhost=v1 user=ann configure=* write=.* read=.*": "the text of the regular expressions' engine",
    "-V v1 -f long list exchanges name type durable auto_delete internal arguments policy "
    "user_who_performed_action": "who declared an exchange is not kept",
    "-V v1 -f kvp list queues name messages messages_ready messages_unacknowledged message_bytes consumers": (
        "contents are counted with their headers"
    ),
    "EXPORTED": "queues have their type",
}
"""Lines that print something else, with the reason."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Run a broker with the management API, and return the URLs of its listeners."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    started = Broker(
        tmp_path / "data",
        f"management.tcp.port={port}", "prometheus.tcp.port=0", "collect_statistics_interval=1000",
    )  # fmt: skip
    try:
        started.wait()
        yield f"amqp://guest:guest@127.0.0.1:{started.port}", f"http://127.0.0.1:{port}"
    finally:
        code = started.stop()
    assert 0 == code, "".join(started.lines)


@pytest.mark.skipif(script() is None, reason="rabbitmqadmin is not installed")
@pytest.mark.skipif("LEVERET_TEST_AMQP_URL" in os.environ, reason="another broker is tested")
def test_every_verb_prints_what_it_prints_against_rabbitmq(broker):
    """All lines but those that are explained, which differ."""
    installed = script()
    assert installed is not None

    expected, printed = parts(RECORDED.read_text()), parts(transcript(installed, *broker))

    assert [line for line, _ in expected] == [line for line, _ in printed]
    different = [ours for theirs, ours in zip(expected, printed, strict=True) if theirs != ours]
    assert set(EXPLAINED) == {line for line, _ in different}, different


def parts(text: str) -> list[tuple[str, str]]:
    """Return the lines of a transcript with what they printed."""
    pairs = [part.partition("\n") for part in f"\n{text}".split("\n$ ")[1:]]
    return [(line, printed) for line, _, printed in pairs]
