"""The pytest plugin: its fixtures, options and reports, and that it costs nothing where it is not used."""

import os
import re
import socket
import sys
from importlib.metadata import entry_points

import pytest
from processes.running import free_port

from leveret import pytest_plugin

pytest_plugins = ("pytester",)

PLUGIN = ()
if not any(point.name == "leveret" for point in entry_points(group="pytest11")):
    PLUGIN = ("-p", "leveret.pytest_plugin")  # of a checkout that is not installed
QUIET = ("-p", "no:cacheprovider", "-W", "error", "-o", "asyncio_default_fixture_loop_scope=function")
SECONDS = 180
"""Seconds for a run of pytest, which starts several processes."""
PUBLISH = """
import pika
import pytest

def published(url, *bodies, queue="orders"):
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(queue, durable=True)
        for body in bodies:
            channel.basic_publish("", queue, body)
"""


@pytest.fixture
def run(pytester):
    """Run a file of tests in a process of its own."""

    def run(source, *arguments):
        pytester.makepyfile(PUBLISH + source)
        return pytester.runpytest_subprocess(*PLUGIN, *QUIET, *arguments, timeout=SECONDS)

    return run


def test_each_test_has_a_vhost_of_its_own(run):
    """Two tests that use the same names see nothing of each other, and what the first left is gone."""
    run(
        """
seen = []

@pytest.mark.parametrize("body", [b"one", b"two"])
def test_orders(leveret, leveret_url, leveret_session_broker, body):
    assert leveret.url == leveret_url
    assert leveret.vhost in leveret_url
    published(leveret_url, body)
    assert [body] == [message.body for message in leveret.queue("orders").messages]
    seen.append(leveret.vhost)
    definitions = leveret_session_broker.definitions
    assert ["/", leveret.vhost] == sorted(row["name"] for row in definitions["vhosts"])
    assert ["guest", leveret.user] == sorted(row["name"] for row in definitions["users"])

def test_names():
    assert len(set(seen)) == 2
    assert all(vhost.startswith("test_orders") for vhost in seen)
"""
    ).assert_outcomes(passed=3)


def test_the_broker_is_loaded_as_it_was_compiled(pytester, run):
    """Pytest compiles no module of the broker again, as it does with those of other packages that have a plugin."""
    pytester.makepyfile(
        marks_packages="""
def pytest_addoption(pluginmanager):
    pluginmanager.rewrite_hook.mark_rewrite("leveret")
"""
    )
    run(
        """
import sys

def test_loaders(leveret):
    assert {"SourceFileLoader"} == {
        type(module.__spec__.loader).__name__
        for name, module in sys.modules.items()
        if name.startswith("leveret.broker.")
    }
""",
        *("-p", "marks_packages", "-W", "ignore::pytest.PytestAssertRewriteWarning"),
    ).assert_outcomes(passed=1)


def test_clients_that_a_test_has_left_are_disconnected(run):
    """Connections that a test leaves open are closed with its vhost, and nothing waits for them."""
    run(
        """
import time
left = []

def test_leaves(leveret):
    left.append(pika.BlockingConnection(pika.URLParameters(leveret.url)))

def test_next(leveret_session_broker):
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="is deleted"):
        left[0].process_data_events(5)
    assert [] == leveret_session_broker.connections
"""
    ).assert_outcomes(passed=2)


def test_a_test_begins_as_if_it_were_alone(run):
    """Record, clock and faults are reset after each test, and a broker that a test has stopped is started again."""
    run(
        """
def test_first(leveret):
    published(leveret.url, b"one")
    leveret.assert_published("", "one", times=1)
    leveret.clock.freeze()
    leveret.faults.nack_next(5)
    leveret.faults.refuse_logins()
    leveret.faults.block("memory")

def test_second(leveret, leveret_session_broker):
    assert [] == leveret.published("")
    assert not leveret.clock.is_frozen
    published(leveret.url, b"not nacked")
    leveret_session_broker.stop()

def test_third(leveret):
    published(leveret.url, b"two")
    leveret.assert_published("", times=1)
    leveret.wait_until_idle()
    leveret.assert_no_unroutable()
"""
    ).assert_outcomes(passed=3)


def test_workers_of_xdist_have_brokers_of_their_own(run):
    """Tests run in parallel: each worker has a broker, and a vhost per test."""
    run(
        """
@pytest.mark.parametrize("number", range(20))
def test_orders(leveret, number):
    published(leveret.url, b"one")
    assert 1 == leveret.queue("orders").depth
""",
        "-n", "2",
    ).assert_outcomes(passed=20)  # fmt: skip


def test_a_test_can_have_a_broker_of_its_own(run):
    """`leveret_broker` is another broker than the shared one, and may be stopped."""
    run(
        """
def test_own(leveret_broker, leveret_session_broker):
    assert leveret_broker.port != leveret_session_broker.port
    published(leveret_broker.url, b"one")
    assert 1 == leveret_broker.queue("orders").depth
    leveret_broker.stop()
"""
    ).assert_outcomes(passed=1)


def test_a_failure_shows_the_vhost(run):
    """The report of a failed test has queues, depths, the last messages, and the errors of channels."""
    result = run(
        """
def test_orders(leveret):
    published(leveret.url, *(b"%d" % number for number in range(7)))
    with pika.BlockingConnection(pika.URLParameters(leveret.url)) as connection:
        connection.channel().queue_declare("missing", passive=True)

def test_good(leveret):
    published(leveret.url, b"fine")
"""
    )

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.re_match_lines_random(
        [
            r"-+ leveret -+",
            r"  orders: 7 ready, 0 unacked, 0 consumers",
            r"    \.\.\. 2 more",
            r"    ready: '' -> 'orders' b'6'",
            r"  error on connection .*, channel 1: NOT_FOUND - no queue 'missing' in vhost 'test_orders-1'",
        ]
    )
    result.stdout.no_fnmatch_line("*fine*")


def test_options_configure_the_broker(run, pytester):
    """Keys come from the ini file and from the command line, which wins; the level of the log is an option, too."""
    pytester.makeini(
        "[pytest]\nleveret_config =\n  confirm.mode = consumer-ack\n  heartbeat = 7\nleveret_log = info\n"
    )
    source = """
import logging

def test_options(leveret, leveret_broker):
    assert logging.getLogger("leveret").isEnabledFor(logging.%s)
    published(leveret.url)
    assert "consumer-ack" == leveret.queue("orders").details["confirm_mode"]
    published(leveret_broker.url)
    with pika.BlockingConnection(pika.URLParameters(leveret.url)) as connection:
        assert %d == connection._impl.params.heartbeat
"""
    run(source % ("INFO", 7)).assert_outcomes(passed=1)
    run(source % ("DEBUG", 9), "--leveret-config", "heartbeat=9", "--leveret-log=debug").assert_outcomes(
        passed=1
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--leveret-config=heartbeat"], "*'heartbeat' is not KEY=VALUE"),
        (["--leveret-config=heartbeet=1"], "*heartbeet; did you mean heartbeat?"),
        (["--leveret-config=heartbeet=1", "--leveret-port=0"], "*heartbeet; did you mean heartbeat?"),
        (["--leveret-env=URL"], "*'URL' is not KEY=VALUE"),
        (["--leveret-env=URL={uri}"], "*leveret_env: '{uri}' is not text with {url}, {host}, {port}"),
        (["--leveret-env=URL={"], "*leveret_env: '{' is not text with {url}, {host}, {port}"),
    ],
)
def test_a_wrong_option_is_named(run, arguments, told):
    """A setting without value, an unknown key and an unknown field are named before a test is loaded."""
    result = run("raise AssertionError('loaded')\n", *arguments)

    assert pytest.ExitCode.USAGE_ERROR == result.ret
    result.stderr.fnmatch_lines([f"ERROR: {told}"])


PROFILES = """
def version(url):
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        return connection._impl.server_properties["version"]

def test_all(leveret_url, leveret_broker, leveret_session_broker):
    assert {RELEASE} == {version(each) for each in (leveret_url, leveret_broker.url, leveret_session_broker.url)}

@pytest.mark.leveret(profile="4.3")
@pytest.mark.parametrize("queue", ["a", "b"])
def test_4(leveret_url, leveret_broker, queue):
    assert {"4.3.6"} == {version(each) for each in (leveret_url, leveret_broker.url)}
    with pika.BlockingConnection(pika.URLParameters(leveret_url)) as connection:
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="transient_nonexcl_queues"):
            connection.channel().queue_declare(queue)

@pytest.mark.leveret(profile="3.13")
def test_3(leveret_url, leveret_broker):
    assert {"3.13.7"} == {version(each) for each in (leveret_url, leveret_broker.url)}
"""


@pytest.mark.parametrize(
    ("arguments", "release"),
    [((), "3.13.7"), (("--leveret-profile", "4.3"), "4.3.6"), (("-c", "set.ini"), "4.3.6")],
)
def test_a_broker_follows_the_profile_that_is_wanted(run, pytester, arguments, release):
    """`--leveret-profile` and its ini key choose the RabbitMQ for all tests, a marker for one of them."""
    pytester.makefile(".ini", set="[pytest]\nleveret_profile = 4.3\n")
    run(f"RELEASE = {release!r}\n" + PROFILES, "--strict-markers", *arguments).assert_outcomes(passed=4)


@pytest.mark.parametrize(
    "marker", ["leveret", "leveret('4.3')", "leveret(release='4.3')", "leveret(profile='5')"]
)
def test_a_wrong_marker_is_told(run, marker):
    """A marker of another form, or of an unknown profile, is an error that says what it has to be."""
    result = run(f"@pytest.mark.{marker}\ndef test_wrong(leveret):\n    pass\n")
    result.assert_outcomes(errors=1)
    told = "must be one of 3.13, 4.3" if "5" in marker else 'the marker is leveret(profile="4.3")'
    result.stdout.fnmatch_lines([f"*{told.replace('[', '[[]')}*"])


def test_a_taken_port_is_told(run):
    """A port that something else listens on is an error before a test is loaded."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = run("raise AssertionError('loaded')\n", f"--leveret-port={taken.getsockname()[1]}")

    assert pytest.ExitCode.USAGE_ERROR == result.ret
    result.stderr.fnmatch_lines(["ERROR: leveret: *address already in use*"])


def test_tests_that_know_no_fixture_get_a_broker(run, pytester):
    """With variables of the environment the broker runs before a `conftest.py` is loaded, and it is the shared one."""
    pytester.makeini("[pytest]\nleveret_env =\n  AMQP_URL = {url}\n  AMQP_HOST = none\n")
    pytester.makeconftest(
        """
import os
URL, ADDRESS = os.environ["AMQP_URL"], os.environ["AMQP_HOST"]

def pytest_unconfigure():
    assert os.environ["AMQP_URL"] == URL
"""
    )
    result = run(
        """
from conftest import ADDRESS, URL

def test_url():
    published(URL, b"one")

def test_shared(leveret_session_broker, leveret):
    assert URL == leveret_session_broker.url
    assert f"at 127.0.0.1:{leveret_session_broker.port}" == ADDRESS
    assert 1 == leveret_session_broker.queue("orders").depth
    assert [] == leveret.queues()
""",
        "--leveret-env", "AMQP_HOST=at {host}:{port}",
    )  # fmt: skip

    result.assert_outcomes(passed=2)


def test_workers_of_xdist_have_variables_of_their_own(run):
    """Each worker of pytest-xdist has its broker in its environment."""
    run(
        """
import os

@pytest.mark.parametrize("number", range(20))
def test_orders(leveret_session_broker, number):
    assert os.environ["AMQP_URL"] == leveret_session_broker.url
    published(os.environ["AMQP_URL"], b"one")
""",
        "-n", "2", "--leveret-env", "AMQP_URL={url}",
    ).assert_outcomes(passed=20)  # fmt: skip


def test_a_broker_at_a_certain_port(run):
    """`--leveret-port` starts the broker there, for tests with a fixed address."""
    port = free_port()
    run(
        f"""
published("amqp://127.0.0.1:{port}", b"one")

def test_port(leveret_session_broker):
    assert {port} == leveret_session_broker.port
""",
        f"--leveret-port={port}",
    ).assert_outcomes(passed=1)


def test_fixtures_have_the_name_of_the_product():
    """Every fixture of the plugin begins with `leveret`, so that it hides none of another plugin."""
    names = {
        name
        for name, value in vars(pytest_plugin).items()
        if type(value).__name__ == "FixtureFunctionDefinition"
    }

    assert {
        "leveret", "leveret_broker", "leveret_celery_config", "leveret_session_broker", "leveret_url",
    } == names  # fmt: skip


def loaded(text):
    """Return the modules of ours in an output of `-X importtime`, with cumulative microseconds."""
    found = re.findall(r"\|\s+(\d+) \|\s+(leveret[\w.]*)$", text, re.MULTILINE)
    return {name: int(cumulative) for cumulative, name in found}


def test_a_run_without_the_fixtures_loads_nothing(pytester):
    """Tests without one of the fixtures and options load nothing of the broker, and the plugin itself costs less than 30 ms."""
    pytester.makepyfile("def test_nothing():\n    pass\n")
    timed = (sys.executable, "-X", "importtime")
    whole = pytester.run(*timed, "-m", "pytest", *PLUGIN, *QUIET[:2], "-s", timeout=SECONDS)
    alone = pytester.run(*timed, "-c", "import pytest, leveret.pytest_plugin", timeout=SECONDS)
    cost = loaded(alone.stderr.str())

    whole.assert_outcomes(passed=1)
    assert set() == loaded(whole.stderr.str()).keys() - {"leveret", "leveret.pytest_plugin"}
    assert {"leveret", "leveret.pytest_plugin"} == cost.keys()
    assert sum(cost.values()) < 30_000
    print(f"import of the plugin: {sum(cost.values()) / 1000:.1f} ms")


CELERY = """
import pytest
from celery import shared_task

@pytest.fixture
def celery_config(leveret_celery_config):
    return leveret_celery_config

@shared_task
def add(a, b):
    return a + b

def test_add(celery_app, celery_worker):
    assert 5 == add.delay(2, 3).get(timeout=60)
"""


def test_a_celery_task_in_a_thread(pytester):
    """A file of ten lines tests a task with Celery's own worker and its own `celery_config`."""
    pytester.makepyfile(CELERY)
    result = pytester.runpytest_subprocess(
        *PLUGIN, *QUIET[:2], "-p", "celery.contrib.pytest", "-p", "no:asyncio", timeout=60
    )

    result.assert_outcomes(passed=1)


def test_five_hundred_vhosts(run):
    """A vhost per test costs milliseconds: 500 tests that connect and declare use less than ten seconds of processor."""
    before = os.times()
    result = run(
        """
@pytest.mark.parametrize("number", range(500))
def test_orders(leveret, number):
    published(leveret.url, b"one")
"""
    )
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system

    result.assert_outcomes(passed=500)
    print(f"500 tests with a vhost, a connection and a message each: {used:.2f} s of processor time")
    assert used < 10
