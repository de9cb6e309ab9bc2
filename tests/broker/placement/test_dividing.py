"""Imports of whole definitions, and backups, of all processes of virtual hosts."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from processes.commands import execute
from processes.fronts import connect, ctl, front, pid_of
from processes.running import Running, command, environment
from processes.waiting import wait_until

DEFINITIONS: dict[str, Any] = {
    "vhosts": [{"name": "c"}, {"name": "d", "limits": {"max-queues": 9}}],
    "users": [{"name": "u", "password": "secret", "tags": ["management"]}],
    "permissions": [
        {"user": each, "vhost": vhost, "configure": ".*", "write": ".*", "read": ".*"}
        for each in ("u", "1")
        for vhost in ("c", "d")
    ],
    "policies": [{"vhost": "d", "name": "p", "pattern": "^q", "definition": {"max-length": 5}}],
    "queues": [{"vhost": vhost, "name": "q", "durable": True} for vhost in ("a", "b", "c", "d")],
    "exchanges": [{"vhost": vhost, "name": "x", "type": "topic", "durable": True} for vhost in ("b", "d")],
    "bindings": [
        {
            "vhost": vhost,
            "source": "x",
            "destination": "q",
            "destination_type": "queue",
            "routing_key": "#",
            "arguments": {},
        }
        for vhost in ("b", "d")
    ],
}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """Run a front, whose virtual hosts a and b are in two processes."""
    (tmp_path / "broker").mkdir()
    with front(tmp_path / "broker") as running:
        yield running


def imported(running: Running, folder: Path, definitions: object, *options: str) -> tuple[int, str]:
    file = folder / "definitions.json"
    file.write_text(json.dumps(definitions))
    return ctl(running, "import_definitions", str(file), *options)


def exported(running: Running) -> dict[str, Any]:
    code, text = ctl(running, "-q", "export_definitions", "-")
    assert 0 == code, text
    found: dict[str, Any] = json.loads(text)
    return found


def counts(definitions: dict[str, Any]) -> dict[str, int]:
    return {
        name: len(definitions[name]) for name in ("vhosts", "queues", "exchanges", "bindings", "policies")
    }


def test_an_import_is_divided(running: Running, tmp_path: Path) -> None:
    """Definitions of new and old virtual hosts reach their processes, work at once, and are exported as they came."""
    code, text = imported(running, tmp_path, DEFINITIONS)
    assert 0 == code, text
    found = exported(running)
    assert {"vhosts": 4, "queues": 4, "exchanges": 2, "bindings": 2, "policies": 1} == counts(found)
    for vhost in ("b", "d"):
        with connect(running, vhost) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_publish("x", "any", b"message", mandatory=True)
    assert [{"max-queues": 9}] == [each["limits"] for each in found["vhosts"] if each["name"] == "d"]
    assert (0, found) == (imported(running, tmp_path, found)[0], exported(running))


def test_a_refused_import_changes_nothing(running: Running, tmp_path: Path) -> None:
    """An entry that one process refuses is named by its position in the file, and no process imports anything."""
    before = exported(running)
    bad = {"vhost": "d", "name": "bad", "durable": True, "arguments": {"x-max-length": "text"}}
    lost = {"vhost": "nowhere", "name": "lost", "durable": True}
    wanted = DEFINITIONS | {"queues": [*DEFINITIONS["queues"], lost, bad]}

    code, text = imported(running, tmp_path, wanted)

    assert code, text
    assert "queues[4] (name 'lost', vhost 'nowhere'): Virtual host 'nowhere' does not exist" in text
    assert "queues[5] (name 'bad', vhost 'd')" in text
    assert before == exported(running)
    pid = pid_of(running, 2)
    os.kill(pid, signal.SIGSTOP)
    try:
        code, text = imported(running, tmp_path, DEFINITIONS)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert code, text
    assert "process 2 of virtual hosts does not answer" in text
    wait_until(lambda: before == exported(running))


def backed_up(data_dir: Path, dest: Path) -> tuple[int, str]:
    words = [*command("store", "backup", "--data-dir", str(data_dir)), str(dest)]
    done = execute(words, env=environment(), timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_a_backup_has_the_data_of_all_processes(running: Running, tmp_path: Path) -> None:
    """A broker on a backup, made while it ran or after it, has the messages of all virtual hosts."""
    assert 0 == imported(running, tmp_path, DEFINITIONS)[0]
    with connect(running, "d") as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"message", pika.BasicProperties(delivery_mode=2))
    assert (0, "") == (backed_up(running.data_dir, tmp_path / "warm")[0], "")
    pid = pid_of(running, 2)
    os.kill(pid, signal.SIGSTOP)
    try:
        code, text = backed_up(running.data_dir, tmp_path / "none")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert code, text
    assert "process 2 of virtual hosts does not answer" in text
    assert not list(tmp_path.glob("none*"))
    assert 0 == running.stopped_by(signal.SIGTERM)[0]
    assert 0 == backed_up(running.data_dir, tmp_path / "cold")[0]
    for name in ("warm", "cold"):
        folder = tmp_path / f"of-{name}"
        folder.mkdir()
        shutil.move(tmp_path / name, folder / running.data_dir.name)
        with front(folder) as again:
            assert {"queues": 4, "vhosts": 4} == {
                key: value for key, value in counts(exported(again)).items() if key in {"queues", "vhosts"}
            }
            with connect(again, "d") as connection:
                assert b"message" == connection.channel().basic_get("q")[2]
