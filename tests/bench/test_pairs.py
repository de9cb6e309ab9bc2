"""`bench.pairs` without brokers: which runs count."""

from contextlib import nullcontext
from types import SimpleNamespace

from bench import pairs


def measured(others):
    """Return a measurement that finds this rate here, that rate there, and takes the disturbance from a list."""
    left = list(others)

    def measure(broker, number):
        del number
        return SimpleNamespace(workload="w", counted=broker.rate, cpu_us=1.0, other=left.pop(0))

    return measure


def test_a_disturbed_pair_is_named_and_run_again(capsys):
    """A pair beside which others used the machine is run again, and only the repetition counts."""
    both = SimpleNamespace(rate=110.0), SimpleNamespace(rate=100.0)
    found = pairs.ratios(measured([50, 0, 1, 2, 3, 4]), lambda: nullcontext(both), 2, 10.0)
    lines = capsys.readouterr().out.splitlines()
    assert [1.1, 1.1] == found
    assert [True, False, False] == ["run again" in line for line in lines]


def test_a_pair_that_stays_disturbed_counts_and_is_named(capsys):
    """After the last attempt a disturbed pair counts, and its line says so."""
    both = SimpleNamespace(rate=90.0), SimpleNamespace(rate=100.0)
    found = pairs.ratios(measured([50] * 6), lambda: nullcontext(both), 1, 10.0)
    lines = capsys.readouterr().out.splitlines()
    assert [0.9] == found
    assert [True, True, True] == ["disturbed" in line for line in lines]
    assert not lines[-1].endswith("run again")
