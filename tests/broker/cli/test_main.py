"""The command: starting, stopping, and one clear line if it cannot start."""

import contextlib
import fcntl
import gc
import json
import os
import signal
import socket
import sys
from pathlib import Path

import pika
import pika.exceptions
import pytest
from click.testing import CliRunner
from processes.commands import execute
from processes.running import Running, finished, free_port, serving

from leveret import __version__
from leveret.broker.cli import main as main_module
from leveret.broker.cli.main import main
from leveret.broker.process.memory import THRESHOLDS
from leveret.broker.server.startup import port_problem

ELSEWHERE = "stop it, or choose another directory with --data-dir"


def refused(tmp_path: Path, *arguments: str) -> tuple[int, str]:
    """Return the exit code and the one line on stderr of a broker that does not start."""
    done = finished("serve", *arguments, cwd=tmp_path, seconds=60)
    lines = done.stderr.splitlines()

    assert 1 == len(lines), done.stderr
    assert lines[0].startswith("leveret: ")
    return done.returncode, lines[0].removeprefix("leveret: ")


def test_version():
    """`leveret --version` prints the installed version."""
    done = CliRunner().invoke(main, ["--version"])

    assert (0, f"leveret {__version__}\n") == (done.exit_code, done.output)


def test_no_collection_looks_at_many_objects_but_a_full_one():
    """With a growing backlog a young collection visits fewer than 100,000 objects, and full ones are rare."""
    looked_at = []

    def note(phase, info):
        if phase == "start":
            looked_at.append(sum(len(gc.get_objects(each)) for each in range(info["generation"] + 1)))
            full.append(info["generation"] == 2)

    full: list[bool] = []
    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(*THRESHOLDS)
    gc.callbacks.append(note)
    try:
        backlog = [[number] for number in range(500_000)]
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*before)

    assert 500_000 == len(backlog)
    assert len(looked_at) > 10
    assert max(looked_at) < 100_000
    assert not any(full)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--set", "heartbit=5"), 78, "--set: unknown key heartbit; did you mean heartbeat?"),
        (("--config", "{}/missing.conf"), 78, "cannot read {}/missing.conf: No such file or directory"),
        (("--config", "{}/binary.conf"), 78, "cannot read {}/binary.conf: not UTF-8 text"),
        (("--data-dir", "{}/file"), 73, "cannot use data directory {}/file: ..."),
        (("--data-dir", "{}/file/below"), 73, "cannot use data directory {}/file/below: ..."),
        (("--log-file", "{}"), 73, "cannot open log file {}: Is a directory"),
        (("--set", "listeners.tcp.1=192.0.2.1:0"), 69, "cannot listen on 192.0.2.1:0: ..."),
        (
            ("--set", "default_permissions.write=("),
            78,
            "default_permissions.write: invalid regular expression '('...",
        ),
    ],
)
def test_what_a_broker_cannot_start_with_is_told_in_a_line(tmp_path, words, code, text):
    """Its exit code is that of the reason: 78 for the configuration, 73 for files, 69 for addresses."""
    (tmp_path / "binary.conf").write_bytes(b"\xff\xfe")
    (tmp_path / "file").touch()
    found, answer = refused(
        tmp_path, "--set", "listeners.tcp.1=127.0.0.1:0", *(each.format(tmp_path) for each in words)
    )
    expected, is_begin, _ = text.format(tmp_path).partition("...")

    assert code == found
    assert expected == (answer[: len(expected)] if is_begin else answer)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_data_directory_without_permission_is_refused(tmp_path):
    """A data directory without write permission stops the start with 73."""
    tmp_path.chmod(0o500)

    assert (73, f"cannot use data directory {tmp_path}: Permission denied") == refused(
        Path("/"), "--data-dir", str(tmp_path)
    )


def test_two_brokers_do_not_share_a_data_directory(tmp_path):
    """A data directory that a broker is using stops another one's start with 73 and the process id of the first."""
    with serving(tmp_path) as running:
        answer = refused(tmp_path, "--data-dir", str(running.data_dir))
        who = f"process {running.process.pid} on {socket.gethostname()}"

    assert (
        73,
        f"cannot use data directory {running.data_dir}: another broker is using it, {who}; {ELSEWHERE}",
    ) == answer


def test_a_lock_that_somebody_else_holds_is_respected(tmp_path):
    """A lock is respected even if its holder has left no name."""
    with (tmp_path / "leveret.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        answer = refused(tmp_path, "--data-dir", str(tmp_path))

    assert (73, f"cannot use data directory {tmp_path}: another broker is using it; {ELSEWHERE}") == answer


def test_it_starts_serves_and_stops(tmp_path):
    """Once the log says so the port is open and the pid file exists; SIGTERM ends the broker with 0."""
    pid_file = tmp_path / "leveret.pid"
    with serving(tmp_path, "--pid-file", str(pid_file), is_forked=False) as running:
        socket.create_connection(running.address).close()
        written = pid_file.read_text()
        code, out, err = running.stopped_by(signal.SIGTERM)

        assert (0, "") == (code, err)
        assert f"{running.process.pid}\n" == written
        assert not pid_file.exists()
        assert "received SIGTERM" in out
        assert [] == [line for line in running.lines if "[warning]" in line and "guest" not in line]


def test_sigint_stops_too(tmp_path):
    """Ctrl-C stops the broker as SIGTERM does."""
    with serving(tmp_path) as running:
        assert 0 == running.stopped_by(signal.SIGINT)[0]


def test_sighup_reopens_the_log(tmp_path):
    """After SIGHUP lines go to a new file under the old name."""
    log = tmp_path / "log" / "leveret.log"
    with serving(tmp_path, "--set", f"log.file={log}") as running:
        log.rename(log.with_suffix(".1"))
        running.process.send_signal(signal.SIGHUP)
        while not log.exists():
            assert running.process.poll() is None
        code, _, err = running.stopped_by(signal.SIGTERM)

    assert (0, "") == (code, err)
    assert "Server startup complete" in log.with_suffix(".1").read_text()
    assert "received SIGTERM" in log.read_text()


def test_the_log_can_be_json(tmp_path):
    """With the JSON formatter each line is an object with RabbitMQ's keys."""
    with Running(tmp_path, "--set", "log.console.formatter=json") as running:
        entry = json.loads(running.wait_for("Server startup complete"))
        running.stopped_by(signal.SIGTERM)

    assert ("info", "Server startup complete", "leveret") == (entry["level"], entry["msg"], entry["domain"])


def test_warnings_about_the_configuration_are_logged(tmp_path):
    """A key that is not supported yet is a warning in the log; the broker starts."""
    with Running(tmp_path, "--set", "disk_monitor_failure_retries=1") as running:
        line = running.wait_for("disk_monitor_failure_retries")

    assert "[warning]" in line


def test_a_taken_port_is_refused(tmp_path):
    """A port that someone else listens on stops the start with 69 and the address."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        answer = refused(tmp_path, "--set", f"listeners.tcp.1={address}")

    code, text = answer
    assert 69 == code
    assert text.startswith(f"cannot listen on {address}: address already in use (by RabbitMQ ")
    assert "`leveret serve --port`" in text


def test_the_port_and_the_address_are_flags(tmp_path):
    """They replace all listeners that files name."""
    with serving(tmp_path, "--port", "0", "--listen", "127.0.0.2") as running:
        running.stopped_by(signal.SIGTERM)

    assert ["127.0.0.2"] == [host for host, _port in running.addresses]


def no_address(host: str) -> tuple[type[OSError], ...]:
    """Return the error of connections to an address if this machine, which may have IPv6 disabled, has it not."""
    try:
        socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError:
        return (OSError,)
    return ()


def test_the_last_line_of_a_start_is_the_page(tmp_path):
    """Its port follows that of AMQP, and the login is told while it is the default one."""
    port = next(port for port in iter(free_port, None) if is_free(port + 10_000))
    with Running(tmp_path, "--set", "management.enabled=true", "--port", str(port)) as running:
        line = running.wait_for("page: ")
        running.stopped_by(signal.SIGTERM)

    assert line.rstrip().endswith(f"page: http://127.0.0.1:{port + 10_000}/ (user guest, password guest)")


def is_free(port: int) -> bool:
    """Return whether nobody listens on a port of loopback."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_bare_port_is_every_interface(tmp_path):
    """A listener without a host listens on all interfaces, for IPv4 and, if available, IPv6."""
    with serving(tmp_path, "--set", "listeners.tcp.1=0") as running:
        for host, port in running.addresses:
            there = "127.0.0.1" if host == "0.0.0.0" else "::1"
            with contextlib.suppress(*no_address(there)):
                socket.create_connection((there, port)).close()

        assert {host for host, _ in running.addresses} <= {"0.0.0.0", "::"}
        assert 0 == running.stopped_by(signal.SIGTERM)[0]


def test_the_data_directory_is_free_after_a_kill(tmp_path):
    """A broker that was killed leaves nothing that prevents the next start."""
    with serving(tmp_path) as running:
        assert -signal.SIGKILL == running.stopped_by(signal.SIGKILL)[0]
    with serving(tmp_path) as running:
        assert 0 == running.stopped_by(signal.SIGTERM)[0]


def test_clients_are_notified_of_the_shutdown(tmp_path):
    """A connected client gets connection.close 320 with RabbitMQ's text, and the broker ends with 0."""
    with serving(tmp_path) as running:
        connection = pika.BlockingConnection(pika.ConnectionParameters(*running.address))
        running.process.send_signal(signal.SIGTERM)
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            connection.process_data_events(time_limit=10)

        assert 0 == running.process.wait(10)
    text = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
    assert (320, text) == (closed.value.reply_code, closed.value.reply_text)


def test_a_second_signal_ends_at_once(tmp_path):
    """A second SIGTERM ends a broker at once that waits for a client that does not answer."""
    with serving(tmp_path) as running:
        idle = pika.BlockingConnection(pika.ConnectionParameters(*running.address))
        running.process.send_signal(signal.SIGTERM)
        running.wait_for("stopping")

        assert 128 + signal.SIGTERM == running.stopped_by(signal.SIGTERM)[0]
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            idle.process_data_events(time_limit=10)


def test_a_start_that_fails_at_a_file_is_not_blamed_on_a_listener():
    """An error of a file names the file; only one without a file is about a listener."""
    missing = FileNotFoundError(2, "No such file or directory", "/x")

    assert "cannot start: /x: No such file or directory" == port_problem(missing, ())


def test_files_are_limited_by_the_system(monkeypatch):
    """The limit of open files is raised to the most that macOS grants if the hard limit is refused, as there."""
    asked = []

    def setrlimit(_kind, limits):
        asked.append(limits)
        if limits[0] == limits[1]:
            raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(main_module.resource, "getrlimit", lambda _kind: (256, 1 << 62))
    monkeypatch.setattr(main_module.resource, "setrlimit", setrlimit)
    main_module._raise_file_limit()

    assert [(1 << 62, 1 << 62), (10_240, 1 << 62)] == asked


def test_a_start_does_not_load_other_commands():
    """They are listed in the help, and loaded when they are used."""
    program = "import sys; from leveret.broker.cli import main; print(*sys.modules)"
    words = [sys.executable, "-c", program]
    done = execute(words, check=True)
    others = ("leveret.broker.cli.ctl", "leveret.broker.cli.perf", "leveret.broker.perf")

    assert [] == [name for name in done.stdout.split() if name.startswith(others)]
    assert "Look at and change a running broker." in CliRunner().invoke(main, ["--help"]).output
    assert 0 == CliRunner().invoke(main, ["ctl", "version"]).exit_code
