"""Attacks the broker with mutated sessions and reports what it found (``make campaign NAME=fuzz``, ``make campaign NAME=fuzz N=2000000``).

Exit code 0: nothing found. 1: something is wrong; it is printed with the seed and case number that
``--replay`` takes. 2: the broker did not start.
"""

import argparse
import re
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from conformance.codec import SPECS  # noqa: E402
from fuzz.attacked import Attacked, StartError  # noqa: E402
from fuzz.grammar import LOOSE_VHOST, STRICT_VHOST  # noqa: E402
from fuzz.sessions import VALID_EVERY, Case, Sessions  # noqa: E402

CASES_PER_BROKER = 50_000
"""A fresh broker after so many: what mutated names have declared piles up in it."""
COVERAGE_FROM = 2000
"""Shorter runs need not reach every method."""
MANY_FAILURES = 10
WATCH_SECONDS = 0.25
_PORT = re.compile(r"127\.0\.0\.1:(\d+) ->")

BESIDES_HANDLERS = (
    "basic.publish",
    "connection.start-ok",
    "connection.tune-ok",
    "connection.open",
    "connection.close",
    "connection.update-secret",
    "channel.open",
    "channel.close",
    "channel.close-ok",
)
"""The methods that have no entry in `broker.methods.HANDLERS`."""


@dataclass
class Result:
    seed: int
    problems: list[str] = field(default_factory=list)
    tally: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    returned: Counter[str] = field(default_factory=Counter)
    handlers: list[str] = field(default_factory=list)
    stall: float = 0.0
    worst: float = 0.0
    rounds: int = 0
    longest_read: float = 0.0
    longest_reader: int | None = None
    longest_collection: float = 0.0
    collected: int = 0
    highest_rss: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def mutated(self) -> int:
        return self.tally["sessions"] - self.tally["valid"]

    def check_coverage(self) -> None:
        """Every method must have succeeded in valid sessions and been reached in mutated ones."""
        for name in (*self.handlers, *BESIDES_HANDLERS):
            if not self.returned[f"{STRICT_VHOST} {name}"]:
                self.problems.append(f"coverage: {name} was not carried out in a valid session")
            if not self.reached[f"{LOOSE_VHOST} {name}"]:
                self.problems.append(f"coverage: {name} was not reached in a mutated session")
        if self.tally["mutated after channel.open"] * 2 < self.mutated:
            self.problems.append("coverage: less than half of the sessions were mutated after channel.open")

    def lines(self) -> Iterator[str]:
        tally = self.tally
        yield (
            f"seed {self.seed}: {self.mutated} mutated sessions ({tally['mutated after channel.open']} after "
            f"channel.open, {tally['mutations']} mutations) and {tally['valid']} valid ones in {self.seconds:.1f} s"
        )
        endings = ("graceful", "half-close", "abort-sent", "abort-amid", "abort-reply", "deaf")
        yield "endings: " + ", ".join(f"{tally[name]} {name}" for name in endings)
        closes = sorted(name for name in tally if name.startswith("connection.close "))
        yield "closes seen: " + ", ".join(f"{tally[name]} with {name.split()[1]}" for name in closes)
        yield f"{len(self.handlers)} handlers and {len(BESIDES_HANDLERS)} other methods:"
        yield f"  {'method':26} {'valid: done':>12} {'mutated: done':>14} {'reached':>9}"
        for name in (*self.handlers, *BESIDES_HANDLERS):
            valid = self.returned[f"{STRICT_VHOST} {name}"]
            done, reached = self.returned[f"{LOOSE_VHOST} {name}"], self.reached[f"{LOOSE_VHOST} {name}"]
            yield f"  {name:26} {valid:12} {done:14} {reached:9}"
        yield (
            f"canary: {self.rounds} round trips, longest {self.worst * 1000:.1f} ms, "
            f"of which the broker's {self.stall * 1000:.1f} ms"
        )
        yield (
            f"broker: longest read {self.longest_read * 1000:.1f} ms of CPU (case {self.longest_reader}), "
            f"RSS at most {self.highest_rss >> 20} MiB"
        )
        yield (
            f"cycle collector: longest pause {self.longest_collection * 1000:.1f} ms of CPU, "
            f"{self.collected} objects freed"
        )
        yield "in memory at the end: " + ", ".join(f"{count} {name}" for name, count in self.kept.items())
        yield from (f"PROBLEM: {problem}" for problem in self.problems)
        yield f"{len(self.problems)} problems"


def _cases(seed: int, first: int, last: int) -> Iterator[Case]:
    for number in range(first, last):
        yield Case(seed, number)
        if number % VALID_EVERY == 0:
            yield Case(seed, -1 - number)


def attack(
    seed: int, cases: int, *, first: int = 0, keep: Path | None = None, concurrency: int = 48
) -> Result:
    """Run the cases from `first` on; raises StartError if the broker does not start."""
    result = Result(seed)
    start = time.monotonic()
    for begin in range(first, first + cases, CASES_PER_BROKER):
        _attack_one(result, begin, min(begin + CASES_PER_BROKER, first + cases), keep, concurrency)
        if result.problems:
            break
    result.seconds = time.monotonic() - start
    if cases >= COVERAGE_FROM and not result.problems:
        result.check_coverage()
    return result


def _attack_one(result: Result, first: int, last: int, keep: Path | None, concurrency: int) -> None:
    attacked = Attacked(keep)
    try:
        sessions = Sessions(attacked.port, concurrency)
        problems: list[str] = []
        look_at = time.monotonic() + WATCH_SECONDS
        try:
            for _ in sessions.run(_cases(result.seed, first, last)):
                if time.monotonic() >= look_at or sessions.failures:
                    look_at = time.monotonic() + WATCH_SECONDS
                    problems += attacked.watch()
                    if problems or len(sessions.failures) >= MANY_FAILURES:
                        break
        except ConnectionError as error:
            problems += [f"the broker takes no connection: {error}"]
        problems += attacked.finish()
        problems += [str(failure) for failure in sessions.failures]
        result.problems += [_with_case(problem, result.seed, sessions.cases_of_ports) for problem in problems]
        result.tally += sessions.tally
        result.reached += Counter(attacked.report.get("reached", {}))
        result.returned += Counter(attacked.report.get("returned", {}))
        result.kept |= Counter(attacked.report.get("kept", {}))
        result.handlers = attacked.report.get("handlers", [])
        if attacked.report.get("longest_read", 0.0) > result.longest_read:
            result.longest_read = attacked.report["longest_read"]
            reader = _PORT.search(attacked.report["longest_reader"])
            result.longest_reader = sessions.cases_of_ports.get(int(reader[1])) if reader else None
        result.longest_collection = max(
            result.longest_collection, attacked.report.get("longest_collection", 0.0)
        )
        result.collected += attacked.report.get("collected", 0)
        result.stall = max(result.stall, attacked.seen.get("stall", 0.0))
        result.worst = max(result.worst, attacked.seen.get("worst", 0.0))
        result.rounds += attacked.seen.get("rounds", 0)
        result.highest_rss = max(result.highest_rss, attacked.highest_rss)
    finally:
        attacked.kill()


def _with_case(problem: str, seed: int, cases_of_ports: dict[int, int]) -> str:
    """Name the case that a log line is about."""
    found = _PORT.search(problem)
    if found and int(found[1]) in cases_of_ports:
        return f"seed {seed}, case {cases_of_ports[int(found[1])]}: {problem}"
    return problem


def replay(seed: int, number: int, keep: Path | None) -> int:
    """Run one case alone and show all of it."""
    case = Case(seed, number)
    print(f"seed {seed}, case {number}: ends {case.ending}, mutations {case.mutations}")
    for frame in case.script.frames:
        print("  >", _shown(frame))
    print(f"  in {len(case.chunks)} writes of {[len(chunk) for chunk in case.chunks]} octets")
    attacked = Attacked(keep)
    try:
        sessions = Sessions(attacked.port)
        for _ in sessions.run(iter([case])):
            pass
        problems = [*attacked.finish(), *map(str, sessions.failures)]
        print((attacked.home / "broker.log").read_text(errors="replace"), end="")
    finally:
        attacked.kill()
    for problem in problems:
        print("PROBLEM:", problem)
    print(f"{len(problems)} problems")
    return 1 if problems else 0


def _shown(frame: bytes) -> str:
    if len(frame) < 8:
        return repr(frame)
    kind, number, size = struct.unpack_from(">BHI", frame)
    spec = SPECS.get(struct.unpack_from(">HH", frame, 7)) if kind == 1 and len(frame) >= 11 else None
    shown = repr(frame[7:207]) + ("..." if len(frame) > 207 else "")
    return f"type {kind}, channel {number}, {size} octets, {spec.name if spec else ''} {shown}"


def main() -> int:
    """Run the fuzzer and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000, help="mutated sessions to run")
    parser.add_argument(
        "--seed", type=int, default=1, help="of all choices; the same seed makes the same sessions"
    )
    parser.add_argument("--first", type=int, default=0, metavar="CASE", help="number of the first case")
    parser.add_argument("--replay", type=int, metavar="CASE", help="run this case alone and show all of it")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the broker's log and report there")
    parser.add_argument("--concurrency", type=int, default=48, help="sessions at once")
    options = parser.parse_args()
    try:
        if options.replay is not None:
            return replay(options.seed, options.replay, options.keep)
        result = attack(
            options.seed,
            options.cases,
            first=options.first,
            keep=options.keep,
            concurrency=options.concurrency,
        )
    except StartError as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(result.lines()))
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main())
