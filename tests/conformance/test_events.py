"""The event exchange tells the same of a script of clients and an operator as RabbitMQ's plugin does."""

import re

from conformance import events
from conformance.brokers import SetUp, free_port, start_ours

LEFT_OUT = (
    # steps of a deletion inside RabbitMQ
    r'parameter\.(set|cleared) {"component": \["longstr", "exchange-delete-in-progress"\]',
    # policy.set and policy.cleared tell of the policy; the API shows which one applies to a queue
    r"queue\.policy\.(updated|cleared) ",
    # the API of ours publishes without a connection
    r'.*"connection_type": \["longstr", "direct"\]',
    r'.*"type": \["longstr", "direct"\], "user": ',
)
"""Beginnings of RabbitMQ's lines that ours has not."""
EXPLAINED = (
    # what the others say, as an Erlang term
    (r'"metadata": \["longstr", ".*?>>.*?"\], ', ""),
    # a table in a table
    (r'\["longstr", "#{<<\\"b\\">> => true}"\]', '["table", {"b": ["bool", true]}]'),
)
"""Parts of RabbitMQ's lines, and what ours has there."""


def recorded() -> list[str]:
    """Return the record of RabbitMQ, without what ours has not."""
    lines = events.RECORD.read_text(encoding="utf-8").splitlines()
    kept = []
    step = ""
    for line in lines:
        step = line if line.startswith("-- ") else step
        of_api = step == "-- requested" and not line.startswith("-- ")
        if of_api or any(re.match(pattern, line) for pattern in LEFT_OUT):
            continue
        explained = line
        for pattern, ours in EXPLAINED:
            explained = re.sub(pattern, ours, explained)
        kept.append(explained)
    return kept


def test_the_events_are_those_of_rabbitmq() -> None:
    """Ours tells what the record of RabbitMQ has: routing keys, headers and their types; differences are explained."""
    expected = recorded()
    steps = [step.__name__ for step in events.STEPS]
    numbers: list[int] = []
    for line in expected:
        if line.startswith("-- "):
            numbers.append(0)
        else:
            numbers[-1] += 1
    assert [f"-- {step}" for step in steps] == [line for line in expected if line.startswith("-- ")]
    port = free_port()
    settings = (
        "auth.failure_delay=0ms",
        f"management.tcp.port={port}",
        "prometheus.enabled=false",
        "event_exchange.enabled=true",
        "node_name=ours@localhost",
    )
    broker = start_ours(SetUp("main", settings))
    try:
        found = events.record(broker, port, numbers)
    finally:
        broker.stop()

    assert expected == found
    assert "Traceback" not in broker.last_log
