"""Arguments that nobody knows: named in the log when they look like typing errors."""

import logging

import pytest
from doubles.fakes import Client, Node

import leveret
from leveret.broker.amqp.commands import Exchange, make
from leveret.broker.queue.unknown_arguments import OF_EXCHANGES, Unknown, unknown_arguments


@pytest.mark.parametrize(
    ("name", "similar"),
    [
        ("x-max-lenght", "x-max-length"),
        ("x-message-tll", "x-message-ttl"),
        ("max-length", "x-max-length"),
        ("X-Max-Length", "x-max-length"),
        ("x-dead-letter-routingkey", "x-dead-letter-routing-key"),
        ("x-dead-leter-exchange", "x-dead-letter-exchange"),
        ("x-team", ""),
        ("x-max-length" * 50, ""),
    ],
)
def test_a_similar_argument_is_found(name, similar):
    """The known argument that was probably meant is named; of others it is only said that they are unknown."""
    assert [Unknown(name, similar)] == unknown_arguments([name, "x-max-length"])


def test_arguments_of_other_brokers_are_logged(caplog):
    """A queue with an argument that only streams obey is declared, with one warning, however it is declared."""
    broker = leveret.Broker()
    document = {
        "queues": [{"vhost": "/", "name": "imported", "arguments": {"x-stream-filter-size-bytes": 5}}]
    }
    with broker, caplog.at_level(logging.WARNING, "leveret.queue"):
        for _ in range(2):
            for name in ("q", "r"):
                broker.declare(name, arguments={"x-stream-filter-size-bytes": 5})
            broker.import_definitions(document)

    text = "queue '{}' in vhost '/': argument '{}' has no effect: only streams of RabbitMQ have it"
    assert caplog.messages == [
        text.format(*each)
        for each in (
            ("q", "x-stream-filter-size-bytes"),
            ("r", "x-stream-filter-size-bytes"),
            ("imported", "x-stream-filter-size-bytes"),
        )
    ]


def test_few_arguments_are_compared():
    """However many arguments a client invents, at most eight are compared."""
    assert 8 == len(unknown_arguments([f"x-max-lenght-{number}" for number in range(1000)]))
    assert [Unknown("alternate-exchnage", "alternate-exchange")] == unknown_arguments(
        ["alternate-exchnage", "x-delayed-type"], OF_EXCHANGES
    )


def test_a_declaration_with_a_typing_error_is_logged(caplog):
    """The queue or exchange is declared as in RabbitMQ, and the log has a warning; once, not for a redeclaration."""
    client = Client(Node())
    arguments = {"x-max-lenght": ("long", 5), "x-team": ("longstr", "a")}
    with caplog.at_level(logging.WARNING, "leveret"):
        assert "declare-ok" in str(client.declare("q", arguments=arguments))
        client.declare("q", arguments=arguments)
        client.send(
            make(
                Exchange.Declare,
                0,
                "x",
                "direct",
                False,
                False,
                False,
                False,
                False,
                {"alternate": ("longstr", "a")},
            )
        )
        client.send(
            make(
                Exchange.Declare, 0, "y", "direct", False, False, False, False, False,
                {"alternate-exchang": ("longstr", "a")},
            )
        )  # fmt: skip

    assert [
        ("queue 'q' in vhost '/'", "x-max-length"),
        ("exchange 'y' in vhost '/'", "alternate-exchange"),
    ] == [(str(record.args[0]), record.args[1].similar) for record in caplog.records]
    assert caplog.messages[0] == (
        "queue 'q' in vhost '/': unknown argument 'x-max-lenght' has no effect: did you mean 'x-max-length'?"
    )
