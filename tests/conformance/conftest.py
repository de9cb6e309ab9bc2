"""Makes ``conformance`` importable: there are no packages under tests/ (docs/adr/0001). Starts brokers for its tests."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1]))

from conformance.brokers import SET_UPS, Broker, start_ours
from processes.running import SLOW_STEP


@pytest.fixture(scope="session")
def broker_for() -> Iterator[Callable[[str], Broker]]:
    """Brokers by the name of their set-up, started when first asked for."""
    running: dict[str, Broker] = {}

    def give(setup: str) -> Broker:
        if setup not in running:
            running[setup] = start_ours(SET_UPS[setup])
        return running[setup]

    yield give
    for broker in running.values():
        broker.stop()
    for broker in running.values():
        assert "Traceback" not in broker.last_log, broker.last_log
        assert SLOW_STEP not in broker.last_log, broker.last_log
