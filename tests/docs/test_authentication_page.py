"""The programs of docs/howto/authentication-backends.md do what the page says."""

import re
import subprocess
import sys
from contextlib import contextmanager

from processes.commands import execute
from processes.running import ROOT, Running, environment, free_port

PAGE = (ROOT / "docs" / "howto" / "authentication-backends.md").read_text(encoding="utf-8")
SECONDS = 60


@contextmanager
def started(program, folder, printed):
    """Run a program until it has printed a text."""
    path = folder / "service.py"
    path.write_text(program, encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-u", path], stdout=subprocess.PIPE, text=True, env=environment()
    )
    try:
        for line in process.stdout:
            if printed in line:
                break
        yield
    finally:
        process.terminate()
        process.communicate(timeout=SECONDS)


def test_the_service_of_the_page_decides(tmp_path):
    """A broker with the page's configuration asks the page's service, and the page's client prints what it says."""
    service, client = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[:2]
    (settings,) = re.findall(r"^```ini\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[:1]
    (expected,) = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[:1]
    port = str(free_port())
    config = tmp_path / "leveret.conf"
    config.write_text(settings.replace("8000", port), encoding="utf-8")
    with (
        started(service.replace("8000", port), tmp_path, "Running on"),
        Running(tmp_path, "--config", str(config)) as running,
    ):
        running.wait_for("Server startup complete")
        program = client.replace("5672", str(running.address[1]))
        done = execute([sys.executable, "-c", program], timeout=SECONDS)

    assert (0, expected) == (done.returncode, done.stdout), done.stderr
