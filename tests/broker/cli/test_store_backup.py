"""`leveret store backup`: of a running and of a stopped broker, its output and its exit codes."""

import json
import signal
import subprocess
from pathlib import Path

import pika
import pytest
from click.testing import CliRunner, Result
from processes.running import UNWATCHED, channel_to, command, environment, serving
from samples.stored import example

from leveret.broker.cli.main import main
from leveret.broker.cli.store import read
from leveret.broker.persistence.data_lock import locked


def backup(*words: object) -> Result:
    """Run `leveret store backup`."""
    return CliRunner().invoke(main, ["store", "backup", *map(str, words)])


def messages(data_dir: Path) -> int:
    findings, stats = read(data_dir)
    assert not findings
    assert stats is not None
    return int(stats["messages"])


def names(path: Path) -> set[str]:
    return {each.name for each in path.iterdir()}


@pytest.fixture
def running(tmp_path):
    """A broker with 200 messages of 1 KB."""
    with serving(tmp_path, *UNWATCHED, "--set", "management.enabled=false") as started:
        with channel_to(started.address) as channel:
            channel.queue_declare("q", durable=True)
            channel.confirm_delivery()
            for _ in range(200):
                channel.basic_publish("", "q", b"x" * 1000, pika.BasicProperties(delivery_mode=2))
        yield started


def test_a_stopped_broker(tmp_path):
    """The data of a stopped broker are copied; the same destination is refused the second time, with exit code 73."""
    example(tmp_path / "data")
    done = backup("--data-dir", tmp_path / "data", tmp_path / "copy")
    again = backup("--data-dir", tmp_path / "data", tmp_path / "copy")

    assert 0 == done.exit_code, done.stderr
    assert done.stdout.startswith(f"{tmp_path / 'copy'}: ")
    assert 189 == messages(tmp_path / "copy") == messages(tmp_path / "data")
    assert 73 == again.exit_code
    text = f"leveret: no backup was written: {tmp_path / 'copy'} exists: a backup never overwrites anything\n"
    assert text == again.stderr


def test_a_relative_destination(tmp_path, monkeypatch):
    """The destination is relative to the current directory, and the result as JSON has its absolute path."""
    example(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    done = backup("--data-dir", "data", "--json", "--rate", "0", "copy")

    assert str(tmp_path / "copy") == json.loads(done.stdout)["path"]
    assert 189 == messages(tmp_path / "copy")


def test_refusals(tmp_path):
    """No data, a rate that is none, a lock without a broker that answers: exit codes and one line each."""
    example(tmp_path / "data")
    (tmp_path / "empty").mkdir()
    none = backup("--data-dir", tmp_path / "empty", tmp_path / "copy")
    rate = backup("--data-dir", tmp_path / "data", "--rate", "fast", tmp_path / "copy")
    with locked(tmp_path / "data"):
        used = backup("--data-dir", tmp_path / "data", tmp_path / "copy")

    assert (73, f"leveret: no backup was written: there is no data in {tmp_path / 'empty'}\n") == (
        none.exit_code,
        none.stderr,
    )
    assert (78, "leveret: --rate must be a size such as 131072, 128KiB or 64MB\n") == (
        rate.exit_code,
        rate.stderr,
    )
    assert 73 == used.exit_code
    assert "another broker is using it" in used.stderr
    assert not (tmp_path / "copy").exists()


def test_a_running_broker(tmp_path, running):
    """The broker writes the copy while it runs; refusals are its own text."""
    done = backup("--data-dir", running.data_dir, "--json", tmp_path / "copy")
    inside = backup("--data-dir", running.data_dir, running.data_dir / "copy")

    assert 0 == done.exit_code, done.stderr
    assert json.loads(done.stdout)["octets"] > 200_000
    assert 200 == messages(tmp_path / "copy")
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "copy").rglob("*")}
    assert {0o700, 0o600} == modes
    assert 73 == inside.exit_code
    assert f"{running.data_dir / 'copy'} is inside of the data directory" in inside.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_command_that_is_interrupted(tmp_path, running, number):
    """The broker cancels the backup and leaves nothing behind; the next one is made."""
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip(
            "a shell has started the tests in the background, so they ignore SIGINT, and the command does"
        )
    words = command(
        "store", "backup", "--data-dir", str(running.data_dir), "--rate", "1", str(tmp_path / "copy")
    )
    process = subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE)
    running.wait_for(f"backup to {tmp_path / 'copy'} started")
    process.send_signal(number)
    process.communicate(timeout=120)
    running.wait_for(f"backup to {tmp_path / 'copy'} failed: cancelled")

    assert process.returncode
    assert {"data"} == names(tmp_path)
    assert 0 == backup("--data-dir", running.data_dir, tmp_path / "copy").exit_code


def test_a_broker_that_is_killed(tmp_path, running):
    """The command fails; what the broker has left is not taken for a backup, and the next backup replaces it."""
    words = command(
        "store", "backup", "--data-dir", str(running.data_dir), "--rate", "1", str(tmp_path / "copy")
    )
    process = subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE, text=True)
    running.wait_for(f"backup to {tmp_path / 'copy'} started")
    while not (tmp_path / "copy.partial" / "store" / "data.mdb").exists():
        assert process.poll() is None
    running.process.kill()
    running.process.wait(30)
    _, errors = process.communicate(timeout=60)

    assert 73 == process.returncode
    assert "does not answer" in errors
    assert {"data", "copy.partial"} == names(tmp_path)
    assert 65 == CliRunner().invoke(main, ["serve", "--data-dir", str(tmp_path / "copy.partial")]).exit_code
    assert 0 == backup("--data-dir", tmp_path / "data", tmp_path / "copy").exit_code
    assert 200 == messages(tmp_path / "copy")


def test_a_path_that_is_longer_than_the_address_of_a_socket(tmp_path):
    """The broker is reached in a data directory whose path has more than 108 octets."""
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    with serving(deep, *UNWATCHED, "--set", "management.enabled=false") as started:
        assert 0 == backup("--data-dir", started.data_dir, tmp_path / "copy").exit_code
