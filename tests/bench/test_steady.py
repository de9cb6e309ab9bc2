"""The steps of the event loop that are too long beside a steady load."""

import argparse

import pytest

from bench import results, steady


def test_slow_steps_are_found_in_the_log():
    """Steps are grouped by kind and object, those of reads together; other lines are ignored."""
    lines = [
        "10:00 WARNING slow step of the event loop: 2.5 ms of processor time for tick ",
        "10:01 WARNING slow step of the event loop: 3.0 ms of processor time for tick ",
        "10:02 WARNING slow step of the event loop: 2.1 ms of processor time for read of connection 127.0.0.1:1",
        "10:03 WARNING slow step of the event loop: 4.1 ms of processor time for read of connection 127.0.0.1:2",
        "10:04 WARNING slow step of the event loop: 9.1 ms of processor time for export sample ",
        "10:05 INFO longest step of the event loop: 9.1 ms, export sample ",
    ]
    assert {
        "tick": [2.5, 3.0],
        steady.READ: [2.1, 4.1],
        "export sample": [9.1],
    } == steady.slow_steps(lines)


@pytest.mark.parametrize(("limit", "missed"), [(0.02, 1), (1000.0, 0)])
def test_steps_above_the_limit_are_reported(monkeypatch, tmp_path, capsys, limit, missed):
    """A limit that every step exceeds is missed, by what the broker itself has logged; a high one is not."""
    monkeypatch.setattr(steady, "STEP_MS", limit)
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    options = argparse.Namespace(rate=500, minutes=0.01, size=100)

    assert missed == steady.steady(options)
    assert ("tick" in capsys.readouterr().out) is bool(missed)


@pytest.mark.parametrize(("samples", "expected"), [([1, 2, 3], 1.0), ([9, 9, 4, 4, 4, 4, 5, 4], 1.25)])
def test_growth_is_that_after_the_first_quarter(samples, expected):
    """Memory that a start adds is no growth; few samples show none."""
    assert expected == steady.Samples.growth(samples)
