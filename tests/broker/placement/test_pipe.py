"""The stream between the front and a process, with descriptors."""

import asyncio
import os
import socket

from processes.waiting import until

from leveret.broker.placement.messages import AnyMessage, Handed, Left, Removed
from leveret.broker.placement.pipe import Pipe

Received = list[tuple[AnyMessage, socket.socket | None]]


def handed(number: int, unread: bytes = b"") -> Handed:
    return Handed(number, b"u", b"v", "PLAIN", b"", [], 0, 0, 0, ("h", number), ("h", 1), unread)


def ends(received: Received, closed: list[str]) -> tuple[Pipe, Pipe]:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    return (
        Pipe(loop, ours, lambda *_: None, lambda: closed.append("ours")),
        Pipe(loop, theirs, lambda *each: received.append(each), lambda: closed.append("theirs")),
    )


def test_each_message_has_its_descriptor() -> None:
    """Sockets arrive with the messages that they were sent with, also when the other end has not read for long."""

    async def run() -> None:
        received, closed, clients = Received(), list[str](), list[socket.socket]()
        ours, theirs = ends(received, closed)
        for number in range(100):
            near, far = socket.socketpair()
            near.sendall(b"%d" % number)
            clients.append(near)
            ours.send(Left(number))
            ours.send(handed(number, os.urandom(100_000 if number % 7 == 0 else 10)), far.fileno())
            far.close()
        assert ours.is_full
        drained: list[bool] = []
        ours.on_drained = lambda: drained.append(True)
        await until(lambda: len(received) == 200)
        assert drained == [True]
        assert not ours.is_full
        for message, sock in received:
            if isinstance(message, Handed):
                assert sock is not None
                assert b"%d" % message.number == sock.recv(10)
                sock.close()
            else:
                assert sock is None
        ours.close()
        await until(lambda: closed == ["theirs"])
        theirs.close()
        for client in clients:
            client.close()

    asyncio.run(run())


def test_a_broken_stream_is_closed() -> None:
    """Bytes that are no message end the stream at both sides."""

    async def run() -> None:
        received, closed = Received(), list[str]()
        ours, theirs = ends(received, closed)
        ours.send(Removed(b"v"))
        await until(lambda: received)
        ours._socket.send(b"\xff" * 8)
        await until(lambda: {"ours", "theirs"} == set(closed))
        theirs.send(Left(1))
        ours.close()

    asyncio.run(run())
