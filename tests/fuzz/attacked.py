"""The broker under attack, with the canary beside it: starts both, watches the process, and judges at the end."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fuzz.grammar import LOOSE_VHOST, PASSWORD, STRICT_VHOST, USER
from processes.running import SLOW_STEP, deadline

HERE = Path(__file__).resolve().parent
LISTENING = re.compile(r"started TCP listener on 127\.0\.0\.1:(\d+)")
_SECRET = "|".join((PASSWORD, ",".join(map(str, PASSWORD.encode()))))
BAD_LINES = re.compile(
    f"Traceback|internal error|never retrieved|unexpected error in the event loop|{SLOW_STEP}|{_SECRET}"
)
START_SECONDS = 30.0
STOP_SECONDS = 20.0
SETTLE_SECONDS = 10.0  # sockets with broken framing are kept for some seconds

STALL_LIMIT = 0.25
FILES_LIMIT = 5
KEPT_LIMIT = 100
RSS_LIMIT = 300 * 2**20

_SETTINGS = {
    "listeners.tcp.1": "127.0.0.1:0",
    "handshake_timeout": "2s",
    "auth.failure_delay": "50ms",
    "log.console.level": "error",
    "default_vhosts.1.name": STRICT_VHOST,
    "default_vhosts.2.name": LOOSE_VHOST,
    "default_vhosts.3.name": "canary",
    f"default_users.{USER}.password": PASSWORD,
    f"default_users.{USER}.vhost_pattern": f"^({STRICT_VHOST}|{LOOSE_VHOST})$",
    "default_users.canary.password": "canary-secret",
    "default_users.canary.vhost_pattern": "^canary$",
}


class StartError(Exception):
    """The broker or the canary did not come up."""


class Attacked:
    """A broker process and its canary.

    Args:
        keep: leave the log and the report in this directory; a temporary one by default.

    """

    def __init__(self, keep: Path | None = None) -> None:
        self.home = keep or Path(tempfile.mkdtemp(prefix="leveret-fuzz-"))
        self.home.mkdir(parents=True, exist_ok=True)
        self._temporary = keep is None
        for name in ("info.log", "report.json"):  # of an earlier run
            (self.home / name).unlink(missing_ok=True)
        self._log_path = self.home / "broker.log"
        self._log_at = 0
        self.report: dict[str, Any] = {}
        self.seen: dict[str, Any] = {}
        """Observations of the canary."""
        self.highest_rss = 0
        settings = [part for key, value in _SETTINGS.items() for part in ("--set", f"{key}={value}")]
        # the port is logged on level info
        settings += ["--set", "log.file=" + str(self.home / "info.log"), "--set", "log.file.level=info"]
        with self._log_path.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    str(HERE / "counting_broker.py"),
                    str(self.home / "report.json"),
                    *("serve", "--data-dir", str(self.home / "data"), *settings),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._canary: subprocess.Popen[bytes] | None = None
        try:
            self.port = self._wait_for_port()
            self.files = self._count_files()
            self.first_rss = self._rss()
            self._canary = subprocess.Popen(
                [sys.executable, str(HERE / "canary.py"), str(self.port), str(self.process.pid)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            self._wait_for_canary()
        except BaseException:
            self.kill()
            raise

    def _wait_for_port(self) -> int:
        latest = time.monotonic() + START_SECONDS
        info = self.home / "info.log"
        while time.monotonic() < latest and self.process.poll() is None:
            text = info.read_text(errors="replace") if info.exists() else ""
            found = LISTENING.search(text)
            if found and "Server startup complete" in text:
                return int(found[1])
            time.sleep(0.02)
        raise StartError(f"the broker did not start:\n{self._log_path.read_text(errors='replace')}")

    def _wait_for_canary(self) -> None:
        with deadline(self._canary, START_SECONDS):
            line = self._canary.stdout.readline()
        if line != b"ready\n":
            raise StartError("the canary cannot work")

    def _count_files(self) -> int:
        return sum(1 for _ in Path(f"/proc/{self.process.pid}/fd").iterdir())

    def _rss(self) -> int:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def watch(self) -> list[str]:
        """Return the problems since the last call: the process, its memory, its log. Call it a few times a second."""
        problems = []
        if self.process.poll() is not None:
            problems.append(f"the broker has ended with {self.process.returncode}")
        else:
            rss = self._rss()
            self.highest_rss = max(rss, self.highest_rss)
            if rss - self.first_rss > RSS_LIMIT:
                problems.append(f"RSS grew from {self.first_rss >> 20} to {rss >> 20} MiB")
        if self._canary.poll() is not None:
            problems.append("the canary has ended")
        with self._log_path.open("rb") as log:
            log.seek(self._log_at)
            data = log.read()
        end = data.rfind(b"\n") + 1
        self._log_at += end
        lines = data[:end].decode(errors="replace").splitlines()
        for at, line in enumerate(lines):
            if BAD_LINES.search(line):
                problems.append("\n".join(["the log says:", *lines[at : at + 40]]))
                break
        return problems

    def finish(self) -> list[str]:
        """End the attack: what is wrong with the canary, the process, its files, its log, its exit."""
        out, _ = self._canary.communicate(b"", timeout=STOP_SECONDS)
        problems = []
        if out.strip():
            self.seen = json.loads(out.splitlines()[-1])
            if self.seen["problem"]:
                problems.append(f"canary: {self.seen['problem']}")
            if self.seen["stall"] > STALL_LIMIT:
                problems.append(f"canary stalled for {self.seen['stall'] * 1000:.0f} ms")
        else:
            problems.append("the canary said nothing")
        latest = time.monotonic() + SETTLE_SECONDS
        while self.process.poll() is None and (files := self._count_files()) > self.files:
            if time.monotonic() > latest:
                if files > self.files + FILES_LIMIT:
                    problems.append(f"{files} files are open, {self.files} were at the start")
                break
            time.sleep(0.02)
        problems += self.watch_after()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                code = self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                code = None
            if code != 0:
                problems.append(f"the broker ended with {code} after SIGTERM")
        report = self.home / "report.json"
        if report.exists():
            self.report = json.loads(report.read_text(encoding="utf-8"))
            problems += [f"left behind: {count} {what}" for what, count in self.report["left"].items()]
            if self.report["kept"]["Connection"] > KEPT_LIMIT:
                problems.append(f"{self.report['kept']['Connection']} connections are still in memory")
        else:
            problems.append("the broker left no report")
        return problems

    def watch_after(self) -> list[str]:
        """`watch` without the canary, which has ended as it should."""
        return [problem for problem in self.watch() if problem != "the canary has ended"]

    def kill(self) -> None:
        """Leave nothing behind; may be called again."""
        for process in (self._canary, self.process):
            if process is None:
                continue
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        if self._temporary:
            shutil.rmtree(self.home, ignore_errors=True)
