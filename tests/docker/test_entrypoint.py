"""The image's entry point and health check, as plain processes: which flags, which variables, which answers."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pika
import pika.exceptions
import pytest
from processes.commands import execute
from processes.running import LISTENING, ROOT, free_port

from leveret.broker.config.config import Config, Listener, load

DOCKER = ROOT / "docker"
SECONDS = 30


def environment(binaries: Path, **variables: str) -> dict[str, str]:
    """An environment whose `leveret` is in ``binaries``, and that configures only what a test says."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("LEVERET_", "RABBITMQ_"))
    }
    return clean | {"PATH": f"{binaries}:{clean['PATH']}", "PYTHONPATH": str(ROOT)} | variables


def make_command(folder: Path, name: str, script: str) -> None:
    """An executable for the PATH."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def shown(tmp_path):
    """Runs the entry point with a `leveret` that prints its arguments; exit code, those, and stderr."""
    make_command(tmp_path / "bin", "leveret", 'printf "%s\\n" "$@"')

    def run(*arguments: str, **variables: str) -> tuple[int, list[str], str]:
        done = execute(
            [DOCKER / "entrypoint.sh", *arguments],
            env=environment(tmp_path / "bin", **variables),
            cwd=tmp_path,
            timeout=SECONDS,
        )
        return done.returncode, done.stdout.splitlines(), done.stderr

    return run


def serving(*flags: str, main: str = "", more: str = "") -> list[str]:
    """The arguments of the broker: the files that are named, else those of this machine, as in the image."""
    etc = Path("/etc/rabbitmq")
    files = [str(DOCKER / "image.conf")]
    files += [main] if main else [str(file) for file in [etc / "rabbitmq.conf"] if file.exists()]
    files += [more] if more else [str(folder) for folder in [etc / "conf.d"] if folder.is_dir()]
    return ["serve", *(word for file in files for word in ("--config", file)), *flags]


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        ([], []),
        (["serve"], []),
        (["rabbitmq-server"], []),
        (["serve", "--set", "heartbeat=7"], ["--set", "heartbeat=7"]),
        (["--set", "heartbeat=7"], ["--set", "heartbeat=7"]),
    ],
)
def test_it_serves_with_what_the_image_sets(shown, arguments, flags):
    """No argument, `serve`, RabbitMQ's word and flags alone all mean the broker, with the image's settings first."""
    assert (0, serving(*flags), "") == shown(*arguments)


def test_another_command_is_run_as_it_is(shown):
    """Arguments that are neither a flag nor a word for the broker are a command."""
    assert (0, ["config", "--set", "a b=c"], "") == shown("leveret", "config", "--set", "a b=c")


def test_files_are_read_in_the_order_of_their_weight(shown, tmp_path):
    """Files are read between the image's settings and flags: the file, then the directory after it."""
    named = {"RABBITMQ_CONFIG_FILE": "/a/b.conf", "RABBITMQ_CONFIG_FILES": str(tmp_path)}

    assert (0, serving("--set", "x=y", main="/a/b.conf", more=str(tmp_path)), "") == shown(
        "serve", "--set", "x=y", **named
    )


@pytest.mark.parametrize(
    ("variable", "named", "read"),
    [
        ("RABBITMQ_CONFIG_FILE", "/etc/mine", "/etc/mine.conf"),
        ("RABBITMQ_CONFIG_FILE", "/etc/mine.conf", "/etc/mine.conf"),
        ("RABBITMQ_CONFIG_FILE", "/etc", "/etc"),
        ("LEVERET_CONFIG_FILE", "/etc/mine.conf", "/etc/mine.conf"),
    ],
)
def test_a_named_file_is_read(shown, variable, named, read):
    """The ending may be left out, as RabbitMQ lets it be; a directory is taken as it is."""
    assert (0, serving(main=read), "") == shown(**{variable: named})


def test_an_empty_variable_is_none(shown):
    """A compose file that sets a variable to nothing has not asked for it."""
    assert (0, serving(), "") == shown(RABBITMQ_DEFAULT_PASS_FILE="", RABBITMQ_CONFIG_FILE="")


def image_config(**environ: str) -> Config:
    """The configuration in a container with these variables."""
    return load([DOCKER / "image.conf"], environ=environ)


def test_the_image_listens_for_other_containers():
    """A container without any variable listens everywhere, lets `guest` in from there, and uses RabbitMQ's volume."""
    config = image_config()

    assert (Listener("", 5672),) == config.listeners
    assert frozenset() == config.loopback_users
    assert Path("/var/lib/rabbitmq/leveret") == config.data_dir


def test_the_variables_of_rabbitmqs_image_count():
    """The four that testcontainers and compose files set: the port, the user, the password, the virtual host."""
    config = image_config(
        RABBITMQ_NODE_PORT="5680",
        RABBITMQ_DEFAULT_USER="ada",
        RABBITMQ_DEFAULT_PASS="secret",
        RABBITMQ_DEFAULT_VHOST="shop",
    )
    (user,) = config.users

    assert (Listener("", 5680),) == config.listeners
    assert (("shop",), "ada", "secret", {"shop": (".*", ".*", ".*")}) == (
        config.vhosts,
        user.name,
        user.password,
        user.permissions,
    )


def test_a_file_may_listen_elsewhere(tmp_path):
    """`listeners.tcp = none` takes away what the image has set."""
    (tmp_path / "mine.conf").write_text("listeners.tcp = none\nlisteners.tcp.local = 127.0.0.1:5673\n")

    assert (Listener("127.0.0.1", 5673),) == load([DOCKER / "image.conf", tmp_path / "mine.conf"]).listeners


@pytest.fixture
def container(tmp_path) -> Iterator[tuple[subprocess.Popen, int]]:
    """The broker as the image's process 1 would be, on a free port of this host; and that port."""
    make_command(tmp_path / "bin", "leveret", f'exec "{sys.executable}" -W error -m leveret "$@"')
    (tmp_path / "etc").mkdir()
    variables = {
        "RABBITMQ_CONFIG_FILE": str(tmp_path / "etc"),
        "RABBITMQ_CONFIG_FILES": str(tmp_path / "etc"),
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": "0",
        "RABBITMQ_MNESIA_BASE": str(tmp_path / "data"),
        "RABBITMQ_DEFAULT_USER": "ada",
        "RABBITMQ_DEFAULT_PASS": "secret",
        "RABBITMQ_DEFAULT_VHOST": "shop",
        "LEVERET_PROMETHEUS_ENABLED": "false",
    }
    with subprocess.Popen(
        [DOCKER / "entrypoint.sh", "serve"],
        env=environment(tmp_path / "bin", **variables),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            port = 0
            for line in process.stdout:
                if (match := LISTENING.search(line)) is not None:
                    port = int(match[2])
                if "Server startup complete" in line:
                    break
            yield process, port
        finally:
            process.kill()


def test_the_entry_point_becomes_the_broker(container):
    """The user of the variables gets in, no other does, and a stop of the container reaches the broker."""
    process, port = container
    ada = pika.PlainCredentials("ada", "secret")
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, "shop", ada)) as connection:
        connection.channel().queue_declare("q")
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, "shop"))
    process.send_signal(signal.SIGTERM)

    assert 0 == process.wait(SECONDS)


def checked(port: int | str, host: str = "127.0.0.1") -> tuple[int, str]:
    """Exit code and stderr of the health check."""
    done = execute(
        [sys.executable, DOCKER / "healthcheck.py"],
        env={"RABBITMQ_NODE_IP_ADDRESS": host, "RABBITMQ_NODE_PORT": str(port)},
        timeout=SECONDS,
    )
    return done.returncode, done.stderr


def test_a_broker_is_healthy(container):
    """The check ends with 0 and silently while the broker answers."""
    _process, port = container

    assert (0, "") == checked(port)


def test_a_port_without_a_broker_is_not_healthy():
    """A port without a listener, or that is none, ends with 1 and a reason."""
    port = free_port()

    code, message = checked(port)

    assert 1 == code
    assert message.startswith(f"no answer from 127.0.0.1:{port}: ")
    assert 1 == checked("tcp://10.0.0.1:5672")[0]


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"AMQP\x00\x00\x09\x01"])
def test_something_else_on_the_port_is_not_healthy(said):
    """A server that says something else, another version of the protocol, or nothing is not our broker."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _peer = server.accept()
            with connection:
                connection.recv(8)
                connection.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        port = server.getsockname()[1]
        code, message = checked(port)
        thread.join(SECONDS)

    assert 1 == code
    assert message.startswith(f"127.0.0.1:{port} does not speak AMQP: ")
