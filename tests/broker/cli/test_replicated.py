"""Nodes of a replicated log as operators see them: commands, the management API and probes, with real processes."""

import base64
import json
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="the package psycopg is not installed")
import pika
from processes.commands import execute
from processes.postgresql_server import SECONDS
from processes.running import command, environment, free_port
from processes.waiting import wait_until
from replicated.cluster import NAMES, Nodes
from replicated.database import database_in_folder
from replicated.numbered import Publisher
from samples.certificates import Authority, client_context

from leveret.broker.cli import replicated
from leveret.broker.config.config import RELEASED_AT, Config, load
from leveret.broker.config.sections import ReplicationConfig
from leveret.broker.replication.engine import FREE
from leveret.broker.replication.node_driver import boot_time
from leveret.broker.replication.settings import Settings

LOGIN = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}


class Managed(Nodes):
    """Brokers with one log, and with the management API."""

    def __init__(self, home: Path, url: str, names: Sequence[str] = NAMES, log: str = "") -> None:
        super().__init__(home, dict.fromkeys(names, url), settings={"replication.log": log} if log else {})
        self.apis = {name: free_port() for name in self.ports}
        self.secure_apis = {name: free_port() for name in self.ports}
        self.authority = Authority(home)
        self.authority.server()

    def start(self, name: str) -> None:
        settings = {
            "data_dir": str(self.home / name),
            "replication.url": self.urls[name],
            "replication.node_name": name,
            "replication.advertised_address": f"127.0.0.1:{self.ports[name]}",
            "management.tcp.port": str(self.apis[name]),
            "management.ssl.port": str(self.secure_apis[name]),
            "management.ssl.certfile": str(self.home / "server.pem"),
            "management.ssl.keyfile": str(self.home / "server.key"),
            "ssl_options.reload_interval": "1",
            "prometheus.tcp.port": str(self.probes[name]),
            "log.console": "false",
            "log.file": str(self.home / f"{name}.log"),
            **self._settings,
        }
        words = [each for key, value in settings.items() for each in ("--set", f"{key}={value}")]
        self._processes[name] = subprocess.Popen(
            [sys.executable, "-m", "leveret", "serve", "--port", str(self.ports[name]), *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def ctl(self, name: str, *words: str) -> tuple[int, str]:
        """Run a command of `leveret ctl` at a node; returns its exit code and output."""
        done = execute(
            [*command(), "ctl", "--data-dir", str(self.home / name), *words],
            env=environment(),
            timeout=SECONDS,
        )
        return done.returncode, done.stdout + done.stderr

    def hand_over(self, leader: str, *to: str) -> str:
        """Have the leader hand over, as soon as the other node has caught up; returns what the command printed."""
        printed = [""]

        def is_done() -> bool:
            code, printed[0] = self.ctl(leader, "cluster_transfer", *to)
            assert code == 0 or "caught up" in printed[0], printed[0]
            return code == 0

        wait_until(is_done)
        return printed[0]

    def api(self, name: str, path: str) -> tuple[int, Any]:
        """Return status and body of an answer of the management API."""
        status, text = got(self.apis[name], f"/api/{path}")
        return status, json.loads(text)

    def ready(self, name: str) -> None:
        """Wait until a node has the whole log."""
        wait_until(lambda: got(self.probes[name], "/readyz?role=member")[0] == 200)


def got(port: int, path: str) -> tuple[int, str]:
    """Return status and text of an answer; 0 if nobody listens."""
    connection = HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        connection.request("GET", path, headers=LOGIN)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except OSError:
        return 0, ""
    finally:
        connection.close()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Managed]:
    """Three nodes, one of which leads, and a queue."""
    with ExitStack() as ending:
        home, database = ending.enter_context(database_in_folder("leveret-c-"))
        made = Managed(home, database.url)
        ending.callback(made.stop)
        for name in made.ports:
            made.start(name)
        _, connection = made.connect()
        connection.channel().queue_declare("orders", durable=True)
        connection.close()
        for name in made.ports:
            made.ready(name)
        yield made


@pytest.mark.timeout(300)
def test_all_nodes_answer_about_the_cluster(nodes: Managed) -> None:
    """By the API, by the command, and in their metrics."""
    leader = nodes.leader()
    for name in nodes.ports:
        wait_until(lambda name=name: nodes.api(name, "leveret/cluster")[1].get("leader") is not None)
        status, state = nodes.api(name, "leveret/cluster")
        assert (200, leader, []) == (status, state["leader"]["name"], state["problems"])
        assert f"127.0.0.1:{nodes.ports[leader]}" == state["leader"]["address"]
        code, text = nodes.ctl(name, "cluster_status")
        assert code == 0, text
        assert f"Leader: {leader} at 127.0.0.1:{nodes.ports[leader]}" in text
        code, text = nodes.ctl(name, "await_online_nodes", "3")
        assert code == 0, text
        metrics = got(nodes.probes[name], "/metrics")[1]
        assert f"leveret_replication_role {int(name == leader)}\n" in metrics
        for figure in ("epoch", "lag_batches", "lag_seconds", "append_seconds"):
            assert f"\nleveret_replication_{figure} " in metrics


@pytest.mark.timeout(300)
def test_clusters_share_a_database(nodes: Managed) -> None:
    """Another log in the same database has its own leader, queues, and name in state, metrics and log."""
    home = nodes.home / "other"
    home.mkdir()
    other = Managed(home, nodes.urls["n1"], ("n1", "n2"), "other")
    try:
        for name in other.ports:
            other.start(name)
        leader, connection = other.connect()
        connection.channel().queue_declare("invoices", durable=True)
        connection.close()
        (waiting,) = set(other.ports) - {leader}
        other.ready(waiting)

        assert nodes.leader()
        assert {"invoices"} == {each["name"] for each in other.api(leader, "queues")[1]}
        assert {"orders"} == {each["name"] for each in nodes.api(nodes.leader(), "queues")[1]}
        for name in other.ports:
            assert "other" == other.api(name, "leveret/cluster")[1]["log"]
            assert "Log: other, " in other.ctl(name, "cluster_status")[1]
            assert 'leveret_replication_info{log="other"} 1' in got(other.probes[name], "/metrics")[1]
        assert "waits to lead log 'other'" in other.log(waiting)
        assert {"n1", "n2"} == {each["name"] for each in other.api(leader, "leveret/cluster")[1]["members"]}
        assert 'leveret_replication_info{log=""} 1' in got(nodes.probes[nodes.leader()], "/metrics")[1]
    finally:
        other.stop()


def test_waiting_nodes_show_definitions_and_nothing_else(nodes: Managed) -> None:
    """Those of their copy, to those who may log in; whoever asks for more is told where the leader is."""
    leader, (name, _) = nodes.leader(), nodes.waiting()
    wait_until(lambda: "orders" in json.dumps(nodes.api(name, "definitions")[1]))

    assert nodes.api(leader, "definitions")[1] == nodes.api(name, "definitions")[1]
    where = f"this node waits; {leader} leads, at 127.0.0.1:{nodes.ports[leader]}"
    assert (503, where) == (nodes.api(name, "queues")[0], nodes.api(name, "queues")[1]["reason"])
    assert 503 == got(nodes.apis[name], "/")[0]
    assert 503 == nodes.api(name, "health/checks/is-in-service")[0]
    assert 200 == nodes.api(name, "health/checks/replication")[0]
    assert (503, 200) == tuple(got(nodes.probes[name], path)[0] for path in ("/readyz", "/healthz"))
    assert 200 == got(nodes.probes[leader], "/readyz")[0]
    connection = HTTPConnection("127.0.0.1", nodes.apis[name], timeout=SECONDS)
    connection.request("GET", "/api/definitions")
    assert 401 == connection.getresponse().status
    connection.close()


def test_nodes_hand_over_and_are_forgotten_on_command(nodes: Managed) -> None:
    """To the one that is named, within a second for clients, without a loss; what cannot be done says why."""
    leader, (wanted, other) = nodes.leader(), nodes.waiting()
    assert (69, "leads, at") == (nodes.ctl(wanted, "cluster_transfer")[0], "leads, at")
    assert "there is no member 'x'" in nodes.ctl(leader, "cluster_transfer", "x")[1]
    assert "stop it first" in nodes.ctl(leader, "forget_cluster_node", other)[1]
    assert "not shorter" in nodes.ctl(leader, "cluster_accept_log")[1]

    publisher = Publisher(nodes)
    try:
        publisher.goes_on()
        assert f"{wanted} leads" in nodes.hand_over(leader, wanted)
        publisher.goes_on()
    finally:
        publisher.end()
    assert publisher.error is None
    assert wanted == nodes.leader()
    assert [] == publisher.judge()
    assert publisher.longest_gap < 5.0, "the lease has expired"

    nodes.ready(leader)
    nodes.kill(other)
    wait_until(lambda: nodes.ctl(wanted, "forget_cluster_node", other)[0] == 0)
    members = nodes.api(wanted, "leveret/cluster")[1]["members"]
    assert sorted((leader, wanted)) == [each["name"] for each in members]


def test_a_node_goes_on_waiting_after_it_has_handed_over(nodes: Managed) -> None:
    """In the same process, which answers again."""
    leader = nodes.leader()
    process = nodes._processes[leader].pid
    nodes.hand_over(leader)
    nodes.ready(leader)

    assert process == nodes._processes[leader].pid
    assert nodes._processes[leader].poll() is None
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", nodes.ports[leader]))


async def test_a_node_that_has_handed_over_leaves_the_lease_to_others(tmp_path: Path, monkeypatch) -> None:
    """For a while, also as a new image of its program, which has begun again before another one has seen it."""
    config = Config(data_dir=tmp_path, replication=ReplicationConfig(engine_url="postgresql:///none"))
    monkeypatch.setenv(RELEASED_AT, str(boot_time()))
    assert not load(environ={RELEASED_AT: "1.0"}).warnings
    (again, _, _), later = await replicated._make_driver(config), boot_time()
    try:
        candidate = again.node.candidate
        candidate.watch(FREE._replace(epoch=1), later)
        assert not candidate.is_due(later + Settings().expiry - 1.0)
        assert candidate.is_due(later + Settings().expiry)
        assert RELEASED_AT not in os.environ
    finally:
        await again.stop()
        again.close()


def test_waiting_nodes_answer_by_https(nodes: Managed) -> None:
    """With a certificate that was exchanged while they wait, too; what they answer is the same."""
    name = nodes.waiting()[0]
    nodes.ready(name)
    status, serial = secured(nodes, name, "/api/leveret/cluster")
    assert 200 == status
    assert 503 == secured(nodes, name, "/api/queues")[0]

    nodes.authority.server()
    wait_until(lambda: secured(nodes, name, "/api/leveret/cluster")[1] != serial)
    assert 200 == secured(nodes, name, "/api/definitions")[0]


def secured(nodes: Managed, name: str, path: str) -> tuple[int, bytes]:
    """Return the status of an answer over HTTPS, and the certificate that was shown."""
    connection = HTTPSConnection(
        "127.0.0.1", nodes.secure_apis[name], timeout=SECONDS, context=client_context(nodes.authority)
    )
    try:
        connection.connect()
        assert isinstance(connection.sock, ssl.SSLSocket)
        shown = connection.sock.getpeercert(binary_form=True)
        assert shown is not None
        connection.request("GET", path, headers=LOGIN)
        return connection.getresponse().status, shown
    finally:
        connection.close()


def test_a_node_that_cannot_lead_tells_why_in_its_log(nodes: Managed) -> None:
    """And what to do; it ends, and another one leads at once."""
    leader, name = nodes.leader(), nodes.waiting()[0]
    nodes.ready(name)
    with socket.create_server(("127.0.0.1", nodes.ports[name])):
        nodes.hand_over(leader, name)
        wait_until(lambda: nodes._processes[name].poll() is not None)
    assert 69 == nodes._processes[name].returncode
    last = nodes.log(name).splitlines()[-1]
    assert f"node '{name}' ends" in last
    assert f"127.0.0.1:{nodes.ports[name]}" in last
    assert "Start it again when that is mended" in last
    assert name != nodes.leader()
