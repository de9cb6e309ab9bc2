"""Runs every case of tests/loop at its full size, with a canary beside it (`make loop-steps`), and shows a table of them.

Each case is a process of its own, one after the other; then those above a bar are repeated, as long as there is time.
What they found is kept in `build/loop-steps`: with the revision unchanged, an interrupted run goes on with the first case
that is not there.

Exit code 0: all cases are below the bars. 1: one is not, or failed: its log in `build/loop-steps` says why.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from loop.harness import BAR_MS  # noqa: E402
from processes.commands import execute  # noqa: E402
from processes.running import leash  # noqa: E402
from samples.made_tables import checked_out, put_between_marks  # noqa: E402

KEPT = ROOT / "build" / "loop-steps"
PAGE = ROOT / "tests" / "loop" / "steps.md"
CASE_SECONDS = 900
"""Seconds within which a case ends; it is killed by pytest otherwise."""
_NODE = re.compile(r"^(?P<node>\S+?/test_(?P<module>\w+)\.py::(?P<test>\w+)(?:\[(?P<case>[^\]]+)\])?)$")


class Case(NamedTuple):
    name: str
    node: str

    @property
    def result(self) -> Path:
        return KEPT / f"{self.name}.json"


def cases(listing: str) -> list[Case]:
    """The cases that pytest has collected; what has no name of its own has that of its test."""
    found = [match for line in listing.splitlines() if (match := _NODE.match(line)) is not None]
    return [
        Case(match["case"] or match["test"].removeprefix("test_"), match["node"])
        for match in found
        if match["module"] not in {"canary", "steps"}
    ]


def _collected() -> list[Case]:
    words = (sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests/loop")
    done = execute(words, cwd=ROOT, check=True, timeout=120)
    return cases(done.stdout)


def run(case: Case, revision: str, before: dict[str, Any] | None) -> dict[str, Any]:
    """Run one case and keep what it found, with the best of what it had found before."""
    KEPT.mkdir(parents=True, exist_ok=True)
    waiting = case.result.with_suffix(".new")
    waiting.unlink(missing_ok=True)
    settings = {
        "LEVERET_LOOP_SIZES": "full",
        "LEVERET_LOOP_RUNS": "1",
        "LEVERET_LOOP_RESULT": str(waiting),
    }
    words = [*leash(), sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    words += ["-o", f"timeout={CASE_SECONDS}", case.node]
    machine = _Machine()
    with case.result.with_suffix(".log").open("wb") as log:
        code = subprocess.run(
            words, cwd=ROOT, env=os.environ | settings, stdout=log, stderr=subprocess.STDOUT, check=False
        ).returncode
    found = json.loads(waiting.read_text(encoding="utf-8")) if waiting.exists() else {}
    kept = {
        **found,
        "case": case.name,
        "exit": code,
        "others": machine.others(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "revision": revision,
    }
    if before is not None:
        kept = best(before, kept)
    waiting.write_text(json.dumps(kept), encoding="utf-8")
    waiting.replace(case.result)
    return kept


def best(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """The shortest longest step of two runs, and the confirms of the one in which they were faster."""
    measured = [each for each in (before, after) if "milliseconds" in each]
    if len(measured) < 2:
        return measured[0] if measured else after
    step = min(measured, key=lambda each: each["milliseconds"])
    faster = min(
        measured,
        key=lambda each: (not each["is_prompt"], each["beside"]["since_sent"][1] if each["beside"] else 0.0),
    )
    own = {name: step[name] for name in ("milliseconds", "what", "exit")}
    return {**faster, **own, "runs": before["runs"] + after["runs"]}


class _Machine:
    """Share of the processors used by processes that have nothing to do with a case, since its beginning."""

    def __init__(self) -> None:
        self._began, self._busy, self._own = time.monotonic(), self._all(), self._children()

    def others(self) -> float:
        """Return the others' share of all processors; 0 where the system has no figure."""
        used = self._all() - self._busy - (self._children() - self._own)
        return round(max(0.0, used / (time.monotonic() - self._began) / (os.cpu_count() or 1)), 3)

    @staticmethod
    def _all() -> float:
        try:
            user, nice, system, _, _, *interrupts = Path("/proc/stat").read_text().split("\n")[0].split()[1:8]
        except OSError:
            return 0.0
        return sum(map(int, (user, nice, system, *interrupts))) / os.sysconf("SC_CLK_TCK")

    @staticmethod
    def _children() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime


# -- the table ----------------------------------------------------------------------------------------------------------

HEAD = (
    "case",
    "runs",
    "longest step, ms",
    "seconds",
    "confirms when idle, ms: p50, p99",
    "confirms during the case, ms: p50, p99, max",
    "since due, ms: p99",
    "sent late, ms: p99",
    "processors used by others",
    "",
)


def is_good(kept: dict[str, Any]) -> bool:
    """Return whether a case ended as it should, below the bars."""
    return kept["exit"] == 0 and kept.get("milliseconds", 0.0) <= BAR_MS and kept.get("is_prompt", True)


def row(kept: dict[str, Any]) -> tuple[str, ...]:
    if "milliseconds" not in kept:
        return (kept["case"], *[""] * (len(HEAD) - 3), f"{kept['others']:.0%}", "failed")
    beside, alone = kept["beside"], kept["alone"]
    return (
        kept["case"],
        str(kept["runs"]),
        f"{kept['milliseconds']:.0f}",
        f"{kept['seconds']:.1f}",
        _times(alone["since_sent"][:2]) if alone else "",
        _times(beside["since_sent"]) if beside else "",
        _times(beside["since_due"][1:2]) if beside else "",
        _times(beside["late"][1:2]) if beside else "",
        f"{kept['others']:.0%}",
        _verdict(kept),
    )


def _verdict(kept: dict[str, Any]) -> str:
    if kept["milliseconds"] > BAR_MS:
        return f"over: {kept['what']}"
    if not kept["is_prompt"]:
        return "over: p99"
    return "ok" if kept["exit"] == 0 else "failed"


def _times(milliseconds: Sequence[float]) -> str:
    return ", ".join(f"{value:.3g}" if value < 100 else f"{value:.0f}" for value in milliseconds)


def _summary(kept: dict[str, Any]) -> str:
    *cells, verdict = row(kept)
    return ", ".join(
        [*(f"{head}: {cell}" for head, cell in zip(HEAD[2:], cells[2:], strict=False) if cell), verdict]
    )


def table(kept: Sequence[dict[str, Any]]) -> str:
    """The table, and a line with dates, revisions and processors."""
    rows = [HEAD, ("---",) * len(HEAD), *map(row, kept)]
    dates = sorted({each["date"] for each in kept})
    revisions = ", ".join(sorted({f"`{each['revision']}`" for each in kept}))
    good = sum(map(is_good, kept))
    lines = ["| " + " | ".join(each) + " |" for each in rows]
    summary = f"{good} of {len(kept)} cases are below the bars; {' to '.join(dict.fromkeys((dates[0], dates[-1])))}, "
    summary += f"revision {revisions}, {os.cpu_count()} processors."
    return "\n".join(lines) + f"\n\n{summary}\n"


def write(page: Path, text: str) -> None:
    page.write_text(put_between_marks(page.read_text(encoding="utf-8"), "loop-steps", text), encoding="utf-8")


def kept_of(chosen: Sequence[Case]) -> Iterator[dict[str, Any]]:
    """Yield the recorded results of cases, in their order; tests that are no cases have none."""
    for case in chosen:
        if case.result.exists():
            yield json.loads(case.result.read_text(encoding="utf-8"))


def main() -> int:
    """Run what is not done yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", nargs="+", metavar="NAME", help="only these; all by default")
    parser.add_argument(
        "--runs", type=int, default=3, help="of a case above a bar at most; the best of them counts"
    )
    parser.add_argument(
        "--minutes", type=float, default=12.0, help="nothing is repeated that would not be done by then"
    )
    parser.add_argument("--again", action="store_true", help="repeat what was done at this revision")
    parser.add_argument(
        "--write-docs", action="store_true", help="write the table of all cases to tests/loop/steps.md"
    )
    options = parser.parse_args()
    everything = _collected()
    if unknown := set(options.case or ()) - {case.name for case in everything}:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    chosen = [case for case in everything if not options.case or case.name in options.case]
    revision = checked_out()
    began = time.monotonic()
    found = (
        {}
        if options.again
        else {each["case"]: each for each in kept_of(chosen) if each["revision"] == revision}
    )
    seconds: dict[str, float] = {}
    for number in range(options.runs):
        for case in chosen:
            before = found.get(case.name)
            if before is not None and (is_good(before) or not number):
                continue
            since = time.monotonic()
            if number and since + seconds.get(case.name, 0.0) > began + 60 * options.minutes:
                continue
            print(f"{case.name}: ", end="", flush=True)
            found[case.name] = run(case, revision, before)
            seconds[case.name] = time.monotonic() - since
            print(f"{_summary(found[case.name])} ({seconds[case.name]:.0f} s)", flush=True)
    print()
    print(table(list(kept_of(chosen))))
    if options.write_docs:
        write(PAGE, table(list(kept_of(everything))))
    return 0 if all(map(is_good, kept_of(chosen))) else 1


if __name__ == "__main__":
    sys.exit(main())
