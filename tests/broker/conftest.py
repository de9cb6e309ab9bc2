"""A broker without sockets, its clients, and what tests of sockets need."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles.fakes import Client, DiskNode, Node
from samples.certificates import Authority


@pytest.fixture
def node() -> Node:
    """A broker without a disk."""
    return Node()


@pytest.fixture
def disk_node(tmp_path: Path) -> Iterator[DiskNode]:
    """A broker with a data directory; a test may kill it, and has to close the disk of what it starts after it."""
    made = DiskNode(tmp_path)
    yield made
    made.disk.close()


@pytest.fixture
def client(node) -> Client:
    return Client(node)


@pytest.fixture
def other(node) -> Client:
    client = Client(node, port=50001)
    client.sent()
    return client


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    """Sockets that are closed when the test is over."""
    made: list[socket.socket] = []
    yield made
    for sock in made:
        sock.close()


@pytest.fixture(scope="module")
def ca(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))
