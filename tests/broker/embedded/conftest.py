"""Clients of embedded brokers."""

from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from conformance.wire import Client


@pytest.fixture
def dial() -> Iterator[Callable[..., Client]]:
    """Return a function that connects a socket to a broker; it is closed after the test."""
    clients: list[Client] = []

    def connected(broker: Any) -> Client:
        clients.append(Client(("127.0.0.1", broker.port)))
        return clients[-1]

    yield connected
    for client in clients:
        client.close_socket()


@pytest.fixture
def connect(dial: Callable[..., Client]) -> Callable[..., Client]:
    """Return a function that logs a client in to a broker, with changes of `connection.tune` as keywords."""
    return lambda broker, **tune: dial(broker).login(**tune)


@pytest.fixture
def channel(broker) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        yield connection.channel()
