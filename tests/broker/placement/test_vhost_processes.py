"""A front and its processes of virtual hosts, as clients and operators see them."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pika
import pytest
from pamqp import commands
from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import (
    AMQPConnectionError,
    AMQPError,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)
from processes.fronts import SETTINGS, check_pipelined, connect, ctl, front, handshake, is_running, pid_of
from processes.running import Running, children, serving
from processes.waiting import wait_until

from leveret.broker import exit_codes

OPEN_OK = commands.Connection.OpenOk


def store(connection: BlockingConnection, body: bytes) -> None:
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2))


def stored(connection: BlockingConnection) -> bytes | None:
    return connection.channel().basic_get("q", auto_ack=True)[2]


def test_each_process_has_its_virtual_hosts(tmp_path: Path) -> None:
    """Queues of one name are different ones, and each process shows its own, with the address of the client."""
    with front(tmp_path) as running, connect(running, "a") as one, connect(running, "b") as other:
        store(one, b"of a")
        store(other, b"of b")

        assert (b"of a", b"of b") == (stored(one), stored(other))
        for process, vhost, connection in ((1, "a", one), (2, "b", other)):
            sock = connection._impl._transport._sock
            _, text = ctl(running, "-q", "list_connections", "vhost", "peer_port", process=process)
            assert [vhost, str(sock.getsockname()[1])] == text.split()[-2:]
        assert {"1", "2"} == {each.name for each in (running.data_dir / "processes").iterdir()}


@pytest.mark.parametrize("size", [100, 100_000, 3_000_000])
def test_what_follows_connection_open_is_not_lost(tmp_path: Path, size: int) -> None:
    """A client that waits for no answer gets all of them, however much of what it sent the front had read."""
    with front(tmp_path) as running:
        check_pipelined(running.address, "b", size)


def test_a_killed_process_takes_its_virtual_hosts_only(tmp_path: Path) -> None:
    """After kill -9 its clients are disconnected, the others see nothing, and its confirmed messages are there again."""
    with front(tmp_path) as running, connect(running, "a") as other:
        assert (
            0 == ctl(running, "set_user_limits", "1", '{"max-connections": 2}')[0]
        )  # those of a lost process are none
        lost = connect(running, "b")
        store(lost, b"kept")
        os.kill(pid_of(running, 2), signal.SIGKILL)

        with connected(running, "b") as again:
            assert b"kept" == stored(again)
        with pytest.raises(AMQPError):
            lost.channel()
        store(other, b"there all the time")
        assert b"there all the time" == stored(other)
        running.wait_for("process 2 of virtual hosts has ended (-9)")


def test_refusals_are_those_of_one_process(tmp_path: Path) -> None:
    """A wrong password is 403, and a virtual host that does not exist, or is not for the user, 530."""
    with front(tmp_path, auth__failure_delay=0) as running:
        with pytest.raises(ProbableAuthenticationError, match="403"):
            connect(running, "a", pika.PlainCredentials("1", "wrong"))
        with pytest.raises(ProbableAccessDeniedError, match=r"530.*vhost none not found"):
            connect(running, "none")
        assert 0 == ctl(running, "clear_permissions", "-p", "b", "1")[0]
        with pytest.raises(ProbableAccessDeniedError, match=r"530.*access to vhost 'b' refused for user '1'"):
            connect(running, "b")


def test_limits_count_all_processes(tmp_path: Path) -> None:
    """The limit of a user counts its connections in all processes, that of a virtual host those in its own."""
    with front(tmp_path) as running:
        assert 0 == ctl(running, "set_user_limits", "1", '{"max-connections": 2}')[0]
        one, other = connect(running, "a"), connect(running, "b")
        with pytest.raises(ProbableAccessDeniedError, match=r"user connection limit \(2\) is reached"):
            connect(running, "a")
        one.close()
        other.close()
        assert 0 == ctl(running, "set_vhost_limits", "-p", "b", '{"max-connections": 1, "max-queues": 0}')[0]
        with connected(running, "b") as last:
            with pytest.raises(AMQPConnectionError, match=r"connection limit \(1\) is reached"):
                connect(running, "b")
            with pytest.raises(AMQPError, match="queue limit in vhost 'b'"):
                last.channel().queue_declare("q")


@contextmanager
def connected(running: Running, vhost: str) -> Iterator[BlockingConnection]:
    """Connect as soon as the front knows that earlier connections are closed."""

    def tried() -> BlockingConnection | None:
        with suppress(AMQPConnectionError):
            return connect(running, vhost)
        return None

    connection = wait_until(tried)
    yield connection
    connection.close()


def test_changes_in_the_front_hold_in_all_processes(tmp_path: Path) -> None:
    """A new user may log in at once, a deleted one is disconnected, and a virtual host comes and goes with its data."""
    with front(tmp_path) as running:
        assert 0 == ctl(running, "add_vhost", "c")[0]
        assert 0 == ctl(running, "add_user", "new", "secret")[0]
        assert 0 == ctl(running, "set_permissions", "-p", "c", "new", ".*", ".*", ".*")[0]
        connection = connect(running, "c", pika.PlainCredentials("new", "secret"))
        store(connection, b"message")
        assert 0 == ctl(running, "delete_user", "new")[0]
        with pytest.raises(ConnectionClosedByBroker, match="user 'new' is deleted"):
            connection.process_data_events(30)
        assert "q" in ctl(running, "-q", "list_queues", "-p", "c", process=1)[1]

        assert 0 == ctl(running, "delete_vhost", "c")[0]
        wait_until(lambda: "c" not in ctl(running, "-q", "list_vhosts", process=1)[1].split())
        assert {"a", "b"} == set(ctl(running, "-q", "list_vhosts", "name")[1].split()) - {"name"}


def test_a_virtual_host_is_not_taken_for_an_earlier_one(tmp_path: Path) -> None:
    """One that was deleted and made again while its process was away has nothing of the first."""
    with front(tmp_path) as running:
        with connect(running, "b") as connection:
            store(connection, b"deleted")
        pid = pid_of(running, 2)
        os.kill(pid, signal.SIGSTOP)
        for words in (
            ("delete_vhost", "b"),
            ("add_vhost", "b"),
            ("set_permissions", "-p", "b", "1", ".*", ".*", ".*"),
        ):
            assert 0 == ctl(running, *words)[0]
        os.kill(pid, signal.SIGKILL)
        with connected(running, "b") as connection:
            channel = connection.channel()
            assert 0 == channel.queue_declare("q", durable=True).method.message_count


def test_a_process_changes_no_users(tmp_path: Path) -> None:
    """A process says where users are changed, and the front that there is no firehose."""
    with front(tmp_path) as running:
        code, text = ctl(running, "add_user", "new", "secret", process=1)
        assert code
        assert "are changed in the front" in text
        code, text = ctl(running, "trace_on", "-p", "a")
        assert code


def test_data_stay_in_their_processes(tmp_path: Path) -> None:
    """After a restart all is there; without the mode, with fewer processes or another pin the broker does not start."""
    with front(tmp_path) as running, connect(running, "a") as one, connect(running, "b") as other:
        store(one, b"of a")
        store(other, b"of b")
    with front(tmp_path) as running, connect(running, "a") as one, connect(running, "b") as other:
        assert (b"of a", b"of b") == (stored(one), stored(other))
    for wrong, reason in (
        (
            {"vhosts.processes": 0, "vhosts.process.b": None},
            "vhosts.processes is missing: the virtual hosts are in",
        ),
        ({"vhosts.processes": 1, "vhosts.process.b": None}, "vhosts.processes = 1, but virtual hosts are in"),
        ({"vhosts.process.b": 1}, "vhosts.process.b = 1, but its data are in process 2"),
    ):
        settings = {name: value for name, value in (SETTINGS | wrong).items() if value is not None}
        words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        with Running(tmp_path, *words, is_forked=False) as failing:
            out, err = failing.process.communicate(timeout=60)
        assert reason in out + err
        assert exit_codes.CONFIG == failing.process.returncode


def test_the_data_of_one_process_are_not_taken_over(tmp_path: Path) -> None:
    """A data directory of a broker without the mode is refused, as no process would have its queues."""
    with serving(tmp_path, settings={"default_vhost": "a"}) as running:
        running.stopped_by(signal.SIGTERM)
    words = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    with Running(tmp_path, *words, is_forked=False) as failing:
        out, err = failing.process.communicate(timeout=60)
    assert "is of a broker without it" in out + err
    assert exit_codes.CONFIG == failing.process.returncode


def test_processes_end_with_a_killed_front(tmp_path: Path) -> None:
    """After kill -9 of the front its processes close their clients and stop by themselves."""
    with serving(tmp_path, settings=SETTINGS, is_forked=False) as running:
        pids = children(running.process.pid)
        assert 2 == len(pids)
        connection = connect(running, "b")
        running.process.kill()
        with pytest.raises(ConnectionClosedByBroker, match="CONNECTION_FORCED"):
            connection.process_data_events(30)
        wait_until(lambda: not any(map(is_running, pids)))


def test_a_stopped_process_holds_no_other(tmp_path: Path) -> None:
    """While a process does not run at all, clients of the others log in; its own wait, and go on when it does."""
    with front(tmp_path, handshake_timeout=60_000) as running:
        pid = pid_of(running, 2)
        os.kill(pid, signal.SIGSTOP)
        try:
            waiting = socket.create_connection(running.address, timeout=30)
            waiting.sendall(handshake("b"))
            began = time.monotonic()
            for _ in range(20):
                connect(running, "a").close()
            assert time.monotonic() - began < 20
        finally:
            os.kill(pid, signal.SIGCONT)
        with waiting:
            answers = b""
            while b"\0\x0a\0\x29" not in answers:  # open-ok
                octets = waiting.recv(65536)
                assert octets
                answers += octets
