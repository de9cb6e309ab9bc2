"""The page about schedules: its programs and commands print what it says, and a Celery worker runs its task."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pika
from checks.how_to import follow
from processes.commands import execute
from processes.running import ROOT, environment, serving, write_command

PAGE = ROOT / "docs" / "howto" / "schedule-messages.md"
SECONDS = 60


def same(text: str) -> list[str]:
    """Return the lines of an output without what depends on the time: moments, widths of columns."""
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "TIME", text)
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_page_prints_what_it_says(tmp_path):
    """Each block of output is that of the program or the commands before it; times are those of the test."""
    assert 4 == follow(PAGE, tmp_path, same)


def wait_for(text: str, log: Path) -> None:
    """Wait until a log has a text."""
    deadline = time.monotonic() + SECONDS
    while text not in (written := log.read_text(encoding="utf-8")):
        assert time.monotonic() < deadline, written
        time.sleep(0.05)


def test_a_task_with_a_countdown_waits_in_the_broker(tmp_path):
    """With the policy a worker gets no task before its time, an immediate task runs at once, and a release runs the other."""
    text = PAGE.read_text(encoding="utf-8")
    (program,) = re.findall(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (policy,) = re.findall(r"^leveret ctl (set_policy .*\^celery.*)$", text, re.MULTILINE)
    binaries = write_command(tmp_path / "bin")
    log = tmp_path / "worker.log"
    with serving(tmp_path) as running:
        environ = {**environment(), "LEVERET_DATA_DIR": str(running.data_dir)}
        environ["PATH"] = f"{binaries}:{environ['PATH']}"
        (tmp_path / "tasks.py").write_text(program.replace("5672", str(running.address[1])), encoding="utf-8")
        send = "import tasks; tasks.remind.apply_async(['{}'], countdown={})"

        def run(*words: str) -> str:
            done = execute(words, env=environ, cwd=tmp_path, check=True, timeout=SECONDS)
            return done.stdout

        run("sh", "-ec", f"leveret ctl {policy}")
        words = [
            "-m",
            "celery",
            "-A",
            "tasks",
            "worker",
            "-P",
            "solo",
            "--loglevel",
            "INFO",
            "--without-mingle",
        ]
        with (
            log.open("wb") as output,
            subprocess.Popen(
                [sys.executable, *words], env=environ, cwd=tmp_path, stdout=output, stderr=output
            ) as worker,
        ):
            try:
                wait_for("ready", log)
                for number in range(5):
                    run(sys.executable, "-c", send.format(f"later{number}", 3600))
                run(sys.executable, "-c", send.format("now", 0))
                wait_for("do not forget now", log)
                with pika.BlockingConnection(pika.ConnectionParameters(*running.address)) as connection:
                    found = connection.channel().queue_declare("celery", passive=True)
                assert 0 == found.method.message_count
                assert "later" not in log.read_text(encoding="utf-8")
                run("sh", "-ec", "leveret held reschedule celery --to 2020-01-01 --limit 1")
                wait_for("later0", log)
                assert "later1" not in log.read_text(encoding="utf-8")
            finally:
                worker.kill()
