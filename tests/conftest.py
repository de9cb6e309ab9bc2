"""Fixtures and hooks for all tests."""

import gc
import logging
import os
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import Phase, settings

# There are no packages under tests/ (docs/adr/0001): this makes the rooms of helpers importable.
sys.path.append(str(Path(__file__).resolve().parent))

pytest_plugins = ("processes.deadlines",)

# A shared machine stalls now and then: how long one example takes says nothing about the code.
# Explaining a failure traces each line of the examples after it, which are ten times slower then;
# tests/processes/deadlines.py bounds what is left.
UNTRACED = [phase for phase in Phase if phase is not Phase.explain]
settings.register_profile("default", deadline=None, phases=UNTRACED, print_blob=True)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=2000)
settings.register_profile("short", settings.get_profile("default"), max_examples=5)  # for emulated processors
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


LONG = (
    "analytics/*", "crash/*", "loop/*", "test_beside.py", "fuzz/test_fuzz.py", "broker/cli/test_perf_beside_rabbitmq.py",
    "clients/*", "conformance/*", "docs/*", "test_portability.py", "test_running.py", "test_hot_files.py", "docker/*",
    "test_packaging.py", "test_pytest_plugin.py", "test_docs.py", "covered/*", "confirm/*", "broker/persistence/*",
    "broker/process/*", "broker/server/*", "storage/queues/*", "broker/network/*", "broker/*/test_beside_rabbitmq.py",
    "security/*", "page/*", "spark/*",
)  # fmt: skip
"""Files of few tests that take long. Started last, each would keep one worker busy after the others have ended."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of files that take long before the others."""
    here = Path(__file__).parent
    paths = {item.path for item in items}
    are_long = {path: any(path.relative_to(here).match(each) for each in LONG) for path in paths}
    items.sort(key=lambda item: not are_long[item.path])


@pytest.hookimpl
def pytest_collection() -> None:
    """Collect no garbage meanwhile: nearly all objects that are made then stay, and each pass looks at all of them."""
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Keep the garbage collector from looking at the collected tests: they are millions of objects that stay."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """Restore the levels of our loggers: the management API sets them, in this process if a test asks it without sockets."""
    ours = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.startswith("leveret")]
    levels = [(logger, logger.level) for logger in ours]
    try:
        yield
    finally:
        for logger, level in levels:
            if logger.level != level:
                logger.setLevel(level)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape bytes that are not text in captured logs: a client's name would end the worker that sends the report."""
    report = yield
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections
    ]
    return report
