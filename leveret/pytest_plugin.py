"""The pytest plugin: brokers and virtual hosts as fixtures. It loads the broker when a fixture is first used.

Fixtures:
    leveret: a virtual host of its own in a broker that all tests of a process share, with the API of `leveret.Broker`.
    leveret_url: the URL of that virtual host.
    leveret_broker: a broker of its own.
    leveret_celery_config: settings of a Celery application that uses the virtual host.
    leveret_session_broker: the broker that tests share.
"""

import logging
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from leveret import Broker
    from leveret.broker.embedded.own_vhost import OwnVHost

LEVELS = ("debug", "info", "warning", "error", "critical")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options and ini keys."""
    group = parser.getgroup("leveret", "Leveret, an AMQP broker in the process of the tests")
    group.addoption(
        "--leveret-config",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a key of the broker's configuration, as in its file; may be repeated",
    )
    group.addoption("--leveret-log", choices=LEVELS, help="level of the broker's log (default: warning)")
    parser.addini(
        "leveret_config", "keys of the broker's configuration, one KEY=VALUE a line", "linelist", []
    )
    parser.addini("leveret_log", f"level of the broker's log: {', '.join(LEVELS)}", "string", "")


def settings(config: pytest.Config) -> dict[str, str]:
    """Return the keys of the broker's configuration: those of the ini file, changed by those of the command line.

    Raises:
        pytest.UsageError: a setting has no `=`.

    """
    found: dict[str, str] = {}
    for setting in (*config.getini("leveret_config"), *config.getoption("leveret_config")):
        key, equals, value = setting.partition("=")
        if not equals:
            raise pytest.UsageError(f"leveret_config: {setting!r} is not KEY=VALUE")
        found[key.strip()] = value.strip()
    return found


@pytest.fixture(scope="session")
def leveret_session_broker(pytestconfig: pytest.Config) -> "Iterator[Broker]":
    """Run one broker in memory for all tests of this process; under pytest-xdist each worker has one."""
    from leveret import Broker, LeveretError  # noqa: PLC0415 - only for tests that use it

    level = pytestconfig.getoption("leveret_log") or pytestconfig.getini("leveret_log")
    log = logging.getLogger("leveret")
    before = log.level
    if level:
        log.setLevel(level.upper())
    try:
        broker = Broker(config=settings(pytestconfig), record=True).start()
    except LeveretError as error:
        raise pytest.UsageError(f"leveret: {error}") from None
    yield broker
    broker.stop()
    log.setLevel(before)


@pytest.fixture
def leveret(leveret_session_broker: "Broker", request: pytest.FixtureRequest) -> "Iterator[OwnVHost]":
    """Give the test a virtual host with a user; both are removed afterwards, with everything that it left."""
    from leveret.broker.embedded.own_vhost import OwnVHost  # noqa: PLC0415 - only for tests that use it

    with OwnVHost(leveret_session_broker, request.node.name) as vhost:
        yield vhost


@pytest.fixture
def leveret_url(leveret: "OwnVHost") -> str:
    """URL for clients of the test's virtual host."""
    return leveret.url


@pytest.fixture
def leveret_broker(pytestconfig: pytest.Config) -> "Iterator[Broker]":
    """Run a broker in memory for this test alone."""
    from leveret import Broker  # noqa: PLC0415 - only for tests that use it

    with Broker(config=settings(pytestconfig), record=True) as broker:
        yield broker


@pytest.fixture
def leveret_celery_config(leveret_url: str) -> dict[str, Any]:
    """Settings of a Celery application that uses the virtual host for tasks and results."""
    return {
        "broker_url": leveret_url,
        "result_backend": "rpc://",
        # A worker in a thread notices its end at its next timer only, usually after 1.25 s. So it has one: it checks
        # its connection every 50 ms.
        "broker_heartbeat": 60,
        "broker_heartbeat_checkrate": 1200,
    }


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the contents of the test's virtual host to the report of a failure."""
    report = yield
    vhost: OwnVHost | None = getattr(item, "funcargs", {}).get("leveret")
    if vhost is not None and report.failed and report.when == "call":
        report.sections.append(("leveret", vhost.report()))
    return report
