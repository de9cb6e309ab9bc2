"""A test that hangs ends its worker with the stack of each thread, and is not run again.

A failed test is reported before its deadline: hypothesis may use only a fraction of its time to shrink the case.
"""

import faulthandler
import os

import pytest
from hypothesis.internal.conjecture import engine
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

ANALYTICS = "tests/analytics/"
"""The folder of the tests that use Spark."""
WITH_A_CLUSTER = "tests/analytics/test_cluster.py"
"""One of them, most of whose time goes into Javas of its own."""
LEAST = 2
"""Minimum number of tests that a worker must have to run one."""
SHRINKING = 4
"""Fraction of a test's time, as a divisor, that may go into shrinking its failing case."""
_TELL_TO = pytest.StashKey[int]()


@pytest.hookimpl
def pytest_configure(config: pytest.Config) -> None:
    """Keep the standard error from before each test's capture."""
    config.stash[_TELL_TO] = os.dup(2)


@pytest.hookimpl
def pytest_timeout_set_timer(item: pytest.Item, settings: object) -> bool:
    """End the process at the deadline, whatever blocks it, also a call in C that keeps the interpreter."""
    # which is five minutes otherwise, and most deadlines come before that
    engine.MAX_SHRINKING_SECONDS = settings.timeout / SHRINKING
    faulthandler.dump_traceback_later(settings.timeout, file=item.config.stash[_TELL_TO], exit=True)
    return True


@pytest.hookimpl
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    """Cancel the deadline."""
    faulthandler.cancel_dump_traceback_later()
    return True


class OnceScheduling(LoadFileScheduling):
    """Distribution of whole files to workers, without a repetition of tests that have ended a worker.

    The base class runs such a test again in each following worker, up to nine times. It also assigns finished files of
    the dead worker again: a worker that gets a file without tests left waits for ever, as a worker keeps its last test
    until it has another or is ended.

    All files that use Spark go to the same worker: each session of Spark is a Java of its own that has to warm up. The file
    with a cluster goes to another one, or that worker would be busy when all others have ended.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return ANALYTICS if file.startswith(ANALYTICS) and file != WITH_A_CLUSTER else file

    def remove_node(self, node: WorkerController) -> str | None:
        """Count the test that a dead worker was running as done, and distribute its other tests."""
        workload = self.assigned_work[node]
        ended = next(
            ((unit, test) for unit in workload.values() for test, done in unit.items() if not done), None
        )
        if ended is not None:
            unit, test = ended
            unit[test] = True
        for scope in [scope for scope, unit in workload.items() if all(unit.values())]:
            del workload[scope]
        super().remove_node(node)
        return None if ended is None else ended[1]

    def _reschedule(self, node: WorkerController) -> None:
        if node not in self.registered_collections:
            return  # it has just been started, and asks by itself
        super()._reschedule(node)
        while (
            self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) < LEAST
        ):
            self._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> OnceScheduling | None:
    """Schedule `--dist loadfile`."""
    return OnceScheduling(config, log) if config.getoption("dist") == "loadfile" else None
