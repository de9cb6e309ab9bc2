"""The page about Celery: its tasks run in a worker, and its program prints what the page says."""

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from docs.test_programs import blocks
from processes.commands import execute
from processes.running import ROOT, command, environment, serving

PAGE = ROOT / "docs" / "howto" / "celery.md"
SECONDS = 60


@pytest.mark.timeout(180)
def test_tasks_of_the_page_run(tmp_path: Path) -> None:
    """The worker runs the tasks of the page, and the rejected one is in the queue of dead letters."""
    found = blocks(PAGE)
    tasks, program, *_ = [text for language, text in found if language == "python"]
    (printed,) = [text for language, text in found if language == "text"]
    with serving(tmp_path) as running:
        port = str(running.address[1])
        (tmp_path / "tasks.py").write_text(tasks.replace("5672", port))
        (shown,) = [text for language, text in found if not language and text.startswith("celery ")]
        worker = [sys.executable, "-m", *shlex.split(shown)]
        with (tmp_path / "worker.log").open("wb") as log:
            process = subprocess.Popen(worker, cwd=tmp_path, env=environment(), stdout=log, stderr=log)
        try:
            done = execute(
                [sys.executable, "-c", program],
                cwd=tmp_path,
                env={**environment(), "PYTHONPATH": str(tmp_path)},
                timeout=SECONDS,
            )
            log_text = (tmp_path / "worker.log").read_text()
            assert printed == done.stdout, done.stderr + log_text
            dead = peeked(running.data_dir)
            policies = re.findall(r"^leveret (ctl set_policy .*)$", PAGE.read_text(), re.MULTILINE)
            for policy in policies:
                words = [*command(), *shlex.split(policy), "--data-dir", str(running.data_dir)]
                execute(words, check=True, timeout=SECONDS, env=environment())
        finally:
            process.terminate()
            process.wait(SECONDS)
    assert "tasks.charge" in dead
    assert 2 == len(policies)


def test_django_configures_the_application(tmp_path: Path) -> None:
    """The module of the page takes the address of the broker from Django's settings."""
    *_, program = [text for language, text in blocks(PAGE) if language == "python"]
    (setting,) = re.findall(r"`(CELERY_BROKER_URL = .*?)`", PAGE.read_text(encoding="utf-8"))
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "celery.py").write_text(program)
    (tmp_path / "project" / "settings.py").write_text(f'SECRET_KEY = "x"\n{setting}\n')
    words = [sys.executable, "-c", "from project.celery import app; print(app.conf.broker_url)"]
    done = execute(words, cwd=tmp_path, env=environment(), timeout=SECONDS, check=True)

    assert f'CELERY_BROKER_URL = "{done.stdout.strip()}"' == setting


def peeked(data_dir: Path) -> str:
    """Return the dead letters as `leveret peek` shows them, once there is one."""
    deadline = time.monotonic() + SECONDS
    while True:
        words = [*command(), "peek", "celery.dead", "--data-dir", str(data_dir), "--format", "json"]
        done = execute(words, check=True, timeout=SECONDS, env=environment())
        if done.stdout.strip():
            return json.dumps(done.stdout)
        assert time.monotonic() < deadline, "no dead letter"
        time.sleep(0.1)
