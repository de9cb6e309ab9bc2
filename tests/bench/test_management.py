"""The benchmark of the management API, where it does not depend on how busy the machine is."""

import sys

import pytest
from processes.commands import execute
from processes.running import ROOT

from bench import brokers, management


def test_answers_are_read_whole_and_errors_end_the_benchmark():
    """An octet more or less is noticed, and so is an answer that is no list."""
    with management.managed() as at:
        assert at.get(management.LIST) == at.get(management.FLOWER) == 2
        assert at.get(management.PAGE) > 2
        with pytest.raises(brokers.BrokerError, match="404"):
            at.get("/api/none")


@pytest.mark.skipif(not management.resident(), reason="the system does not tell the memory of a process")
def test_statistics_have_a_size():
    """Fifty busy queues, connections and channels have at most their share of the bar, in a process of their own."""
    script = "from bench import management; management.BUSY = 50; print(management.full_statistics())"
    words = [sys.executable, "-c", script]
    done = execute(words, cwd=ROOT, timeout=120, check=True)

    assert 0.0 < float(done.stdout) <= 50 / 1000 * management.STATISTICS_MB * 1.5
