"""Kills `leveret analyze --follow` at random moments while a table grows: `make campaign NAME=followed`.

After each kill the command is started again. In the end its report must have every sample once, and count every row
and every line that is none once. Half of the kills end all processes of the command, half only its own.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from samples.made_rows import histogram, row  # noqa: E402 - needs the path

QUICK = (
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions=2",
)
EVERY = 0.5
"""Seconds between two files."""
ROWS = 20
LONGEST = 8.0
"""Seconds that a command lives at most after its first sign of work."""
PATIENCE = 300


class Growing(threading.Thread):
    """Writes a file with rows and a bad line every `EVERY` seconds, as the export does."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder = folder / "latency_hist" / "dt=2026-11-21" / "hour=07"
        self.folder.mkdir(parents=True)
        self.files = 0
        self.stopping = threading.Event()

    def run(self) -> None:
        """Write until told to stop."""
        while not self.stopping.is_set():
            self.write()
            self.stopping.wait(EVERY)

    def write(self) -> None:
        first = self.files * ROWS
        rows = [
            row(
                "latency_hist",
                5 * (first + number),
                scope="node",
                metric="confirm",
                **histogram([number + 1] * 3),
            )
            for number in range(ROWS)
        ]
        unfinished = self.folder / f".latency_hist-{self.files}-0.jsonl.tmp"
        unfinished.write_text("".join(f"{json.dumps(each)}\n" for each in rows) + "bad\n")
        unfinished.rename(self.folder / f"latency_hist-{self.files}-0.jsonl")
        self.files += 1


def start(source: Path, output: Path) -> subprocess.Popen[bytes]:
    """Start the command in a process group of its own."""
    settings = [word for setting in QUICK for word in ("--conf", setting)]
    return subprocess.Popen(
        [
            sys.executable, "-m", "leveret", "analyze", "latency", "--follow", "1", "--quiet",
            "--input", source, "--output", output, *settings,
        ],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, start_new_session=True,
    )  # fmt: skip


def work(output: Path) -> set[str]:
    """Return the names of all files that a command keeps."""
    return {str(path) for path in (output / "followed").rglob("*")}


def wait_for_work(command: subprocess.Popen[bytes], output: Path, before: set[str]) -> None:
    """Wait until a command has written something of its own."""
    end = time.monotonic() + PATIENCE
    while work(output) <= before:
        if command.poll() is not None or time.monotonic() > end:
            sys.exit(f"the command ended by itself, or does nothing: {command.poll()}")
        time.sleep(0.05)


def told(page: Path) -> tuple[int, int, int]:
    """Return what a report has: samples, rows, and lines set aside."""
    text = page.read_text() if page.exists() else ""
    patterns = (r"([\d,]+) samples? of", r"Rows: latency_hist ([\d,]+)", r"([\d,]+) lines? set aside")
    found = (re.search(pattern, text) for pattern in patterns)
    samples, rows, aside = (int(each[1].replace(",", "")) if each else 0 for each in found)
    return samples, rows, aside


def main() -> None:
    """Kill the command so often, then let it catch up, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", "--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    chance = random.Random(chosen.seed)
    with tempfile.TemporaryDirectory() as place:
        source, output = Path(place, "in"), Path(place, "out")
        growing = Growing(source)
        growing.start()
        for number in range(chosen.kills):
            before = work(output)
            command = start(source, output)
            wait_for_work(command, output, before)
            time.sleep(chance.uniform(0, LONGEST))
            if number % 2:
                os.killpg(command.pid, signal.SIGKILL)
            else:
                command.kill()
            command.wait()
            print(
                f"kill {number + 1} of {chosen.kills}: {told(output / 'latency' / 'report.html')}", flush=True
            )
        growing.stopping.set()
        growing.join()
        expected = (3 * ROWS * growing.files, ROWS * growing.files, growing.files)
        command = start(source, output)
        end = time.monotonic() + PATIENCE
        while told(output / "latency" / "report.html") != expected and time.monotonic() < end:
            time.sleep(0.5)
        found = told(output / "latency" / "report.html")
        os.killpg(command.pid, signal.SIGTERM)
        code = command.wait(PATIENCE)
        folders = len(list((output / "followed" / "rows" / "latency_hist").iterdir()))
    print(
        f"samples, rows, bad lines: {found}, expected {expected}; exit {code}; {folders} directories of rows"
    )
    sys.exit(found != expected or code != 0)


if __name__ == "__main__":
    main()
