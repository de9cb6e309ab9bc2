"""Each program and command of a page is run by a test, or has a reason why not; here run those of pages without a test."""

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs.test_programs import PAGES, blocks
from processes.running import ROOT, Running, channel_to, environment, free_port, serving, write_command

DOCS = ROOT / "docs"
HOWTO = DOCS / "howto"
SECONDS = 120
RUNNABLE = {"", "sh", "shell", "console", "python", "py", "js", "java", "go"}

TESTS = {
    "README.md": "docs/test_programs.py docs/test_blocks.py",
    "administration.md": "docs/test_blocks.py",
    "authentication-backends.md": "docs/test_authentication_page.py",
    "back-up-and-restore.md": "docs/test_backup_page.py",
    "cause-failures.md": "docs/test_embedded_pages.py",
    "celery.md": "docs/test_celery_page.py",
    "choose-a-confirm-mode.md": "docs/test_programs.py docs/test_blocks.py",
    "client-problems.md": "docs/test_troubleshooting_page.py",
    "coming-from.md": "docs/test_blocks.py",
    "connect-clients.md": "docs/test_clients_page.py",
    "dead-letters-and-retries.md": "docs/test_dead_letters_page.py",
    "dead-letters-and-ttl.md": "docs/test_programs.py",
    "embed-the-broker.md": "docs/test_embedded_pages.py",
    "exactly-once.md": "docs/test_exactly_once_page.py",
    "export.md": "test_export_reader.py",
    "ldap.md": "docs/test_ldap_page.py",
    "limits-and-audit.md": "docs/test_limits_page.py",
    "look-at-messages.md": "docs/test_look_page.py",
    "management.md": "docs/test_blocks.py",
    "measure.md": "docs/test_blocks.py",
    "migrate-from-rabbitmq.md": "docs/test_migration_page.py docs/test_blocks.py",
    "rehearse-an-upgrade.md": "docs/test_testing_page.py",
    "replay.md": "docs/test_replay_page.py",
    "schedule-messages.md": "docs/test_schedule_page.py",
    "set-the-clock.md": "docs/test_embedded_pages.py",
    "set-up-the-test-plugin.md": "docs/test_testing_page.py test_beside.py",
    "shovels.md": "docs/test_shovel_page.py",
    "six-logs.md": "docs/test_replicate_page.py docker/test_kubernetes.py",
    "spark-streaming.md": "docs/test_spark_page.py",
    "spread-messages.md": "docs/test_spread_page.py",
    "start-problems.md": "docs/test_troubleshooting_page.py docs/test_blocks.py",
    "streams.md": "docs/test_blocks.py",
    "take-each-message-once.md": "docs/test_once_page.py",
    "test-an-application.md": "docs/test_testing_page.py",
    "test-failures.md": "docs/test_testing_page.py",
    "tls.md": "docs/test_tls_page.py",
    "troubleshooting.md": "docs/test_troubleshooting_page.py",
    "try-replication.md": "docs/test_replicate_page.py",
    "tutorial.md": "docs/test_programs.py",
    "users-and-permissions.md": "docs/test_ctl_pages.py",
}
"""Pages, each with the tests that run its blocks."""

INSTALLS = "installs packages from an index; tests/test_packaging.py installs the wheel"
MAKES = "takes minutes or hours; tests/test_make.py compares the names, and tests/bench has short forms"
FOREIGN = "needs a program or a service that no test has"
LEFT = {
    "README.md": {
        "make run ": "tests/test_running.py runs the command of the target, tests/test_make.py compares the names",
    },
    "analyse-with-spark.md": {
        "leveret serve": "tests/broker/export has a broker with these settings",
        "pip install": INSTALLS + "; tests/analytics runs the jobs",
        "leveret analyze": "tests/analytics/test_command.py runs the jobs; a report takes a minute",
        "docker compose": FOREIGN + "; tests/docker compares the files",
    },
    "analysis.md": {
        "pip install": INSTALLS + "; tests/analytics runs the jobs",
        "leveret analyze": "tests/analytics/test_command.py and test_serving.py run the jobs",
        "python -m zipfile": "tests/analytics/test_cluster.py has a cluster for its jobs",
    },
    "celery.md": {"pip install": INSTALLS},
    "clients.md": {"pytest --leveret-port": "suites of projects that are in no package"},
    "coverage.md": {"make coverage": MAKES},
    "look-at-messages.md": {"$ curl -N": "never ends; tests/broker/vhost/test_tail.py reads tails"},
    "performance.md": {"make ": MAKES, ".venv/bin/python -m bench.": MAKES},
    "paper-report.md": {"make ": MAKES},
    "replicate.md": {
        "kubectl": FOREIGN + "; tests/docker compares the objects",
    },
    "run-as-a-service.md": {
        "useradd": FOREIGN + "; tests/test_systemd.py checks the unit",
        "make deb": "`make campaign NAME=debian` installs the package",
        "docker": FOREIGN + "; tests/docker checks the files",
    },
    "set-up-the-test-plugin.md": {"pytest --leveret-env": "tests/test_pytest_plugin.py has the options"},
    "spark-streaming.md": {"pip install": INSTALLS},
    "test-an-application.md": {"pip install": INSTALLS},
    "tutorial.md": {"python3 -m venv": INSTALLS},
    "use-the-web-page.md": {"ssh": FOREIGN},
    "watch-in-a-terminal.md": {
        "pip install": INSTALLS,
        "leveret top ": "needs a terminal; tests/broker/cli/top runs it in one",
    },
    "watch-with-grafana.md": {
        "export RABBITMQ": FOREIGN + "; tests/docker checks the files",
        "leveret perf": "asks the broker of the compose file",
    },
    "tls.md": {
        "import ssl": "a part of a program; tests/clients/test_tls.py connects Celery so",
        "ConnectionFactory": "a part of a program; `make bench NAME=tls_clients` connects Java so",
    },
}
"""Blocks that no test runs, by their beginning, each with the reason."""


def test_each_block_is_run_or_says_why():
    """A page with a program or a command is in one of the tables, and its tests name it; no row is left over."""
    found = {
        (page.name, text.lstrip())
        for page in PAGES
        for language, text in blocks(page)
        if language in RUNNABLE and "adr" not in page.parts
    }
    left = {(page, text) for page, text in found if any(text.startswith(each) for each in LEFT.get(page, ()))}

    assert [] == sorted((page, text) for page, text in found - left if page not in TESTS)
    assert [] == sorted(
        (page, beginning)
        for page, beginnings in LEFT.items()
        for beginning in beginnings
        if not any(name == page and text.startswith(beginning) for name, text in left)
    )
    assert [] == sorted(
        (page, test)
        for page, tests in TESTS.items()
        for test in tests.split()
        if page.removesuffix(".md") not in (ROOT / "tests" / test).read_text(encoding="utf-8")
    )
    assert TESTS.keys() <= {page for page, _ in found}


class Shop:
    """A broker with the ports and the directory of a page, and a queue `orders` with a message.

    Args:
        folder: where commands run.
        words: further ones for `leveret serve`.

    """

    def __init__(self, folder: Path, *words: str, stack: contextlib.ExitStack) -> None:
        self._folder = folder
        ports = {name: str(free_port()) for name in ("15672", "15692")}
        settings = {
            "management.enabled": "true",
            "management.tcp.port": ports["15672"],
            "prometheus.enabled": "true",
            "prometheus.tcp.port": ports["15692"],
        }
        self.running: Running = stack.enter_context(serving(folder, *words, settings=settings))
        ports["5672"] = str(self.running.address[1])
        self._shown = {**ports, "/var/lib/leveret": str(self.running.data_dir)}
        binaries = write_command(folder / "bin")
        self._environ = environment() | {"LEVERET_DATA_DIR": str(self.running.data_dir)}
        self._environ["PATH"] = f"{binaries}:{Path(sys.executable).parent}:{self._environ['PATH']}"
        with channel_to(self.running.address) as channel:
            channel.confirm_delivery()
            channel.queue_declare("orders", durable=True)
            channel.basic_publish("", "orders", b"one")

    def run(self, text: str, *, python: bool = False) -> str:
        """Return what a block prints; it ends well."""
        for shown, here in self._shown.items():
            text = re.sub(rf"(?<!\d){shown}\b", here, text)
        words = [sys.executable, "-c", text] if python else ["sh", "-ec", text]
        done = subprocess.run(
            words,
            cwd=self._folder,
            env=self._environ,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert 0 == done.returncode, (text, done.stdout, done.stderr)
        return done.stdout


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with contextlib.ExitStack() as stack:
        yield Shop(tmp_path, stack=stack)


def shells(page: Path) -> list[str]:
    return [text for language, text in blocks(page) if language in {"", "sh", "shell"}]


def test_the_commands_of_the_readme_run(tmp_path):
    """A broker starts with the words of the README, and each command after them but `leveret top` answers."""
    _, text = shells(ROOT / "README.md")
    serve, *commands = [line.partition("  ")[0].rstrip() for line in text.splitlines()]
    (tmp_path / "rabbitmq.conf").write_text("heartbeat = 60\n")
    words = serve.replace("/var/log/leveret.log", str(tmp_path / "leveret.log")).split()
    assert ["leveret", "serve", "--data-dir", "/var/lib/leveret"] == [*words[:2], *words[4:6]]
    with contextlib.ExitStack() as stack:
        shop = Shop(tmp_path, *words[2:4], stack=stack)
        printed = {line: shop.run(shortened(line)) for line in commands if line != "leveret top"}

    assert len(printed) == len(commands) - 1
    assert "heartbeat" in printed["leveret config --config rabbitmq.conf"]
    assert "one" in printed["leveret peek orders"]
    assert "rabbitmq_queue_messages" in printed["curl 127.0.0.1:15692/metrics"]


def shortened(text: str) -> str:
    """Have `leveret perf` end after a second."""
    return re.sub(r"^leveret perf.*", r"\g<0> --seconds 1", text, flags=re.MULTILINE)


def test_measurements_end_with_a_result(shop):
    """Each load of the page is made, and the last one is printed as JSON."""
    printed = [shop.run(shortened(text)) for text in shells(HOWTO / "measure.md")]

    assert all(printed)
    assert 2000 == json.loads(printed[-1])["load"]["rate"]


def test_definitions_go_to_a_file_and_back(shop):
    """The file of the running broker changes nothing when it is imported again."""
    printed = [shop.run(text) for text in shells(DOCS / "administration.md")]

    assert all("Dry run: nothing would change." in each for each in printed)


def test_a_broker_is_left_by_the_commands_of_the_page(shop, tmp_path):
    """Definitions are checked and imported, from a file and from the API of the old broker."""
    files, profile, api, tasks = shells(HOWTO / "coming-from.md")
    shop.run("leveret definitions export definitions.json --data-dir /var/lib/leveret")
    (tmp_path / "rabbitmq.conf").write_text("heartbeat = 60\n")
    shop.run(files)
    (tmp_path / "definitions.json").unlink()
    shop.run(api.replace("OLD", "127.0.0.1"))
    starts(tmp_path / "b", profile)
    starts(tmp_path / "c", tasks.partition("\n")[2])

    assert "orders" in (tmp_path / "definitions.json").read_text()


def starts(folder: Path, text: str) -> None:
    """Start a broker with the words that a page gives `leveret serve`."""
    folder.mkdir()
    (words,) = re.findall(r"^leveret serve (.*)$", text, re.MULTILINE)
    with serving(folder, *words.replace("--data-dir ./var", "").split()):
        pass


def test_a_migration_is_checked(shop, tmp_path):
    """The files of RabbitMQ on the page are read together, and what can be imported is."""
    check, _, skip, *_ = shells(HOWTO / "migrate-from-rabbitmq.md")
    shop.run("leveret definitions export definitions.json --data-dir /var/lib/leveret")
    (tmp_path / "rabbitmq.conf").write_text("heartbeat = 60\n")
    (tmp_path / "advanced.config").write_text("[].\n")
    (tmp_path / "enabled_plugins").write_text("[rabbitmq_management].\n")

    assert shop.run(check.replace("rabbitmqctl export_definitions definitions.json", ""))
    shop.run(skip)
    assert (tmp_path / "new" / "definitions.json").exists()


def test_a_shovel_is_removed_while_shovels_are_off(tmp_path):
    """The definition of a shovel is kept, listed and cleared by a broker that runs none."""
    (text,) = shells(HOWTO / "start-problems.md")
    serve, *commands = text.splitlines()
    value = '{"src-uri": "amqp://", "src-queue": "orders", "dest-uri": "amqp://b", "dest-queue": "orders"}'
    with contextlib.ExitStack() as stack:
        shop = Shop(tmp_path, *serve.split()[2:], stack=stack)
        shop.run(f"leveret ctl set_parameter shovel orders-to-b '{value}'")
        printed = shop.run("\n".join(commands))

    assert "orders-to-b" in printed


def test_the_socket_and_the_port_of_the_api_answer(shop):
    """Curl reads users from the socket, and definitions from the port and back."""
    socket, port = shells(DOCS / "management.md")

    assert '"guest"' in shop.run(socket.replace("var/ctl.sock", "/var/lib/leveret/ctl.sock"))
    shop.run(port)


def test_a_policy_chooses_the_confirm_mode(shop):
    """The policy of the page is accepted."""
    (text,) = shells(HOWTO / "choose-a-confirm-mode.md")
    shop.run(text)

    assert "consumer-ack" in shop.run("leveret ctl list_policies")


def test_a_stream_is_read_from_an_offset(shop):
    """The program of the page prints what follows it."""
    (program,) = [text for language, text in blocks(HOWTO / "streams.md") if language == "python"]
    (expected,) = [text for language, text in blocks(HOWTO / "streams.md") if language == "text"]

    assert expected == shop.run(program, python=True)
