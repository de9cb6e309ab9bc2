"""Starts the brokers the rows run against: ours, or a real RabbitMQ, each with the users and limits a set-up names."""

import base64
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from conformance.peers import OF_MACHINE, Peer
from conformance.policies import operator_parameters, policies
from conformance.wire import Client, ClosedError, QuietError
from processes.commands import execute
from processes.fronts import as_placed
from processes.running import free_port

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 90.0
STOP_SECONDS = 20.0
ANY = ".*"


@dataclass(frozen=True, slots=True)
class User:
    """A user every set-up has; the password is the name."""

    name: str
    tags: tuple[str, ...] = ()
    permissions: tuple[tuple[str, str, str, str], ...] = ()  # vhost, configure, write, read
    max_connections: int | None = None
    max_channels: int | None = None


def _everywhere(*vhosts: str) -> tuple[tuple[str, str, str, str], ...]:
    return tuple((vhost, ANY, ANY, ANY) for vhost in vhosts)


VHOSTS = {"/": {}, "conns": {"max-connections": 1}, "queues": {"max-queues": 1}, "other": {}}
USERS = (
    User("guest", ("administrator",), _everywhere("/")),
    User("root", (), _everywhere(*VHOSTS)),
    User("limited", (), (("/", "^own", "^own", "^own"),)),
    User("reader", (), (("/", "^own", "^$", ANY),)),
    User("writer", (), (("/", "^own", ANY, "^$"),)),
    User("nobody"),
    User("conncap", (), _everywhere("/"), max_connections=1),
    User("chancap", (), _everywhere("/"), max_channels=1),
    User("topical", (), _everywhere("/")),
    User("impersonator", ("impersonator",), _everywhere("/")),
)

TOPIC_PERMISSIONS = (  # user, vhost, exchange, write, read
    ("topical", "/", "amq.topic", "^own[.]", "^(own|{username})[.]"),
    ("topical", "/", "x-107e", "^of {username} in {vhost}$", "^by {username} in {vhost}$"),
    ("topical", "/", "x-107f", "^of {username} in {vhost}$", "^$"),
)


@dataclass(frozen=True, slots=True)
class SetUp:
    """Settings of one broker process: keys of rabbitmq.conf for ours, an Erlang term list for RabbitMQ 3.10.

    RabbitMQ may have plugins besides, their names with commas between them, and lines of rabbitmq.conf for these.
    """

    name: str
    ours: tuple[str, ...] = ()
    rabbitmq: str = ""
    logged: str = "Server startup complete"
    plugins: str = ""
    lines: tuple[str, ...] = ()


SET_UPS = {
    setup.name: setup
    for setup in (
        SetUp("main", ("auth.failure_delay=200ms",)),
        SetUp(
            "tight",
            (
                "handshake_timeout=500ms",
                "connection_max=2",
                "channel_max_per_node=3",
                "consumer_max_per_channel=2",
                "max_message_size=1000",
                "heartbeat=1",
                "consumer_timeout=1000",
                "compatibility.consumer_timeout=closes-channel",
            ),
            "{handshake_timeout,1000},{connection_max,2},{channel_max_per_node,3},{consumer_max_per_channel,2},{max_message_size,1000},"
            "{heartbeat,1},{consumer_timeout,1000},{channel_tick_interval,500}",
        ),
        SetUp(
            "alarmed",
            ("vm_memory_high_watermark.absolute=1MiB",),
            "{vm_memory_high_watermark,{absolute,1000000}}",
            "memory alarm",
        ),
        SetUp(
            "full",
            ("disk_free_limit.absolute=1000TB",),
            "{disk_free_limit,1000000000000000}",
            "disk alarm",
        ),
        SetUp(
            "strained",
            ("vm_memory_high_watermark.absolute=1MiB", "disk_free_limit.absolute=1000TB"),
            "{vm_memory_high_watermark,{absolute,1000000}},{disk_free_limit,1000000000000000}",
            "disk alarm",
        ),
        SetUp(
            "switched",
            (
                "compatibility.frame_min=8192",
                "compatibility.hash_max_weight=10000",
                "compatibility.topic_max_hash=2",
                "compatibility.transient_nonexcl_queues=denied",
                "compatibility.global_qos=ignored",
                "compatibility.header_numbers=exact",
                "compatibility.claimed_deaths=replaced",
                "compatibility.delivery_count=failures",
                "compatibility.consumer_timeout=4.3",
                "compatibility.queue_arguments=4.3",
                "compatibility.quorum_delivery_limit=20",
                "compatibility.quorum_priorities=strict",
                "compatibility.passive_declare=open",
                "auth.failure_delay=200ms",
            ),
        ),
        SetUp(
            "types",
            plugins="rabbitmq_consistent_hash_exchange,rabbitmq_random_exchange,rabbitmq_recent_history_exchange,"
            "rabbitmq_sharding",
        ),
        SetUp(
            "intercepted",
            (
                "message_interceptors.incoming.set_header_timestamp.overwrite=true",
                "message_interceptors.incoming.set_header_routing_node.overwrite=false",
            ),
            # by the names of each release
            "{incoming_message_interceptors,[{set_header_timestamp,true},{set_header_routing_node,false}]},"
            "{message_interceptors,[{rabbit_msg_interceptor_timestamp,#{incoming=>true,overwrite=>true}},"
            "{rabbit_msg_interceptor_routing_node,#{overwrite=>false}}]}",
        ),
        SetUp("ending"),
        SetUp("policed"),
        SetUp("short"),
    )
}


DIVISIBLE = frozenset(
    {"main", "management", "switched", "types", "intercepted", "ending", "alarmed", "full", "strained"}
)
"""Set-ups that a broker of several processes can have: others need one count of all, or the broker's own program."""


class StartError(Exception):
    """A broker did not come up."""


@dataclass(slots=True)
class Broker:
    """A running broker process."""

    kind: str
    setup: SetUp
    address: tuple[str, int]
    process: subprocess.Popen[bytes]
    home: Path
    environment: dict[str, str] = field(default_factory=dict)
    last_log: str = ""
    peer: Peer = OF_MACHINE

    @property
    def good_exits(self) -> set[int]:
        """Exit codes of an orderly end after SIGTERM; the Erlang VM's start script reports the signal."""
        return {0} if self.kind == "ours" else {0, 143, -signal.SIGTERM}

    def client(self, timeout: float = 5.0) -> Client:
        """A fresh socket to it."""
        return Client(self.address, timeout)

    def terminate(self) -> None:
        """Send SIGTERM, as an administrator would, without waiting."""
        os.killpg(self.process.pid, signal.SIGTERM)

    def exit_code(self) -> int:
        """Wait for the end of the process; its exit code."""
        return self.process.wait(STOP_SECONDS)

    def log(self) -> str:
        """Return the output of the process."""
        return (self.home / "output.log").read_text(errors="replace")

    def short_of(self, *resources: str) -> None:
        """Make memory or disk, or both, short from now on, and nothing else; set-up "short" only.

        RabbitMQ knows when this returns; ours within a fraction of a second.
        """
        if self.kind == "ours":
            for name in ("memory", "disk"):
                path = self.home / name
                path.touch() if name in resources else path.unlink(missing_ok=True)
            return
        watermark = "{absolute, 1}" if "memory" in resources else "0.9"
        limit = '"1000000GB"' if "disk" in resources else '"1MB"'
        self.control(  # both at once: each call takes seconds
            "eval",
            f"vm_memory_monitor:set_vm_memory_high_watermark({watermark}), rabbit_disk_monitor:set_disk_free_limit({limit}).",
        )

    def control(self, *words: str) -> str:
        """Run rabbitmqctl against a RabbitMQ node; what it printed."""
        done = execute(
            self.peer.command(
                "rabbitmqctl", "--quiet", "--node", self.environment["RABBITMQ_NODENAME"], *words
            ),
            env=self.environment,
        )
        if done.returncode:
            message = f"rabbitmqctl {words[0]}: {done.stdout}{done.stderr}"
            raise StartError(message)
        return done.stdout

    def stop(self) -> None:
        """End the process and remove its data."""
        try:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGTERM)
                self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(STOP_SECONDS)
        self.last_log = self.log()
        if "ERL_EPMD_PORT" in self.environment:  # where nodes find each other; outlives them
            execute(self.peer.inside("epmd", "-kill"), env=self.environment, timeout=STOP_SECONDS)
        shutil.rmtree(self.home, ignore_errors=True)


# Linux: a child that gets SIGTERM when its parent dies, so that a killed test run leaves no broker behind.
_DIE_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execv(sys.argv[1], sys.argv[1:])"
)


def _spawn(command: list[str], home: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    if sys.platform == "linux":
        command = [sys.executable, "-c", _DIE_WITH_PARENT, *command]
    with (home / "output.log").open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=ROOT,
            start_new_session=True,
        )


def _followed(setup: SetUp, profile: str) -> list[str]:
    """Return the settings of a profile. Transient queues, which most cases have, are permitted but in one set-up."""
    if profile == "3.13":
        return []
    permitted = ["compatibility.transient_nonexcl_queues=permitted"] if setup.name != "switched" else []
    return [f"compatibility.profile={profile}", *permitted]


def our_settings(setup: SetUp, profile: str = "3.13") -> list[str]:
    """The ``--set`` values of our broker for a set-up."""
    settings = ["listeners.tcp.1=127.0.0.1:0", *_followed(setup, profile)]
    settings += [each for each in setup.ours if profile == "3.13" or not each.startswith("compatibility.")]
    for number, (name, limits) in enumerate(VHOSTS.items()):
        settings += [f"default_vhosts.{number}.name={name}"] if number else []
        settings += [f"limits.vhost.{name}.{key.replace('-', '_')}={value}" for key, value in limits.items()]
    for user in USERS:
        if user.name != "guest":  # the first user is there without being asked for
            prefix = f"default_users.{user.name}"
            vhosts = "|".join(re.escape(vhost) for vhost, *_ in user.permissions) or "none of them"
            settings += [f"{prefix}.password={user.name}", f"{prefix}.vhost_pattern=^({vhosts})$"]
            settings += [f"{prefix}.tags={','.join(user.tags)}"] if user.tags else []
            for _, *rights in user.permissions[:1]:
                settings += [
                    f"{prefix}.{verb}={right}"
                    for verb, right in zip(("configure", "write", "read"), rights, strict=True)
                ]
        for limit, value in (("max_connections", user.max_connections), ("max_channels", user.max_channels)):
            settings += [f"limits.user.{user.name}.{limit}={value}"] if value is not None else []
    for number, row in enumerate(TOPIC_PERMISSIONS):
        fields = zip(("user", "vhost", "exchange", "write", "read"), row, strict=True)
        settings += [f"default_topic_permissions.{number}.{field}={value}" for field, value in fields]
    return settings


def start_ours(setup: SetUp, profile: str = "3.13") -> Broker:
    """Start this project's broker on an ephemeral port and wait until clients may connect."""
    home = Path(tempfile.mkdtemp(prefix="conformance-ours-"))
    program = ["-m", "leveret"]
    if setup.name == "short":
        program = [str(Path(__file__).with_name("short_of.py")), str(home)]
    words = [*program, "serve", "--data-dir", str(home / "data")]
    settings = our_settings(setup, profile)
    if setup.name == "policed":  # policies come in no other way, and with them everything does
        (home / "definitions.json").write_text(json.dumps(_definitions(setup)))
        settings = ["listeners.tcp.1=127.0.0.1:0", *_followed(setup, profile)]
        settings += [f"load_definitions={home}/definitions.json"]
    for value in settings:
        words += ["--set", value]
    command = [sys.executable, *as_placed(words, is_divisible=setup.name in DIVISIBLE)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)}
    process = _spawn(command, home, environment)
    broker = Broker("ours", setup, ("127.0.0.1", 0), process, home)
    deadline = time.monotonic() + START_SECONDS
    while "Server startup complete" not in broker.log() or setup.logged not in broker.log():
        if process.poll() is not None or time.monotonic() > deadline:
            output = broker.log()
            broker.stop()
            message = f"our broker did not start:\n{output}"
            raise StartError(message)
        time.sleep(0.02)
    found = re.search(r"started TCP listener on (?:\S*?)127\.0\.0\.1:(\d+)", broker.log())
    assert found, broker.log()
    broker.address = ("127.0.0.1", int(found[1]))
    return broker


def _definitions(setup: SetUp, peer: Peer = OF_MACHINE) -> dict[str, object]:
    """Return the definitions that are there before anybody connects, in RabbitMQ's form; 4 has no mirrors."""
    policed = setup.name == "policed"
    users = []
    for user in USERS:
        salt = b"salt"
        digest = base64.b64encode(salt + hashlib.sha256(salt + user.name.encode()).digest()).decode()
        limits = {"max-connections": user.max_connections, "max-channels": user.max_channels}
        users.append(
            {
                "name": user.name,
                "password_hash": digest,
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": list(user.tags),
                "limits": {key: value for key, value in limits.items() if value is not None},
            }
        )
    permissions = [
        {"user": user.name, "vhost": vhost, "configure": configure, "write": write, "read": read}
        for user in USERS
        for vhost, configure, write, read in user.permissions
    ]
    return {
        "users": users,
        "vhosts": [{"name": name} for name in VHOSTS],
        "permissions": permissions,
        "topic_permissions": [
            {"user": user, "vhost": vhost, "exchange": exchange, "write": write, "read": read}
            for user, vhost, exchange, write, read in TOPIC_PERMISSIONS
        ],
        "parameters": [
            {"vhost": name, "component": "vhost-limits", "name": "limits", "value": limits}
            for name, limits in VHOSTS.items()
            if limits
        ]
        + (operator_parameters() if policed else []),
        "policies": [
            each
            for each in (policies(operator=False) if policed else [])
            if peer is OF_MACHINE or "ha-mode" not in each["definition"]
        ],
        "queues": [],
        "exchanges": [  # 4.3 knows no topic permissions for what does not exist; those of the cases are the same
            {
                "vhost": vhost,
                "name": name,
                "type": "topic",
                "durable": False,
                "auto_delete": True,
                "arguments": {},
            }
            for _, vhost, name, *_ in TOPIC_PERMISSIONS
            if not name.startswith("amq.")
        ],
        "bindings": [],
    }


def rabbitmq_server() -> str | None:
    """The RabbitMQ server script of this machine, past the wrapper that changes users; None without one."""
    return OF_MACHINE.server


def start_rabbitmq(setup: SetUp, peer: Peer = OF_MACHINE) -> Broker:
    """Start a RabbitMQ node of our own (name, ports, data) and wait until clients may log in."""
    if peer.missing:
        raise StartError(peer.missing)
    home = Path(tempfile.mkdtemp(prefix="conformance-rabbitmq-"))
    port = free_port()
    plugins = filter(None, (setup.plugins, *peer.plugins))
    (home / "plugins").write_text(f"[{','.join(plugins)}].\n")
    (home / "definitions.json").write_text(json.dumps(_definitions(setup, peer)))
    (home / "rabbitmq.conf").write_text(
        "\n".join(
            [
                f"listeners.tcp.1 = 127.0.0.1:{port}",
                f"load_definitions = {home}/definitions.json",
                *setup.lines,
                *_deprecated(setup, peer),
                "",
            ]
        )
    )
    (home / "advanced.config").write_text(f"[{{rabbit,[{setup.rabbitmq}]}}].\n")
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("RABBITMQ_")},
        "HOME": str(home),
        "ERL_CRASH_DUMP": str(home / "erl_crash.dump"),  # not in the working directory
        "RABBITMQ_NODENAME": f"conformance{port}@localhost",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "ERL_EPMD_PORT": str(free_port()),
        "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
        "RABBITMQ_LOG_BASE": str(home / "log"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
        "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(home / "advanced.config"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none",
    }
    process = _spawn(peer.command("rabbitmq-server"), home, environment)
    broker = Broker("rabbitmq", setup, ("127.0.0.1", port), process, home, environment, peer=peer)
    deadline = time.monotonic() + START_SECONDS
    while "completed with" not in broker.log() or not _answers(broker):
        if broker.process.poll() is not None or time.monotonic() > deadline:
            output = broker.log()
            broker.stop()
            message = f"RabbitMQ did not start:\n{output}"
            raise StartError(message)
        time.sleep(0.2)
    return broker


def _deprecated(setup: SetUp, peer: Peer) -> tuple[str, ...]:
    """Permit transient queues, which most cases have, where 4.3 would refuse them; Debian's refuses them only if asked to."""
    permitted = str(setup.name != "switched").lower()
    return (
        () if peer is OF_MACHINE else (f"deprecated_features.permit.transient_nonexcl_queues = {permitted}",)
    )


def _answers(broker: Broker) -> bool:
    try:
        broker.client().login().close_socket()
    except (OSError, ClosedError, QuietError):
        return False
    return True
