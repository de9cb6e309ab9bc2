"""Notifications of the service manager by sd_notify(3)."""

import asyncio
import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes.running import serving
from processes.short_paths import short_parent

from leveret.broker.process.sd_notify import Notifier

SECONDS = 15.0


@pytest.fixture
def manager() -> Iterator[socket.socket]:
    """The socket of a service manager, at a path that is short enough for one."""
    with (
        tempfile.TemporaryDirectory(dir=short_parent()) as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard,
    ):
        heard.bind(str(Path(folder) / "notify"))
        heard.settimeout(SECONDS)
        yield heard


async def received(heard: socket.socket) -> str:
    """Return the next datagram, while the loop goes on."""
    heard.setblocking(False)
    return (await asyncio.wait_for(asyncio.get_running_loop().sock_recv(heard, 4096), SECONDS)).decode()


async def test_ready_and_stopping_are_reported(manager):
    """READY and STOPPING come with a status line each; without a watchdog nothing follows."""
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname()}, os.getpid())

    notifier.ready("listening on 127.0.0.1:5672", asyncio.get_running_loop())
    notifier.stopping()

    assert "READY=1\nSTATUS=listening on 127.0.0.1:5672" == await received(manager)
    assert "STOPPING=1\nSTATUS=stopping" == await received(manager)


async def test_a_name_after_an_at_is_abstract():
    """`@name` is a socket in the kernel's namespace, not a file."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind("")  # Linux chooses an abstract name
        name = heard.getsockname().decode()
        notifier = Notifier({"NOTIFY_SOCKET": f"@{name[1:]}"}, os.getpid())

        notifier.stopping()

        assert "STOPPING=1\nSTATUS=stopping" == await received(heard)


def test_a_sign_of_life_may_be_late(manager):
    """Watchdog notifications come at half the interval that the service manager allows."""
    waits = []

    class Loop:
        def call_later(self, seconds, *_rest):
            waits.append(seconds)

    Notifier({"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "30000000"}, 1).ready("here", Loop())

    assert [15.0] == waits


@pytest.mark.parametrize("pid", ["", str(os.getpid())], ids=["anybody", "us"])
async def test_the_watchdog_hears_of_the_loop_again_and_again(manager, pid):
    """A watchdog of this process gets notifications after READY."""
    environ = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "20000", "WATCHDOG_PID": pid}

    Notifier(environ, os.getpid()).ready("here", asyncio.get_running_loop())

    assert ["READY=1\nSTATUS=here"] + 3 * ["WATCHDOG=1"] == [await received(manager) for _ in range(4)]


@pytest.mark.parametrize(
    "environ",
    [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}],
)
async def test_a_watchdog_that_is_not_ours_hears_nothing(manager, environ):
    """Without a watchdog, or with an invalid one or one of another process, the next notification is STOPPING."""
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname(), **environ}, os.getpid())

    notifier.ready("here", asyncio.get_running_loop())
    await asyncio.sleep(0)
    notifier.stopping()

    assert ["READY=1", "STOPPING=1"] == [(await received(manager)).partition("\n")[0] for _ in range(2)]


async def test_without_a_service_manager_nothing_is_said(caplog):
    """A broker started by hand notifies nobody, without a warning."""
    notifier = Notifier({"WATCHDOG_USEC": "1"}, os.getpid())

    notifier.ready("here", asyncio.get_running_loop())
    notifier.stopping()

    assert [] == caplog.messages


@pytest.mark.parametrize(
    ("path", "reason"),
    [("/gone/notify", "No such file or directory"), (f"/{200 * 'x'}", "AF_UNIX path too long")],
)
async def test_a_service_manager_that_is_gone_is_a_warning(path, reason, caplog):
    """A broker whose notification socket has no listener goes on with a warning in its log that says why."""
    notifier = Notifier({"NOTIFY_SOCKET": path}, os.getpid())

    notifier.stopping()

    assert [f"cannot tell the service manager STOPPING=1: {reason}"] == caplog.messages


def test_a_broker_tells_when_clients_may_connect_and_when_it_stops(tmp_path, manager, monkeypatch):
    """The process sends READY with its addresses, and STOPPING before it ends."""
    monkeypatch.setenv("NOTIFY_SOCKET", manager.getsockname())
    with serving(tmp_path) as broker:
        host, port = broker.address
        ready = manager.recv(4096).decode()
        code, _log, _errors = broker.stopped_by(signal.SIGTERM)

    assert f"READY=1\nSTATUS=listening on {host}:{port}" == ready
    assert ("STOPPING=1\nSTATUS=stopping", 0) == (manager.recv(4096).decode(), code)
