"""A browser, brokers, and pages of them.

Starting a broker and filling an empty browser take longer than most tests, so those that leave no trace behind share
one of each (`page`); those that end sessions, restart, or measure have their own (`own_page`).
"""

from collections.abc import Iterator
from typing import Any

import pika
import pytest
from services.browsing import (
    CHROMIUM,
    HOSTILE,
    NO_CHROMIUM,
    Page,
    cleaned,
    context_of,
    fill,
    opened,
    shown_in,
)

import leveret


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser without a window; no longer than a file, because tests with a loop cannot run in its thread meanwhile."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    if CHROMIUM is None:
        pytest.skip(NO_CHROMIUM)
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def broker() -> Iterator[leveret.Broker]:
    """A new broker with its API, which does not wait after a wrong password."""
    with leveret.Broker(management=True, config={"auth.failure_delay": "0"}) as started:
        yield started


@pytest.fixture
def own_page(browser, broker) -> Iterator[Page]:
    yield from opened(browser, broker)


@pytest.fixture
def stranger(browser, broker) -> Iterator[Page]:
    """A page of a new broker, not logged in."""
    yield from opened(browser, broker, logged_in=False)


@pytest.fixture(scope="module")
def shared_broker() -> Iterator[leveret.Broker]:
    """A broker for the tests of a file, one after another."""
    with leveret.Broker(management=True) as started:
        yield started


@pytest.fixture(scope="module")
def shared_context(browser, shared_broker) -> Iterator[Any]:
    """A browser in which somebody is logged in, and which has the files of the page."""
    context = context_of(browser, shared_broker)
    yield context
    context.close()


@pytest.fixture
def page(shared_context, shared_broker) -> Iterator[Page]:
    """A page of a broker in which nothing has been declared, logged in."""
    cleaned(shared_broker)
    yield from shown_in(shared_context, shared_broker)


@pytest.fixture(scope="session")
def world() -> Iterator[leveret.Broker]:
    """A broker with hostile names in everything that has a name, messages, dead letters, a connection and a consumer."""
    with leveret.Broker(management=True) as started:
        parameters = pika.URLParameters(started.url)
        parameters.client_properties = {"connection_name": HOSTILE[0]}
        parameters.heartbeat = 0  # nobody serves the connection for as long as the tests of this process last
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            for number, name in enumerate(HOSTILE):
                fill(started, channel, number, name)
            channel.basic_consume(HOSTILE[1], lambda *_: None, consumer_tag=HOSTILE[0])
            connection.process_data_events(0)
            yield started
