"""Records of a sweep: its plan and JSON Lines of three tables, written so that a stop loses no run.

`bench_run` and `bench_sample` are tables of the export; `bench_cost` has the other data for the report. A run's files
are written under temporary names and renamed, `bench_run` last: a run is recorded when it has that file. Files of an
interrupted run are removed before the sweep continues.
"""

import contextlib
import fcntl
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bench.paper_plan import BUSY, Done, Plan
from leveret.broker.export.tables import BENCH_COST, BENCH_RUN, BENCH_SAMPLE

PLAN = "plan.json"
T = TypeVar("T", bound=msgspec.Struct)
BenchRun, BenchSample, BenchCost = BENCH_RUN.struct, BENCH_SAMPLE.struct, BENCH_COST.struct
TABLES: dict[type[msgspec.Struct], str] = {
    table.struct: table.name for table in (BENCH_RUN, BENCH_SAMPLE, BENCH_COST)
}


class RecordsError(Exception):
    """Raised for a directory with no sweep, another sweep, or one that is running; the text says which."""


class Records:
    """The directory of one sweep."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def begin(self, plan: Plan) -> None:
        """Create the directory and write the plan to it.

        Raises:
            RecordsError: there is a sweep in it already.
        """
        target = self.directory / PLAN
        if target.exists():
            message = f"{self.directory} holds a sweep already: --resume {self.directory} goes on with it"
            raise RecordsError(message)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._put(target, msgspec.json.format(msgspec.json.encode(plan)) + b"\n")

    def plan(self) -> Plan:
        """Return the recorded plan.

        Raises:
            RecordsError: there is none, or it is invalid.
        """
        try:
            return msgspec.json.decode((self.directory / PLAN).read_bytes(), type=Plan)
        except FileNotFoundError as error:
            message = f"{self.directory} holds no sweep: no {PLAN} in it"
            raise RecordsError(message) from error
        except msgspec.DecodeError as error:
            message = f"{self.directory / PLAN} cannot be read: {error}"
            raise RecordsError(message) from error

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Lock this directory against other sweeps for the duration of a `with` block.

        Raises:
            RecordsError: another process has locked it.
        """
        with (self.directory / PLAN).open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                message = f"another process is measuring into {self.directory}"
                raise RecordsError(message) from error
            yield

    def add(self, run: BenchRun, samples: Sequence[BenchSample], cost: BenchCost, number: int) -> None:
        """Record a complete run; `number` is its place in the plan."""
        for rows in (samples, [cost], [run]):
            table = TABLES[type(rows[0])]
            moment = time.gmtime(run.start_ts / 1000)
            folder = (
                self.directory / table / time.strftime("dt=%Y-%m-%d/hour=%H", moment) / f"node={run.host}"
            )
            folder.mkdir(parents=True, exist_ok=True)
            self._put(
                folder / f"{table}-{run.start_ts}-{number}.jsonl", msgspec.json.Encoder().encode_lines(rows)
            )

    @staticmethod
    def _put(target: Path, content: bytes) -> None:
        unfinished = target.with_name(f".{target.name}.tmp")
        unfinished.write_bytes(content)
        unfinished.replace(target)

    def read(self, kind: type[T]) -> list[T]:
        """Return all rows of a table, those of the earliest run first."""
        decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)
        files = sorted(self._files(TABLES[kind]), key=lambda path: path.name)
        return [row for path in files for row in decoder.decode_lines(path.read_bytes())]

    def _files(self, table: str) -> Iterator[Path]:
        return (path for path in (self.directory / table).rglob("*.jsonl") if not path.name.startswith("."))

    @property
    def exists(self) -> bool:
        """True if there is a sweep in the directory."""
        return (self.directory / PLAN).exists()

    def done(self, plan: Plan) -> set[Done]:
        """Return the recorded runs of a plan."""
        return set(done(plan, self.read(BenchRun), self.read(BenchCost)))

    def tidy(self) -> None:
        """Remove files of interrupted runs. No other process may be writing."""
        complete = {path.name.removeprefix("bench_run-") for path in self._files("bench_run")}
        for table in TABLES.values():
            for path in (self.directory / table).rglob("*"):
                unfinished = path.name.startswith(".")
                if path.is_file() and (unfinished or path.name.removeprefix(f"{table}-") not in complete):
                    path.unlink()


def done(plan: Plan, runs: Iterable[BenchRun], costs: Iterable[BenchCost]) -> Iterator[Done]:
    """Yield the recorded runs of a plan that have their costs."""
    other = {cost.run_id: cost.other for cost in costs}
    for run in runs:
        if run.run_id in other:
            yield plan.done(run.run_id, run.rep, disturbed=other[run.run_id] > BUSY)
