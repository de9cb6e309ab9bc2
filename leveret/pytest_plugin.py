"""The pytest plugin: brokers and virtual hosts as fixtures. It loads the broker when a fixture is first used.

Fixtures:
    leveret: a virtual host of its own in a broker that all tests of a process share, with the API of `leveret.Broker`.
    leveret_url: the URL of that virtual host.
    leveret_broker: a broker of its own.
    leveret_celery_config: settings of a Celery application that uses the virtual host.
    leveret_session_broker: the broker that tests share.

The marker `leveret(profile="4.3")` gives a test a broker that follows that RabbitMQ, `--leveret-profile` all tests.

That broker starts with the first fixture that needs it. `--leveret-port` and `--leveret-env` start it before the tests
are loaded instead, for tests that know no fixture of this plugin but a port or a variable of the environment.
"""

import logging
from collections.abc import Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from leveret import Broker
    from leveret.broker.embedded.own_vhost import OwnVHost

LEVELS = ("debug", "info", "warning", "error", "critical")
SESSION_BROKERS = pytest.StashKey[dict[str, "Broker"]]()
"""The brokers that tests share, by the profile of their marker, '' without one."""
PROFILE = "compatibility.profile"


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
    group.addoption(
        "--leveret-env",
        action="append",
        default=[],
        metavar="NAME=TEXT",
        help="a variable of the environment, set before the tests are loaded; {url}, {host} and {port} in the text are "
        "those of a broker that is started then; may be repeated",
    )
    group.addoption("--leveret-log", choices=LEVELS, help="level of the broker's log (default: warning)")
    group.addoption(
        "--leveret-profile",
        metavar="RELEASE",
        help="the RabbitMQ that the broker follows, 3.13 or 4.3: compatibility.profile of its configuration",
    )
    group.addoption(
        "--leveret-port",
        type=int,
        metavar="PORT",
        help="port of the broker, which is started before the tests are loaded then",
    )
    parser.addini(
        "leveret_config", "keys of the broker's configuration, one KEY=VALUE a line", "linelist", []
    )
    parser.addini("leveret_env", "variables as for --leveret-env, one NAME=TEXT a line", "linelist", [])
    parser.addini("leveret_profile", "the RabbitMQ that the broker follows, 3.13 or 4.3", "string", "")
    parser.addini("leveret_log", f"level of the broker's log: {', '.join(LEVELS)}", "string", "")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers", "leveret(profile): the RabbitMQ that the broker of this test follows, '3.13' or '4.3'"
    )


def settings(config: pytest.Config, name: str) -> dict[str, str]:
    """Return the settings of an ini key, changed by those of the option of the same name. Raises UsageError."""
    found: dict[str, str] = {}
    for setting in (*config.getini(name), *getattr(config.known_args_namespace, name)):
        key, equals, value = setting.partition("=")
        if not equals:
            raise pytest.UsageError(f"{name}: {setting!r} is not KEY=VALUE")
        found[key.strip()] = value.strip()
    return found


def configured(config: pytest.Config, profile: str = "") -> dict[str, str]:
    """Return the broker's configuration, that of a profile if one is given. Raises UsageError."""
    profile = profile or config.known_args_namespace.leveret_profile or config.getini("leveret_profile")
    return settings(config, "leveret_config") | ({PROFILE: profile} if profile else {})


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Check the configuration, and start the broker for tests that do not ask a fixture for it. Raises UsageError."""
    # pytest compiles each module of a package with a plugin anew, to explain its asserts: of the broker for a second
    getattr(early_config.pluginmanager.rewrite_hook, "_must_rewrite", set()).discard("leveret")
    port: int | None = early_config.known_args_namespace.leveret_port
    variables = settings(early_config, "leveret_env")
    if port is None and not variables:
        if config := configured(early_config):
            check(config)
        return
    broker = start_session_broker(early_config, port or 0)
    url = broker.url
    address = {"url": url, "host": urlsplit(url).hostname, "port": broker.port}
    environment = pytest.MonkeyPatch()
    early_config.add_cleanup(environment.undo)
    for name, text in variables.items():
        try:
            environment.setenv(name, text.format_map(address))
        except (LookupError, ValueError, AttributeError):
            known = ", ".join(f"{{{key}}}" for key in address)
            raise pytest.UsageError(f"leveret_env: {text!r} is not text with {known}") from None


def check(config: dict[str, str]) -> None:
    """Check keys and values of the broker's configuration; this loads its configuration, but not the broker.

    Raises UsageError with all problems.
    """
    from leveret import ConfigurationError  # noqa: PLC0415 - only for tests that configure the broker
    from leveret.broker.embedded.core import make_config  # noqa: PLC0415

    try:
        make_config(config, None, 0)
    except ConfigurationError as error:
        raise pytest.UsageError(f"leveret_config: {error}") from None


def start_session_broker(config: pytest.Config, port: int = 0, profile: str = "") -> "Broker":
    """Start a broker that tests share, by default at a free port; it stops when pytest ends.

    Raises UsageError if a setting is wrong, or the port is taken.
    """
    from leveret import Broker, LeveretError  # noqa: PLC0415 - only for tests that use it

    level = config.known_args_namespace.leveret_log or config.getini("leveret_log")
    if level:
        log = logging.getLogger("leveret")
        config.add_cleanup(partial(log.setLevel, log.level))
        log.setLevel(level.upper())
    try:
        broker = Broker(config=configured(config, profile), port=port, record=True).start()
    except LeveretError as error:
        raise pytest.UsageError(f"leveret: {error}") from None
    config.add_cleanup(broker.stop)
    config.stash.setdefault(SESSION_BROKERS, {})[profile] = broker
    return broker


def session_broker(config: pytest.Config, profile: str = "") -> "Broker":
    """Return the broker that tests share, or that of a profile; start it if it does not run. Raises UsageError."""
    running = config.stash.get(SESSION_BROKERS, {}).get(profile)
    return running or start_session_broker(config, profile=profile)


def marked_profile(item: pytest.Item) -> str:
    """Return the profile of the marker that is nearest to a test; '' if it is that of all tests. Raises UsageError."""
    marker = item.get_closest_marker("leveret")
    if marker is None:
        return ""
    profile = marker.kwargs.get("profile")
    if marker.args or len(marker.kwargs) != 1 or not isinstance(profile, str):
        raise pytest.UsageError(f'{item.nodeid}: the marker is leveret(profile="4.3"), not {marker}')
    return "" if profile == configured(item.config).get(PROFILE, "3.13") else profile


@pytest.fixture(scope="session")
def leveret_session_broker(pytestconfig: pytest.Config) -> "Broker":
    """Run one broker in memory for all tests of this process; under pytest-xdist each worker has one."""
    return session_broker(pytestconfig)


@pytest.fixture
def leveret(request: pytest.FixtureRequest) -> "Iterator[OwnVHost]":
    """Give the test a virtual host with a user; both are removed afterwards, with everything that it left."""
    from leveret.broker.embedded.own_vhost import OwnVHost  # noqa: PLC0415 - only for tests that use it

    profile = marked_profile(request.node)
    broker = (
        session_broker(request.config, profile)
        if profile
        else request.getfixturevalue("leveret_session_broker")
    )
    with OwnVHost(broker, request.node.name) as vhost:
        yield vhost


@pytest.fixture
def leveret_url(leveret: "OwnVHost") -> str:
    """URL for clients of the test's virtual host."""
    return leveret.url


@pytest.fixture
def leveret_broker(request: pytest.FixtureRequest) -> "Iterator[Broker]":
    """Run a broker in memory for this test alone."""
    from leveret import Broker  # noqa: PLC0415 - only for tests that use it

    with Broker(config=configured(request.config, marked_profile(request.node)), record=True) as broker:
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
