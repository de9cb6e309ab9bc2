"""A test that hangs ends its worker, tells where each thread stood, and is not run again."""

import faulthandler
import os

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

_TELL_TO = pytest.StashKey[int]()


@pytest.hookimpl
def pytest_configure(config: pytest.Config) -> None:
    """Keep the standard error of before each test's capture."""
    config.stash[_TELL_TO] = os.dup(2)


@pytest.hookimpl
def pytest_timeout_set_timer(item: pytest.Item, settings: object) -> bool:
    """End the process at the deadline, whatever holds it: a call in C that keeps the interpreter, too."""
    faulthandler.dump_traceback_later(settings.timeout, file=item.config.stash[_TELL_TO], exit=True)
    return True


@pytest.hookimpl
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    """Let the process live."""
    faulthandler.cancel_dump_traceback_later()
    return True


class OnceScheduling(LoadFileScheduling):
    """Gives a worker whole files, and runs no test again that has ended a worker.

    The scheduling it is made of runs such a test in each worker that follows: nine times its deadline.
    """

    def remove_node(self, node: WorkerController) -> str | None:
        """Take the test that a dead worker was running for done, and give away the rest."""
        for unit in self.assigned_work[node].values():
            for test, is_done in unit.items():
                if not is_done:
                    unit[test] = True
                    super().remove_node(node)
                    return test
        return super().remove_node(node)

    def _reschedule(self, node: WorkerController) -> None:
        if node in self.registered_collections:  # a worker that has just been started asks by itself
            super()._reschedule(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> OnceScheduling | None:
    """Schedule `--dist loadfile`."""
    return OnceScheduling(config, log) if config.getoption("dist") == "loadfile" else None
