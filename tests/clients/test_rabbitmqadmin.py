"""`rabbitmqadmin` of Debian's rabbitmq-server: what it prints against Leveret is what it prints against RabbitMQ."""

import os

import pytest
from clients import rabbitmqadmin_ng
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


@pytest.mark.skipif(script() is None, reason="rabbitmqadmin is not installed")
@pytest.mark.skipif("LEVERET_TEST_AMQP_URL" in os.environ, reason="another broker is tested")
def test_every_verb_prints_what_it_prints_against_rabbitmq(managed: tuple[str, str]) -> None:
    """All lines but those that are explained, which differ."""
    installed = script()
    assert installed is not None

    expected, printed = parts(RECORDED.read_text()), parts(transcript(installed, *managed))

    assert [line for line, _ in expected] == [line for line, _ in printed]
    different = [ours for theirs, ours in zip(expected, printed, strict=True) if theirs != ours]
    assert set(EXPLAINED) == {line for line, _ in different}, different


EXPLAINED_OF_4_3 = {
    "list vhosts": "the first vhost has no description",
    "list deprecated_features": "Leveret has fewer, and words of its own",
}


@pytest.mark.skipif(rabbitmqadmin_ng.PEER.missing != "", reason=rabbitmqadmin_ng.PEER.missing)
@pytest.mark.skipif("LEVERET_TEST_AMQP_URL" in os.environ, reason="another broker is tested")
@pytest.mark.parametrize("managed", ["4.3"], indirect=True)
def test_every_verb_of_4_3_prints_what_it_prints_against_rabbitmq(managed: tuple[str, str]) -> None:
    """With the profile 4.3 rabbitmqadmin-ng prints what it has printed against 4.3.6, but for explained lines."""
    expected = parts(rabbitmqadmin_ng.RECORDED.read_text())
    printed = parts(rabbitmqadmin_ng.transcript(managed[1]))

    assert [line for line, _ in expected] == [line for line, _ in printed]
    different = [ours for theirs, ours in zip(expected, printed, strict=True) if theirs != ours]
    assert set(EXPLAINED_OF_4_3) == {line for line, _ in different}, different


def parts(text: str) -> list[tuple[str, str]]:
    pairs = [part.partition("\n") for part in f"\n{text}".split("\n$ ")[1:]]
    return [(line, printed) for line, _, printed in pairs]
