"""The wheel beside packages of others that have the names of our folders, and beside other plugins of pytest."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import installing
from processes.installing import ROOT

APPS = ("storage", "confirm", "analytics")
OFFLINE = re.compile(r"No matching distribution|NewConnectionError|Temporary failure in name resolution")
JAVA = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# One test per app: the apps have models, and the broker is used beside them.
DJANGO_TEST = """
import pika
from django.test import SimpleTestCase

import leveret
from {app} import models


class BrokerTest(SimpleTestCase):
    def test_orders(self):
        with leveret.Broker() as broker, pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            channel.queue_declare("orders")
            channel.confirm_delivery()
            channel.basic_publish("", "orders", b"one")
            self.assertEqual([b"one"], [message.body for message in broker.queue("orders").messages])
        self.assertIn("{app}", models.__file__)
"""
PLUGIN_TEST = """
import broker.broker
import pytest
from celery import shared_task


@pytest.fixture
def celery_config(leveret_celery_config):
    return leveret_celery_config


@shared_task
def add(a, b):
    return a + b


def test_a_task(celery_app, celery_worker):
    assert 5 == add.delay(2, 3).get(timeout=10)
    assert "leveret" not in broker.broker.__file__
"""
PAGE = ROOT / "docs" / "howto" / "set-up-the-test-plugin.md"
PROGRAM = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
FIXTURE = re.compile(r"^(\w+)(?: \[.*\])? -- (\S+):\d+$", re.MULTILINE)
"""A line of `pytest --fixtures`."""


class Place:
    """A virtual environment with the wheel, the package `broker` of another project, plugins, and a Django project."""

    def __init__(self, folder: Path) -> None:
        self.project = folder / "shop"
        self.binaries = folder / "env" / "bin"

    def run(self, *command: str | Path, seconds: float = 100, cwd: Path | None = None) -> str:
        """Return the output of a command in the project, which must succeed."""
        return installing.run(*command, cwd=cwd or self.project, seconds=seconds)

    def python(self, *arguments: str | Path, seconds: float = 100) -> str:
        """Return the output of a Python program in the project."""
        return self.run(self.binaries / "python", *arguments, seconds=seconds)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The environment and the project; dependencies that tests have are theirs, the others come from the index."""
    folder = tmp_path_factory.mktemp("beside")
    place = Place(folder)
    installing.installed(installing.built("wheel", folder), folder / "env")
    pip = (sys.executable, "-m", "pip", "--python", place.binaries / "python", "install", *installing.PIP)
    try:
        place.run(*pip, "--require-hashes", "-r", ROOT / "requirements" / "beside.txt", cwd=folder)
    except AssertionError as error:
        if OFFLINE.search(str(error)):
            pytest.skip("the package index cannot be reached")
        raise
    django = (place.binaries / "python", "-m", "django")
    place.run(*django, "startproject", "shop", cwd=folder)
    for app in APPS:
        place.run(*django, "startapp", app)
        (place.project / app / "tests.py").write_text(DJANGO_TEST.format(app=app))
    settings = place.project / "shop" / "settings.py"
    settings.write_text(f"{settings.read_text()}\nINSTALLED_APPS += {list(APPS)}\n")
    (place.project / "plugin_checks.py").write_text(PLUGIN_TEST)
    return place


def test_django_apps_with_these_names_keep_them(place):
    """The tests of three apps, called as our folders are, pass with a broker in their process."""
    assert "Ran 3 tests" in place.python("manage.py", "test")
    assert "no issues" in place.python("manage.py", "check")


def test_the_command_runs_in_the_project(place):
    """The command and the server run in the folder of the project, as command and as module."""
    version = place.run(place.binaries / "leveret", "--version")

    assert version == place.python("-m", "leveret", "--version")
    assert "ok" in place.python(
        "-c", "import broker.broker, storage, leveret.storage, leveret.broker; print('ok')"
    )
    export = place.project / "export"
    with subprocess.Popen(
        [
            place.binaries / "leveret", "serve", "--data-dir", "data",
            *(
                word
                for setting in ("listeners.tcp.1=127.0.0.1:0", "prometheus.enabled=false", f"export.dir={export}")
                for word in ("--set", setting)
            ),
        ],
        stdout=subprocess.PIPE, text=True, cwd=place.project, env=installing.environment(),
    ) as server:  # fmt: skip
        try:
            assert any("Server startup complete" in line for line in server.stdout)
            server.send_signal(signal.SIGTERM)
            assert 0 == server.wait(30)
        finally:
            server.kill()

    assert place.run(place.binaries / "leveret", "store", "check", "--data-dir", "data")
    place.run(
        place.binaries / "leveret", "analyze", "validate", "--input", export, "--output", "report", "--quiet",
        "--conf", JAVA, "--conf", "spark.sql.shuffle.partitions=2", seconds=200,
    )  # fmt: skip
    assert list((place.project / "report").rglob("*.html"))


def test_the_plugin_runs_beside_others(place):
    """The plugin is found by its entry point beside those for Celery and RabbitMQ, and defines none of their names."""
    tests = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "plugin_checks.py")
    listed = FIXTURE.findall(place.python(*tests, "--fixtures"))
    ours = {name for name, file in listed if file.endswith("leveret/pytest_plugin.py")}
    theirs = {name: file for name, file in listed if name not in ours}

    assert {"leveret", "leveret_url", "leveret_broker", "leveret_celery_config"} <= ours
    assert all(name.startswith("leveret") for name in ours)
    assert "pytest_rabbitmq" in theirs["rabbitmq"]
    assert "pytest_celery" in theirs["celery_setup"]
    assert "1 passed" in place.python(*tests, "-p", "no:celery", "-p", "celery.contrib.pytest")


def test_fixtures_of_other_plugins_are_replaced_as_the_page_says(place):
    """The programs of the page that define a fixture of another plugin pass beside that plugin, without a container."""
    programs = [
        program
        for program in PROGRAM.findall(PAGE.read_text(encoding="utf-8"))
        if "def rabbitmq(" in program or "def celery_setup(" in program
    ]
    assert 2 == len(programs)
    for number, program in enumerate(programs):
        (place.project / f"replaced_{number}.py").write_text(program)
    files = [f"replaced_{number}.py" for number in range(2)]

    assert "2 passed" in place.python("-m", "pytest", "-q", "-p", "no:cacheprovider", *files)
