"""The benchmark of open pages, where it does not depend on how busy the machine is."""

import uvloop

from bench import management, ui
from bench.results import Report


def test_pages_are_opened_and_cost_something(monkeypatch, tmp_path, capsys):
    """All files are fetched, streams are followed, and figures are printed."""
    monkeypatch.setattr("bench.results.RESULTS", tmp_path)
    monkeypatch.setattr(ui, "WATCHED_SECONDS", 1.0)
    with management.managed() as at:
        _, octets = uvloop.run(ui.files(f"http://127.0.0.1:{at.port}"))
        ui.cost(at, Report("ui", judged=False), "here")

    assert 50_000 < octets <= ui.OCTETS
    assert "10 open pages here cost" in capsys.readouterr().out
