"""Servers that are loaded when the first client connects, and the socket of the data directory."""

import asyncio
import contextlib
import socket
import stat
from functools import partial
from typing import NoReturn

import aiohttp
import pytest
from doubles.fakes import Node

from leveret.broker.http.late_server import LateServer, control_socket, listening
from leveret.broker.http.route import Router
from leveret.broker.http.running_brokers import NAME, in_directory
from leveret.broker.http.server import ManagementServer
from leveret.broker.management.routes import ROUTER, ROUTES

SECONDS = 20.0


@pytest.fixture
def made() -> list[ManagementServer]:
    return []


def late(made: list[ManagementServer], sock: socket.socket) -> LateServer:
    """Return a server of a broker's API that is loaded late."""
    node = Node()
    node.is_open = True

    def make() -> ManagementServer:
        made.append(ManagementServer(node, ROUTER))
        return made[-1]

    return LateServer(sock, lambda: make)


async def test_the_first_client_waits_for_the_server(made):
    """Clients that connect at once are all served by one server; over TCP they log in."""
    sock = listening("127.0.0.1", 0)
    url = f"http://127.0.0.1:{sock.getsockname()[1]}/api/whoami"
    server = late(made, sock)
    assert [] == made
    login = {"authorization": aiohttp.encode_basic_auth("guest", "guest")}
    try:
        async with (
            asyncio.timeout(SECONDS),
            aiohttp.ClientSession() as client,
            client.get(url, headers=login) as first,
            client.get(url, headers=login) as second,
            client.get(url) as stranger,
        ):
            assert [200, 200, 401] == [first.status, second.status, stranger.status]
    finally:
        await server.close()

    assert 1 == len(made)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", int(url.split(":")[2].split("/", maxsplit=1)[0]))


async def test_a_server_that_nobody_needs_is_not_loaded(made):
    """The socket is closed all the same."""
    sock = listening("127.0.0.1", 0)
    await late(made, sock).close()

    assert (-1, []) == (sock.fileno(), made)


async def test_a_server_that_cannot_be_loaded_refuses_its_clients(caplog):
    """They do not wait for an answer that never comes, and the log says why."""
    sock = listening("127.0.0.1", 0)
    address = sock.getsockname()

    def load() -> NoReturn:
        raise ImportError("no module named 'routes'")

    server = LateServer(sock, load)
    try:
        async with asyncio.timeout(SECONDS):
            reader, writer = await asyncio.open_connection(*address)
            with contextlib.suppress(ConnectionResetError):
                assert b"" == await reader.read()
            writer.close()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*address)
    finally:
        await server.close()

    assert f"the server of {address} cannot start" in caplog.text
    assert "no module named 'routes'" in caplog.text


def test_an_address_that_is_taken_is_an_error():
    """It says so when it is bound, not when the first client comes."""
    with listening("127.0.0.1", 0) as sock, pytest.raises(OSError, match="in use"):
        listening(*sock.getsockname())


REQUEST = b"GET /api/users HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize("is_long", [False, True])
async def test_its_owner_may_do_everything(tmp_path, is_long):
    """Nobody else can open it; its path may be long, and what a killed broker left is replaced."""
    folder = tmp_path / ("d" * 100) / ("e" * 100) if is_long else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAME).touch()
    node = Node()
    node.is_open = True
    async with control_socket(folder, lambda: partial(ManagementServer, node, Router(ROUTES))):
        mode = (folder / NAME).stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert 0o600 == stat.S_IMODE(mode)
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as sock:
            in_directory(folder, NAME, sock.connect)
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(sock, REQUEST)
            answer = b""
            async with asyncio.timeout(SECONDS):
                while piece := await loop.sock_recv(sock, 65536):
                    answer += piece
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b'"name":"guest"' in answer

    assert not (folder / NAME).exists()
