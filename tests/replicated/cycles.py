"""Cycles of real failures of replicated brokers (`make campaign NAME=replication-cycles`); see docs/reliability.md.

Three brokers, PostgreSQL with two standbys below them, the load and the books of the crash campaigns. Each cycle does
one or two of `nemeses` to them. What each cycle found is kept at once in `build/campaigns/replication-cycles.jsonl`: an
interrupted run goes on with the first cycle that is not there, and `--again` repeats those that failed. The number of a
cycle and the seed decide what is done in it. With `--logs 6` each machine has a node of each of six logs, and each line
has the seconds that virtual hosts of the logs which the leader of the first log had were without a confirm.

`--control` runs what must be caught: a primary that is lost with commits that nobody else has, a standby promoted that is
behind, an append of a leader that is none any more taken by a database that does not compare epochs, ids that no commit
has. `--write` puts the table of all that is kept into cycles.md.

Exit code 1: something was lost, repeated, out of order or not served again; or a control run was not caught.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from crash.moves import FEATURES  # noqa: E402
from processes.running import children  # noqa: E402
from replicated.cluster import Nodes, made_cluster  # noqa: E402
from replicated.controls import CONTROLS, program, run_control  # noqa: E402
from replicated.database import may_mount  # noqa: E402
from replicated.machines import CONNECTIONS, Machines  # noqa: E402
from replicated.nemeses import NEMESES, Nemesis, schedule  # noqa: E402
from replicated.record import table, takeovers  # noqa: E402
from replicated.trial import Trial  # noqa: E402
from samples.made_tables import checked_out, put_between_marks  # noqa: E402

RECORD = ROOT / "build" / "campaigns" / "replication-cycles.jsonl"
PAGE = Path(__file__).with_name("cycles.md")
CYCLES = 12
"""Cycles with one cluster."""
SWEEPS = 5
DISK_OCTETS = 1536 << 20
"""Size of the disk of each server of the database."""


def kept(record: Path) -> list[dict[str, Any]]:
    if not record.exists():
        return []
    return [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]


def keep(record: Path, entry: dict[str, Any]) -> None:
    record.parent.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC).strftime("%Y-%m-%d")
    with record.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"date": now, "revision": checked_out(), **entry}) + "\n")


def to_do(
    record: Path, seed: int, count: int, *, again: bool, only: str = "", alone: bool = False, logs: int = 1
) -> Iterator[tuple[int, tuple[Nemesis, ...]]]:
    """Yield the numbers of the cycles that are not done, from 0 to `count`, and what is to be done in each.

    Args:
        record: what is kept.
        seed: of the schedule.
        count: how many cycles there are in all.
        again: repeat those that failed.
        only: name of a nemesis: only cycles with it.
        alone: and with nothing else.
        logs: how many there are in the database.

    """
    last = {entry["number"]: entry for entry in kept(record) if entry.get("seed") == seed}
    for number, chosen in enumerate(islice(schedule(seed, logs), count)):
        names = [each.name for each in chosen]
        if only and (names != [only] if alone else only not in names):
            continue
        if number not in last or (again and last[number]["wrong"]):
            yield number, chosen


async def cycles(
    todo: Iterator[tuple[int, tuple[Nemesis, ...]]], seed: int, record: Path, until: float, logs: int
) -> tuple[bool, bool]:
    """Run cycles with one cluster; returns whether there may be more to do, and whether all were good."""
    try:
        with made_cluster(
            wired=True,
            program=program("small_snapshots"),
            disk_octets=DISK_OCTETS if may_mount() else 0,
            make_nodes=Nodes if logs == 1 else partial(Machines, logs=logs),
            configuration="" if logs == 1 else CONNECTIONS,
        ) as cluster:
            if isinstance(cluster.nodes, Machines):
                cluster.nodes.lay_out(cluster.database)
            trial = Trial(cluster, FEATURES)
            try:
                with _cancelled_by_sigterm() as current:
                    return await _cycles(trial, todo, seed, record, until)
            finally:  # their threads would keep the process from ending
                if not current.cancelling():
                    for each in trial.publishers:
                        await asyncio.to_thread(each.end)
    except asyncio.CancelledError:
        _end_at_once()


@contextlib.contextmanager
def _cancelled_by_sigterm() -> Iterator[asyncio.Task[Any]]:
    """Yield the current task, which SIGTERM cancels."""
    loop, current = asyncio.get_running_loop(), asyncio.current_task()
    assert current is not None
    loop.add_signal_handler(signal.SIGTERM, current.cancel)
    try:
        yield current
    finally:
        loop.remove_signal_handler(
            signal.SIGTERM
        )  # or the end of the loop does, and with it what is set here
        signal.signal(signal.SIGTERM, signal.SIG_IGN if current.cancelling() else _exit)


def _exit(*_: object) -> None:
    sys.exit(1)


def _end_at_once() -> NoReturn:
    """End with all processes that threads have begun meanwhile, without waiting for threads."""
    for _ in range(SWEEPS):  # a list that is read while others end may lack one
        for pid in children(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    os._exit(1)


async def _cycles(
    trial: Trial, todo: Iterator[tuple[int, tuple[Nemesis, ...]]], seed: int, record: Path, until: float
) -> tuple[bool, bool]:
    last: dict[str, Any] = {}
    cluster = trial.cluster
    for number, chosen in islice(todo, CYCLES):
        if not cluster.database.has_disks and any(each.name == "disk-full" for each in chosen):
            print(f"{number} needs file systems of its own: left out", flush=True)
            continue
        if last:
            keep(record, last)
        last = {"seed": seed, "number": number, **await trial.cycle(chosen, f"{seed}/{number}")}
        print(_line(last), flush=True)
        if last["wrong"] or time.monotonic() > until:
            break
    if not last:
        return False, True
    last["wrong"] += await trial.finish()
    keep(record, last)
    if last["wrong"]:
        print("\n".join(f"VIOLATION {each}" for each in last["wrong"][:20]), flush=True)
        _keep_logs(cluster.nodes, record.parent / f"replication-cycles-{seed}-{last['number']}")
    return True, not last["wrong"]


def _line(entry: dict[str, Any]) -> str:
    counts = entry["counts"]
    takeovers = ", ".join(f"{vhost} {gap} s" for vhost, gap in entry["takeovers"].items())
    return (
        f"[{entry['number']}] {' + '.join(entry['nemeses'])}: {entry['seconds']} s, gap {entry['gap']} s, "
        f"of what {entry['leader']} led: {takeovers or 'nothing'}; "
        f"{counts['confirmed']} confirmed, {counts['recovered']} recovered, {counts['lost']} lost, "
        f"{counts['unmarked']} unmarked, {counts['disordered']} out of order, {len(entry['wrong'])} wrong, "
        f"{', '.join(f'{count} {note}' for note, count in entry['notes'].items())}"
    )


def _keep_logs(nodes: Nodes, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in nodes.logs():
        (folder / f"{name.replace('/', '-')}.log").write_text(text)
    for path in (nodes.home.parent / "pg").glob("*.log"):
        shutil.copy(path, folder / path.name)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cycles", type=int, default=200, help="how many in all, with those that are kept")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no cycle after this time")
    parser.add_argument("--only", default="", choices=["", *(each.name for each in NEMESES)])
    parser.add_argument("--alone", action="store_true", help="of --only: cycles with nothing else")
    parser.add_argument("--again", action="store_true", help="repeat cycles that failed")
    parser.add_argument("--control", choices=["all", *CONTROLS], help="run what must be caught instead")
    parser.add_argument("--write", action="store_true", help="only write the table")
    parser.add_argument(
        "--logs", type=int, default=1, help="logs in the database, for which each node is one"
    )
    parser.add_argument("--record", type=Path, default=RECORD)
    arguments = parser.parse_args()
    if arguments.logs > 1 and arguments.record == RECORD:
        arguments.record = RECORD.with_stem(f"{RECORD.stem}-{arguments.logs}-logs")
    logging.disable(logging.CRITICAL)  # pika's, of each address that cannot be reached
    signal.signal(signal.SIGTERM, _exit)  # so that nothing is left running
    good = True
    if arguments.control:
        for name in CONTROLS if arguments.control == "all" else [arguments.control]:
            found = run_control(name)
            print(f"{name}: {'caught: ' + found[0][:200] if found else 'NOT CAUGHT'}", flush=True)
            keep(arguments.record, {"control": name, "wrong": found})
            good &= bool(found)
    elif not arguments.write:
        until = time.monotonic() + arguments.seconds
        todo = to_do(
            arguments.record,
            arguments.seed,
            arguments.cycles,
            again=arguments.again,
            only=arguments.only,
            alone=arguments.alone,
            logs=arguments.logs,
        )
        more = True
        while more and time.monotonic() < until:
            more, was_good = asyncio.run(
                cycles(todo, arguments.seed, arguments.record, until, arguments.logs)
            )
            good &= was_good
        if told := takeovers(kept(arguments.record)):
            print(told, flush=True)
    if arguments.write:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(
            put_between_marks(page, "replication-cycles", table(kept(arguments.record))), encoding="utf-8"
        )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
