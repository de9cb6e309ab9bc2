"""Makes ``conformance`` importable: there are no packages under tests/ (docs/adr/0001). Starts brokers for its tests."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1]))

from conformance.brokers import SET_UPS, Broker, start_ours
from processes.running import SLOW_STEP


@pytest.fixture(scope="session")
def broker_for() -> Iterator[Callable[..., Broker]]:
    """Brokers by the names of their set-up and profile, started when first asked for."""
    running: dict[tuple[str, str], Broker] = {}

    def give(setup: str, profile: str = "3.13") -> Broker:
        if (setup, profile) not in running:
            running[setup, profile] = start_ours(SET_UPS[setup], profile)
        return running[setup, profile]

    yield give
    for broker in running.values():
        broker.stop()
    for broker in running.values():
        assert "Traceback" not in broker.last_log, broker.last_log
        assert SLOW_STEP not in broker.last_log, broker.last_log
