"""Compose files with three nodes fit together, and their scripts make a primary and a standby with Debian's PostgreSQL."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from processes.commands import execute
from processes.postgresql_server import as_whom, needed_programs
from processes.running import free_port
from processes.short_paths import servers_folder
from samples.compose_files import DOCKER, services, sources

from leveret import __version__
from leveret.broker.config.config import load

ONE, SIX = "compose-replicated.yaml", "compose-logs.yaml"
COMPOSE = yaml.safe_load((DOCKER / ONE).read_text(encoding="utf-8"))
SERVICES, SERVICES_OF_LOGS = services(ONE), services(SIX)
NODES, SERVERS = ("n1", "n2", "n3"), ("s0", "s1", "s2")
PASSWORD = "secret"
SECONDS = 60


def test_there_are_three_of_each():
    """And nothing else; each server has a volume of its own, a node has none."""
    assert sorted((*NODES, *SERVERS)) == sorted(SERVICES)
    assert sorted(SERVERS) == sorted(COMPOSE["volumes"])
    for name in SERVERS:
        assert f"{name}:/var/lib/postgresql/data" in SERVICES[name]["volumes"]
    assert all("volumes" not in SERVICES[name] for name in NODES)


@pytest.mark.parametrize("name", NODES)
def test_a_node_takes_its_configuration(name):
    """Its name is that of its container, its address the port of the host, and the database has all servers."""
    service = SERVICES[name]
    config = load([DOCKER / "image.conf"], environ=service["environment"])

    assert f"leveret:{__version__}" == service["image"]
    assert name == service["hostname"]
    assert [f"{config.replication.advertised_address}:5672"] == service["ports"]
    assert f"@{','.join(SERVERS)}/" in config.replication.engine_url
    assert set(SERVERS) == set(service["depends_on"])


@pytest.mark.parametrize("name", SERVERS)
def test_what_is_mounted_is_there(name):
    """Each script that is mounted exists, and can be executed."""
    assert sources(SERVICES[name])
    assert all(os.access(source, os.X_OK) for source in sources(SERVICES[name]))


def test_six_logs_have_the_same_servers():
    """The servers of the database are those of one log, with volumes of their own."""
    text = (DOCKER / SIX).read_text(encoding="utf-8")

    assert {name: SERVICES[name] for name in SERVERS} == {name: SERVICES_OF_LOGS[name] for name in SERVERS}
    assert yaml.safe_load(text)["volumes"] == COMPOSE["volumes"]


@pytest.mark.parametrize("node", NODES)
def test_a_node_has_a_broker_for_each_of_six_logs(node):
    """And one that forwards clients, which come to it by the port of the host; each has the node's name and its own address."""
    config = load([DOCKER / "image.conf"], environ=SERVICES_OF_LOGS[node]["environment"])
    found = {name: each for name, each in SERVICES_OF_LOGS.items() if name.startswith(f"{node}-")}

    assert SERVICES[node]["ports"] == SERVICES_OF_LOGS[node]["ports"]
    assert config.placement.directory == SERVICES[node]["environment"]["LEVERET_REPLICATION_URL"]
    assert 6 == len(found)
    for name, service in found.items():
        log = name.removeprefix(f"{node}-")
        one = load([DOCKER / "image.conf"], environ=service["environment"])
        assert (log, node) == (one.replication.log, one.replication.node_name)
        assert f"{name}:5672" == one.replication.advertised_address
        assert (log,) == one.vhosts
        assert config.placement.directory == one.replication.engine_url
        assert "ports" not in service
        assert {key: service[key] for key in ("image", "healthcheck", "cap_drop", "depends_on")} == {
            key: SERVICES[node][key] for key in ("image", "healthcheck", "cap_drop", "depends_on")
        }


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path that belongs to those who run the servers."""
    home = servers_folder("leveret-d-")
    if not os.geteuid():
        shutil.chown(home, "postgres", "postgres")
    yield home
    shutil.rmtree(home, ignore_errors=True)


@pytest.mark.timeout(200)
def test_the_scripts_make_a_standby_that_commits_wait_for(folder):
    """The first server answers a commit once the second one has it."""
    programs = needed_programs()
    ports = {name: str(free_port()) for name in ("s0", "s1")}
    environ = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PGPASSWORD": PASSWORD,
        "PRIMARY": "127.0.0.1",
        "PRIMARY_PORT": ports["s0"],
    }
    (folder / "password").write_text(PASSWORD, encoding="ascii")
    (folder / "password").chmod(0o644)
    for script in (DOCKER / "replicated").glob("*.sh"):
        shutil.copy(script, folder)

    def run(*words: object, data: str) -> str:
        done = execute(
            words, env={**environ, "PGDATA": str(folder / data)}, cwd=folder, timeout=SECONDS, **as_whom()
        )
        assert 0 == done.returncode, done.stderr
        return done.stdout.strip()

    def start(*words: object, data: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [*map(str, words), "-p", ports[data], "-k", folder],
            env={**environ, "PGDATA": str(folder / data)}, cwd=folder, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, **as_whom(),
        )  # fmt: skip

    def ask(statement: str) -> str:
        where = ("-h", "127.0.0.1", "-p", ports["s0"], "-U", "leveret", "-d", "postgres")
        return run("psql", *where, "-Atc", statement, data="s0")

    run("initdb", "-U", "leveret", "-A", "scram-sha-256", "--pwfile", folder / "password", "-N", data="s0")
    run("./primary.sh", data="s0")
    servers = [start("postgres", data="s0")]
    try:
        servers.append(start("./standby.sh", "s1", data="s1"))
        deadline = time.monotonic() + SECONDS
        ready = ["pg_isready", "-h", "127.0.0.1", "-p", ports["s1"], "-t", "1"]
        while subprocess.run(
            ready, env=environ, capture_output=True, check=False, timeout=SECONDS
        ).returncode:
            assert time.monotonic() < deadline, "the standby does not start"
            time.sleep(0.05)
        ask("create table t (x int)")
        assert "s1|quorum" == ask("select application_name, sync_state from pg_stat_replication")
        assert (folder / "s1" / "postgresql.conf").read_text().count("ANY 1 (s0, s1, s2)") == 1
    finally:
        for server in servers:
            server.kill()
            server.wait(SECONDS)
