"""The page of a front of several processes."""

import os
import signal

from processes.fronts import ctl, front, pid_of
from processes.running import free_port
from services.browsing import WIDE

WAIT_MS = 30_000


def test_the_page_names_a_process_that_does_not_answer(browser, tmp_path) -> None:
    """The bar says which process is missing as long as it is, and that the page is live otherwise."""
    port = free_port()
    with front(tmp_path, **{"management.enabled": "true", "management.tcp.port": port}) as running:
        assert 0 == ctl(running, "set_user_tags", "1", "administrator")[0]
        tab = browser.new_context(viewport=WIDE).new_page()
        tab.goto(f"http://127.0.0.1:{port}/")
        tab.fill("input[autocomplete=username]", "1")
        tab.fill("input[type=password]", "one")
        tab.keyboard.press("Enter")
        tab.wait_for_selector(".badge.good:has-text('Live')", timeout=WAIT_MS)
        pid = pid_of(running, 2)
        os.kill(pid, signal.SIGSTOP)
        try:
            tab.wait_for_selector("text=Without process 2", timeout=WAIT_MS)
        finally:
            os.kill(pid, signal.SIGCONT)
        tab.wait_for_selector(".badge.good:has-text('Live')", timeout=WAIT_MS)
        tab.context.close()
