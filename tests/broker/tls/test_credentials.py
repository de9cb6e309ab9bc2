"""Certificates in use: reloaded when files change, kept when a new file is bad, watched for their end."""

import asyncio
import contextlib
import datetime as dt
import logging
import os
import shutil
import threading
from collections.abc import AsyncIterator

import msgspec
import pytest
from samples.certificates import Authority, Issued, client_context

from leveret.broker.process import deadlined_thread
from leveret.broker.process.audit_log import AuditLog
from leveret.broker.tls import credentials
from leveret.broker.tls.acceptor import HANDSHAKES, Acceptor
from leveret.broker.tls.certificates import Certificates
from leveret.broker.tls.credentials import Credentials, stamps
from leveret.broker.tls.options import HostOptions, TLSFileError, TLSOptions

SECONDS = 30


def placed(folder, issued: Issued) -> TLSOptions:
    """Return options with copies of the files, which a test may replace."""
    certfile, keyfile = folder / "used.pem", folder / "used.key"
    replace(certfile, issued.certfile)
    replace(keyfile, issued.keyfile)
    keyfile.chmod(0o600)
    return TLSOptions(certfile=certfile, keyfile=keyfile)


def replace(path, by) -> None:
    """Replace a file at once, as tools that renew certificates do."""
    shutil.copyfile(by, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)  # noqa: PTH105 - as in the documentation of Kubernetes


async def test_a_changed_file_is_loaded(tmp_path, ca):
    """At the next look; without a change nothing is loaded."""
    tls = Credentials(placed(tmp_path, ca.server("old")), 5.0)
    before = tls.context
    await tls.reload_changed()
    assert (before, 0) == (tls.context, tls.reloads)
    new = ca.server("new")
    replace(tls.options.keyfile, new.keyfile)
    replace(tls.options.certfile, new.certfile)

    await tls.reload_changed()

    assert ("CN=new", 1, 0) == (tls.certificates[""].subject, tls.reloads, tls.failures)
    assert before is not tls.context


async def test_a_look_that_does_not_come_back_is_not_followed_by_another(tmp_path, ca, monkeypatch):
    """However long a file system does not answer, it keeps one thread; then changes are seen again."""
    tls = Credentials(placed(tmp_path, ca.server("old")), 5.0)
    looks, answer = [], threading.Event()

    def stalled(files):
        looks.append(files)
        answer.wait(SECONDS)
        return stamps(files)

    monkeypatch.setattr(credentials, "stamps", stalled)
    monkeypatch.setattr(deadlined_thread.in_time, "__defaults__", (0.05,))
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await tls.reload_changed()
    assert 1 == len(looks)
    answer.set()
    monkeypatch.setattr(deadlined_thread.in_time, "__defaults__", (SECONDS,))
    new = ca.server("new")
    replace(tls.options.keyfile, new.keyfile)
    replace(tls.options.certfile, new.certfile)
    for _ in range(2):  # the first may get what was seen before
        await tls.reload_changed()

    assert "CN=new" == tls.certificates[""].subject


async def test_a_bad_file_keeps_the_old_one(tmp_path, ca, caplog):
    """The log says what is wrong with it, once; when it is mended it is loaded."""
    tls = Credentials(placed(tmp_path, ca.server("old")), 5.0)
    before, new = tls.context, ca.server("new")
    with caplog.at_level(logging.INFO, "leveret.tls"):
        for _ in range(2):
            replace(tls.options.certfile, new.certfile)  # the key is still the old one
            await tls.reload_changed()
            await tls.reload_changed()
            assert before is tls.context
            tls.options.certfile.unlink()
            await tls.reload_changed()
            assert before is tls.context
    assert (0, 4) == (tls.reloads, tls.failures)
    assert "used.key is not the key of the certificate" in caplog.text
    assert "the old ones stay in use" in caplog.text
    replace(tls.options.certfile, new.certfile)
    replace(tls.options.keyfile, new.keyfile)

    assert "" == await tls.reload()
    assert "CN=new" == tls.certificates[""].subject


async def test_the_end_of_a_certificate_is_announced(tmp_path, ca, caplog):
    """Thirty days, seven and one before it, and after it, once each; of each host."""
    host = ca.server("other", "a.test", days=300)
    hosts = {"a.test": HostOptions(certfile=host.certfile, keyfile=host.keyfile)}
    tls = Credentials(
        msgspec.structs.replace(placed(tmp_path, ca.server("first", days=100)), hosts=hosts), 5.0
    )
    end = tls.certificates[""].ends
    with caplog.at_level(logging.INFO, "leveret.tls"):
        for days in (60, 29, 28, 6, 5, 0.5, 0.4, -1, -2):
            tls.warn_of_end(end - dt.timedelta(days=days))

    lines = [record.getMessage() for record in caplog.records]
    assert ["in 29.0 days", "in 6.0 days", "in 0.5 days"] == [line[21:].split(",")[0] for line in lines[:3]]
    assert 4 == len(lines)
    assert "has ended, clients will refuse it: CN=first, issued by CN=ca" in lines[3]


async def served(ca: Authority, port: int, identity: Issued | None = None) -> bytes:
    """Return what a client receives; raises OSError if it is refused."""
    async with asyncio.timeout(SECONDS):
        context = client_context(ca, identity)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname="localhost"
        )
        try:
            return await reader.read()
        finally:
            writer.close()


class Greeting(asyncio.Protocol):
    """A protocol that sends one word and closes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(b"hello")
        transport.close()


@contextlib.asynccontextmanager
async def greeting(tls: Credentials) -> AsyncIterator[int]:
    """Greet the clients of a port, whose number is returned, with these credentials."""
    server = await asyncio.get_running_loop().create_server(
        asyncio.Protocol, "127.0.0.1", 0, start_serving=False
    )
    sock = server.sockets[0].dup()
    server.close()
    sock.listen()
    acceptor = Acceptor(sock, Greeting, tls, "a test")
    try:
        yield sock.getsockname()[1]
    finally:
        acceptor.close()


async def test_a_ca_can_be_taken_away(tmp_path, ca):
    """Its clients are refused from the reload on, those of the others are served all the time."""
    second = Authority(tmp_path, "second")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(ca.chain + second.chain)
    options = msgspec.structs.replace(
        placed(tmp_path, ca.server()), cacertfile=trusted, verify="verify_peer", fail_if_no_peer_cert=True
    )
    tls = Credentials(options, 5.0)
    async with greeting(tls) as port:
        alice, bob = ca.issue("alice"), second.issue("bob")
        assert [b"hello"] * 2 == [await served(ca, port, each) for each in (alice, bob)]

        replace(trusted, ca.file)
        await tls.reload_changed()

        assert b"hello" == await served(ca, port, alice)
        received = b""
        with contextlib.suppress(OSError):  # or just an end, which may come before the alert
            received = await served(ca, port, bob)
        assert b"" == received


async def test_no_client_is_refused_while_certificates_are_replaced(tmp_path, ca):
    """Clients connect all the time, and each gets the old certificate or the new one."""
    names = [ca.server(f"server{at}") for at in range(2)]
    tls = Credentials(placed(tmp_path, names[0]), 5.0)
    greeted = 0
    ended = asyncio.Event()

    async def client() -> None:
        nonlocal greeted
        while not ended.is_set():
            assert b"hello" == await served(ca, port)
            greeted += 1

    async with greeting(tls) as port, asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(client())
        for at in range(20):
            replace(tls.options.certfile, names[at % 2].certfile)
            replace(tls.options.keyfile, names[at % 2].keyfile)
            assert "" == await tls.reload()
            before = greeted
            while greeted < before + 2:
                await asyncio.sleep(0)
        ended.set()
    assert (20, True) == (tls.reloads, greeted >= 40)


async def test_the_watch_looks_by_itself(tmp_path, ca):
    """From its start to its stop."""
    audit = AuditLog(lambda: 0)
    certificates = Certificates(audit)
    tls = certificates.add(placed(tmp_path, ca.server("old")), 5.0)
    certificates.watch(0.01)
    new = ca.server("new")
    replace(tls.options.certfile, new.certfile)
    replace(tls.options.keyfile, new.keyfile)
    async with asyncio.timeout(SECONDS):
        while "CN=new" != tls.certificates[""].subject:
            await asyncio.sleep(0)
    await certificates.forget()
    assert b'"event":"tls.reload","outcome":"ok"' in audit.take()[-1]


def test_there_are_no_credentials_of_bad_files(tmp_path, ca):
    """Nothing starts with them."""
    options = placed(tmp_path, ca.server("old"))
    options.keyfile.unlink()
    with pytest.raises(TLSFileError, match=r"ssl_options\.keyfile"):
        Credentials(options, 5.0)


async def test_stalled_handshakes_keep_nobody_out(tmp_path, ca):
    """The oldest one makes room for a further client."""
    tls = Credentials(placed(tmp_path, ca.server()), 60.0)
    async with greeting(tls) as port, asyncio.timeout(SECONDS), contextlib.AsyncExitStack() as closing:
        for _ in range(HANDSHAKES + 4):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            closing.callback(writer.close)
            writer.write(b"\x16\x03\x01")
        assert [b"hello"] * 3 == [await served(ca, port) for _ in range(3)]


def test_a_key_that_everybody_can_read_is_a_warning(tmp_path, ca, caplog):
    """Only its owner, and perhaps a group, should."""
    options = placed(tmp_path, ca.server())
    options.keyfile.chmod(0o640)
    Credentials(options, 5.0)
    assert "can be read by all users" not in caplog.text
    options.keyfile.chmod(0o644)
    Credentials(options, 5.0)
    assert "used.key can be read by all users of this host" in caplog.text
