"""The socket of the data directory."""

import asyncio
import contextlib
import socket
import stat
from functools import partial

import pytest
from fakes import Node

from leveret.broker.http.late_server import ControlSocket
from leveret.broker.http.route import Router
from leveret.broker.http.server import ManagementServer
from leveret.broker.http.socket_path import NAME, in_directory
from leveret.broker.management.routes import ROUTES

SECONDS = 20.0
REQUEST = b"GET /api/users HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize("is_long", [False, True])
async def test_its_owner_may_do_everything(tmp_path, is_long):
    """Nobody else can open it; its path may be long, and what a killed broker left is replaced."""
    folder = tmp_path / ("d" * 100) / ("e" * 100) if is_long else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAME).touch()
    node = Node()
    node._is_open = True
    control = ControlSocket(folder, lambda: partial(ManagementServer, node, Router(ROUTES)))
    control.open()
    try:
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
    finally:
        await control.close()

    assert not (folder / NAME).exists()
