"""Two logs that one machine led go to different machines when it is killed."""

import time
from contextlib import ExitStack

import pytest

pytest.importorskip("psycopg", reason="the package psycopg is not installed")
from processes.waiting import wait_until
from replicated.cluster import NAMES
from replicated.database import database_in_folder
from replicated.placed import SECONDS, Log

TRIES = 3  # a machine that stalls for longer than a turn is passed over


@pytest.mark.timeout(300)
def test_the_logs_of_a_killed_machine_go_to_two() -> None:
    """Each of the others leads one of them then, unless this host is so slow that it fails three times."""
    with ExitStack() as ending:
        home, database = ending.enter_context(database_in_folder("leveret-s-"))
        logs = [Log(home, database.url, name) for name in ("a", "b")]
        for log in logs:
            ending.callback(log.kill_all, wiped=False)
            log.start("n1")
        for log in logs:
            wait_until(lambda log=log: log.leads("n1"), SECONDS)
            log.start_all()
        for _ in range(TRIES):
            time.sleep(10)
            for log in logs:
                log.kill("n1")
            began = time.monotonic()
            found = [log.leader() for log in logs]
            seconds = time.monotonic() - began
            if set(found) == set(NAMES) - {"n1"}:
                break
            for log in logs:
                log.start("n1")
            time.sleep(10)
            for log in logs:
                log.told("cluster_transfer", "n1")
        assert sorted(found) == ["n2", "n3"]
        assert seconds < SECONDS
