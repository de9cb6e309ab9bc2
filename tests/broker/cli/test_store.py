"""`leveret store ...`: output, exit codes, and refusal to work on the data of a running broker."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pika
import pika.exceptions
import pytest
from click.testing import CliRunner, Result
from processes.running import Running, serving
from samples.stored import Stored, example

import leveret
from leveret.broker.cli import store as store_command
from leveret.broker.cli.main import main
from leveret.broker.embedded.synchronous import Broker
from leveret.broker.persistence import data_store
from leveret.broker.persistence.data_store import compact_if_worth_it
from leveret.storage.store.compact import LEFT_BEHIND, measure
from leveret.storage.store.metadata_rows import QueueRow, encode


def store(*words: str) -> Result:
    """Run `leveret store`."""
    return CliRunner().invoke(main, ["store", *words])


def size_of(data_dir: Path) -> int:
    return (data_dir / "store" / "data.mdb").stat().st_size


def spoil(data_dir: Path, octets: bytes) -> None:
    """Damage the record that contains these bytes."""
    path = data_dir / "store" / "data.mdb"
    path.write_bytes(path.read_bytes().replace(octets, octets.swapcase()))


def test_held_messages_are_counted(tmp_path):
    """Messages that a queue holds until their time are part of what was checked."""
    with leveret.Broker(data_dir=tmp_path) as broker:
        broker.declare("q", durable=True, arguments={"x-allow-hold": True})
        broker.publish("", "q", b"x", properties={"delivery_mode": 2}, headers={"x-delay": 3_600_000})
    done = store("check", "--data-dir", str(tmp_path))

    assert (0, "clean: queues: 1, messages: 0, held or delayed: 1, blocks: 0,") == (
        done.exit_code,
        done.stdout.partition(" in ")[0],
    )


def test_whole_data(tmp_path):
    """Undamaged data are clean, with exit code 0 and a line that says how much was checked."""
    example(tmp_path)
    done = store("check", "--data-dir", str(tmp_path))

    assert (0, "") == (done.exit_code, done.stderr)
    assert f"clean: queues: 3, messages: 189, blocks: 6, in {tmp_path}\n" == done.stdout


def test_damaged_data(tmp_path):
    """Each finding is a line; the exit code is 65."""
    example(tmp_path)
    spoil(tmp_path, b"message 150")
    done = store("check", "--data-dir", str(tmp_path))
    lines = done.stdout.splitlines()

    assert 65 == done.exit_code
    assert lines[0].startswith("damaged: blocks ")
    assert lines[0].endswith("is damaged")
    assert lines[-1] == f"{len(lines) - 1} damaged items in {tmp_path}"


def test_arguments_that_are_no_table_are_damage(tmp_path):
    """Data that a start would refuse with 65 are found, whatever their checksum."""
    row = QueueRow((1 << 32) + 9, (1 << 32) + 1, b"q", False, b"\0\0\0\1")
    stored = Stored(tmp_path)
    stored.journal.put("defs", row.key(), encode(row))
    stored.commit()
    stored.close()
    done = store("check", "--data-dir", str(tmp_path))

    text = "invalid arguments: length exceeds the enclosing value"
    assert 65 == done.exit_code
    assert f"damaged: defs: definition {row.key().hex()} is damaged: {text}\n" in done.stdout
    with Running(tmp_path, "--data-dir", str(tmp_path)) as running:
        _, err = running.process.communicate(timeout=15)
    assert (65, f"leveret: definition {row.key().hex()} is damaged: {text}\n") == (
        running.process.returncode,
        err,
    )


def test_left_over_is_no_damage(tmp_path):
    """Leftovers that the next start removes are reported, without changing the exit code."""
    example(tmp_path)
    (tmp_path / "blobs" / "1.part").touch()
    done = store("check", "--data-dir", str(tmp_path))

    assert 0 == done.exit_code
    assert "left over: blobs/1.part: no message refers to it" == done.stdout.splitlines()[0]


def test_json(tmp_path):
    """With --json the output is one object: whether the data are clean, the findings, the sums."""
    example(tmp_path)
    report = json.loads(store("check", "--json", "--data-dir", str(tmp_path)).stdout)

    assert (True, [], 189) == (report["clean"], report["findings"], report["stats"]["messages"])
    spoil(tmp_path, b"message 150")
    report = json.loads(store("check", "--json", "--data-dir", str(tmp_path)).stdout)
    assert (False, True) == (report["clean"], report["findings"][0]["damage"])


def test_a_file_that_ends_the_reader_is_damaged(tmp_path, monkeypatch):
    """A file whose reader the system kills is a finding like any other."""
    example(tmp_path, clean=True)
    program = tmp_path / "program" / "leveret" / "broker" / "cli"
    program.mkdir(parents=True)
    for folder in (program, program.parent, program.parent.parent):
        (folder / "__init__.py").touch()
    text = 'import json, os\nprint(json.dumps({"reading": "defs"}), flush=True)\nos.kill(os.getpid(), 7)\n'
    (program / "store_reader.py").write_text(text)
    monkeypatch.setattr(store_command, "_ROOT", tmp_path / "program")
    monkeypatch.chdir(tmp_path)
    done = store("check", "--data-dir", str(tmp_path))

    assert 65 == done.exit_code
    assert "SIGBUS" in done.stdout
    assert "the reading process ended with" in done.stdout
    shown = store("stats", "--data-dir", str(tmp_path))
    assert 65 == shown.exit_code
    assert shown.stderr.startswith(f"leveret: cannot read the data in {tmp_path}: ")


def test_stats(tmp_path):
    """A line for each queue, then the sums; the same as JSON."""
    example(tmp_path)
    lines = store("stats", "--data-dir", str(tmp_path)).stdout.splitlines()
    report = json.loads(store("stats", "--json", "--data-dir", str(tmp_path)).stdout)

    assert ["vhost", "queue", "messages", "octets", "blocks", "dead", "dead_octets"] == lines[0].split()
    assert ["/", "one", "180"] == lines[1].split()[:3]
    assert f"file_size: {size_of(tmp_path)}" in lines
    assert ("one", 180, 30) == tuple(report["queues"][0][name] for name in ("name", "messages", "dead"))


def drained(data_dir: Path, messages: int = 2000) -> None:
    """A file that is much larger than its contents."""
    stored = Stored(data_dir, "q")
    for number in range(messages):
        stored.publish(f"{number % 10}" * 3000, "q")
    stored.commit()
    stored.take("q", messages - 10)
    stored.commit()
    stored.close()


def test_compact(tmp_path):
    """Compaction prints the sizes before and after, and leaves clean data."""
    drained(tmp_path)
    before = size_of(tmp_path)
    done = store("compact", "--data-dir", str(tmp_path))
    after = size_of(tmp_path)

    assert 0 == done.exit_code
    assert [f"before: {before} bytes", f"after: {after} bytes"] == [
        line.partition(",")[0] for line in done.stdout.splitlines()
    ]
    assert after < before / 10
    assert 0 == store("check", "--data-dir", str(tmp_path)).exit_code
    again = json.loads(store("compact", "--json", "--data-dir", str(tmp_path)).stdout)
    assert {"before": after, "after": after, "records": 0} == again


def test_damaged_data_are_not_compacted(tmp_path):
    """Compaction checks for damage first, and leaves damaged data unchanged."""
    example(tmp_path)
    spoil(tmp_path, b"message 150")
    before = (tmp_path / "store" / "data.mdb").read_bytes()
    done = store("compact", "--data-dir", str(tmp_path))

    assert 65 == done.exit_code
    assert done.stderr.startswith("leveret: will not compact damaged data: blocks ")
    assert before == (tmp_path / "store" / "data.mdb").read_bytes()


def test_no_data(tmp_path):
    """A directory without data is 65, a missing one 73, and no data are created."""
    done = store("check", "--data-dir", str(tmp_path))
    gone = store("check", "--data-dir", str(tmp_path / "gone"))

    assert (65, "damaged: store: there is no data") == (done.exit_code, done.stdout.splitlines()[0])
    assert 73 == gone.exit_code
    assert (
        f"leveret: cannot use data directory {tmp_path / 'gone'}: No such file or directory\n" == gone.stderr
    )
    assert not (tmp_path / "gone").exists()


def stored(running: Running, count: int) -> pika.BlockingConnection:
    """Publish so many messages that are confirmed; returns the connection, which is open."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(*running.address))
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    for _ in range(count):
        channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))
    return connection


def test_a_running_broker_is_left_alone(tmp_path):
    """While a broker uses the data each command ends with 73 and names the process; after a stop the data are clean."""
    with serving(tmp_path) as running:
        connection = stored(running, 1)
        messages = {
            store(word, "--data-dir", str(running.data_dir)).stderr for word in ("check", "stats", "compact")
        }
        connection.close()
        running.stopped_by(signal.SIGTERM)
        who = f"process {running.process.pid} on {socket.gethostname()}"
        done = store("check", "--data-dir", str(running.data_dir))

    text = f"cannot use data directory {running.data_dir}: another broker is using it, {who}"
    remedy = "stop it, or use a copy that `leveret store backup` has made"
    assert {f"leveret: {text}; {remedy}\n"} == messages
    assert (0, "clean: queues: 1, messages: 1, blocks: 1,") == (
        done.exit_code,
        done.stdout.partition(" in ")[0],
    )


@pytest.mark.parametrize("worth", [True, False])
def test_garbage_is_taken_out_at_a_start(tmp_path, monkeypatch, caplog, worth):
    """A large file with more free space than configured is compacted before it is opened, and the sizes are logged."""
    caplog.set_level("INFO", "leveret")
    monkeypatch.setattr(data_store, "WORTH_OCTETS", 1024 * 1024)
    drained(tmp_path)
    before = size_of(tmp_path)
    garbage = measure(tmp_path).fraction
    compact_if_worth_it(tmp_path, garbage - 0.01 if worth else garbage + 0.01)

    assert worth == (size_of(tmp_path) < before / 10)
    assert worth == any(f"before={before} after={size_of(tmp_path)}" in line for line in caplog.messages)


def test_small_files_are_not_worth_it(tmp_path, caplog):
    """A file below 64 MiB is not compacted, nor is any if the fraction is 1; leftovers are removed."""
    drained(tmp_path, 200)
    before = size_of(tmp_path)
    (tmp_path / "store" / LEFT_BEHIND).touch()
    compact_if_worth_it(tmp_path, 0.0)

    assert not (tmp_path / "store" / LEFT_BEHIND).exists()
    assert (before, []) == (size_of(tmp_path), caplog.messages)


def test_a_start_goes_on_without_compaction(tmp_path, monkeypatch, caplog):
    """A failed compaction is a warning, and no data at all are ignored."""
    monkeypatch.setattr(data_store, "WORTH_OCTETS", 0)
    compact_if_worth_it(tmp_path, 0.5)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "data.mdb").write_bytes(b"x" * 10_000)
    compact_if_worth_it(tmp_path, 0.5)

    assert 1 == len(caplog.messages)
    assert caplog.messages[0].startswith("storage: data file not compacted: cannot read the data in ")


def test_a_reader_that_fails_is_reported(tmp_path, monkeypatch):
    """An error of the reading program is a finding that names its place."""
    output = b'{"reading": "blocks"}\n{"find'
    done = subprocess.CompletedProcess([], 1, output, b"Traceback\nKeyError: 5\n")
    monkeypatch.setattr(subprocess, "run", lambda *_words, **_options: done)
    result = store("check", "--data-dir", str(tmp_path))

    assert (65, "damaged: blocks: the reading process ended with KeyError: 5") == (
        result.exit_code,
        result.stdout.splitlines()[0],
    )


# -- files that are not what they were -----------------------------------------------------------------------------------


def killed_with_a_log(tmp_path: Path) -> Path:
    """Return the data directory of a broker that was killed, some of whose commits are only logged."""
    with serving(tmp_path) as running:
        connection = stored(running, 3)
        running.stopped_by(signal.SIGKILL)
        with contextlib.suppress(pika.exceptions.AMQPError):
            connection.close()
    return running.data_dir


def test_a_lost_redo_log_is_refused_until_it_is_given_up(tmp_path):
    """A start and every command end with 65 and the reason; `reset-log` does without the log, whose file it keeps."""
    data = killed_with_a_log(tmp_path)
    log = data / "store" / "redo.log"
    octets = log.read_bytes()
    log.write_bytes(octets[:5000])
    why = "redo.log is cut off, it has 5000 bytes, and the last commits may be there alone: there was no clean stop"
    advice = (
        f"to start without the commits that only redo.log may have: leveret store reset-log --data-dir {data}"
    )
    with Running(tmp_path) as running:
        _, err = running.process.communicate(timeout=60)
    assert (65, True, True) == (
        running.process.returncode,
        err.startswith(f"leveret: the data in {data} is damaged: {why}. Nothing was changed. "),
        err.endswith(f"{advice}\n"),
    )
    done = store("check", "--data-dir", str(data))
    assert (65, f"damaged: meta: {why}") == (done.exit_code, done.stdout.splitlines()[0])
    done = store("compact", "--data-dir", str(data))
    assert (65, f"leveret: will not compact damaged data: meta: {why}\n") == (done.exit_code, done.stderr)
    done = store("backup", "--data-dir", str(data), str(tmp_path / "copy"))
    assert (65, f"leveret: no backup was written: {why}\n") == (done.exit_code, done.stderr)
    done = store("stats", "--data-dir", str(data))
    assert (65, f"leveret: the data in {data} are damaged, so these are not all: meta: {why}\n") == (
        done.exit_code,
        done.stderr,
    )

    done = store("reset-log", "--data-dir", str(data))
    kept = data / "store" / "redo.log.old"
    assert (0, f"the data file is used without a redo log, which is kept as {kept}\n") == (
        done.exit_code,
        done.stdout,
    )
    assert octets[:5000] == kept.read_bytes()
    with serving(tmp_path):
        pass
    assert (
        f"leveret: {kept} exists: move it away first\n" == store("reset-log", "--data-dir", str(data)).stderr
    )


def test_a_redo_log_that_a_start_would_use_is_not_given_up(tmp_path):
    """`reset-log` ends with 73, and changes nothing, if the log is whole: its commits are confirmed."""
    data = killed_with_a_log(tmp_path)
    done = store("reset-log", "--data-dir", str(data))

    assert (73, True) == (done.exit_code, "commits for the next start: nothing was changed" in done.stderr)
    with Broker(data_dir=data) as broker:
        assert 3 == len(list(broker.queue("q").messages))


@pytest.mark.parametrize("what", ["a pipe", "a link", "a link to a device"])
@pytest.mark.timeout(60)
def test_only_regular_files_are_read(tmp_path, what):
    """A pipe or a link in the place of a body is a finding: nothing waits for it, and nothing else is read."""
    example(tmp_path)
    path = next((tmp_path / "blobs").iterdir())
    path.rename(tmp_path / "elsewhere")
    if what == "a pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if what == "a link to a device" else tmp_path / "elsewhere")
    done = store("check", "--data-dir", str(tmp_path))

    assert 65 == done.exit_code
    assert f"damaged: bodies {int(path.name, 16)}: cannot read its file: " in done.stdout


@pytest.mark.parametrize("name", ["store", "blobs"])
def test_parts_of_a_data_directory_are_in_it(tmp_path, name):
    """A link in place of a directory is refused by a start, and by what reads the data."""
    data = tmp_path / "data"
    example(data)
    (data / name).rename(tmp_path / "elsewhere")
    (data / name).symlink_to(tmp_path / "elsewhere")
    why = f"{data / name} is a symbolic link, which is not followed: move what it names here, or mount a disk there"
    with Running(tmp_path) as running:
        _, err = running.process.communicate(timeout=60)

    assert (73, f"leveret: {why}\n") == (running.process.returncode, err)
    assert f"damaged: store: {why}" == store("check", "--data-dir", str(data)).stdout.splitlines()[0]


@pytest.mark.timeout(60)
def test_the_reader_ends_with_the_command(tmp_path, monkeypatch):
    """The program that reads the data does not outlive a command that was killed: nobody holds its input then."""
    waits = []

    def note(*_words, stdin, **_options):
        waits.append(not select.select([stdin], [], [], 0)[0])
        return subprocess.CompletedProcess([], 0, b"", b"")

    with monkeypatch.context() as patches:
        patches.setattr(subprocess, "run", note)
        store_command.read(tmp_path)
    assert [True] == waits
    code = (
        "import threading, time; from leveret.broker.cli.store_reader import end_with_the_command as end; "
        "threading.Thread(target=end, daemon=True).start(); print('ready', flush=True); time.sleep(1000)"
    )
    ours, theirs = os.pipe()
    reader = subprocess.Popen([sys.executable, "-c", code], stdin=ours, stdout=subprocess.PIPE)
    os.close(ours)
    try:
        assert b"ready\n" == reader.stdout.readline()
        assert reader.poll() is None
        os.close(theirs)
        assert 1 == reader.wait(30)
    finally:
        reader.kill()
        reader.communicate()
