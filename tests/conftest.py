"""Fixtures and hooks for all tests."""

import os
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import Phase, settings

# There are no packages under tests/ (docs/adr/0001): this makes `fakes` importable.
sys.path.append(str(Path(__file__).resolve().parent))

pytest_plugins = ("deadlines",)

# A shared machine stalls now and then: how long one example takes says nothing about the code.
# Explaining a failure traces each line of the examples after it, which are ten times slower then; tests/deadlines.py
# bounds what is left.
UNTRACED = [phase for phase in Phase if phase is not Phase.explain]
settings.register_profile("default", deadline=None, phases=UNTRACED, print_blob=True)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape bytes that are not text in captured logs: a client's name would end the worker that sends the report."""
    report = yield
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections
    ]
    return report
