"""Runs every case against a real RabbitMQ and against this project's broker, and compares (``make conformance``).

Exit code 0: every difference is explained in explained.py or belongs to a later feature. 1: some difference is not.
2: a broker did not start.
"""

import argparse
import difflib
import sys
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from conformance import octets, report  # noqa: E402
from conformance.brokers import SET_UPS, START, Broker, StartError  # noqa: E402
from conformance.cases import Case, Outcome, run  # noqa: E402
from conformance.rows import CASES  # noqa: E402

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"


Answers = dict[str, list[str]]


def outcomes(kind: str, cases: list[Case], scripts: list[str]) -> tuple[dict[str, Outcome], Answers]:
    """Run the cases, and the scripts that compare octets, against one kind of broker, one process per set-up."""
    found, answers = {}, {}
    for setup in SET_UPS.values():
        chosen = [case for case in cases if case.setup == setup.name]
        recorded = [name for name in scripts if octets.SCRIPTS[name][0] == setup.name]
        if not (chosen or recorded):
            continue
        broker = START[kind](setup)
        heading = (
            f"{kind}, set-up {setup.name}: {len(chosen)} cases, {len(recorded)} recorded octet for octet"
        )
        print(heading, file=sys.stderr, flush=True)
        try:
            for case in chosen:
                found[case.id] = run(case, broker)
            for name in recorded:
                answers[name] = _record(broker, name)
        finally:
            broker.stop()
    return found, answers


def _record(broker: Broker, name: str) -> list[str]:
    try:
        return octets.record(broker, name)
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]


def same_octets(theirs: Answers, ours: Answers) -> bool:
    """Return whether both brokers answered as the record has it; prints what differs."""
    recorded = octets.read()
    good = True
    for name in theirs:
        for kind, answers in (("RabbitMQ", theirs), ("ours", ours)):
            lines = difflib.unified_diff(recorded[name], answers[name], "the record", kind, lineterm="", n=0)
            for line in lines:
                good = False
                print(f"octets.{name}: {line}")
    print(f"{len(theirs)} scripts, {sum(map(len, theirs.values()))} frames compared octet for octet")
    return good


def main() -> int:
    """Compare the brokers and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help="ids, or beginnings of ids; all by default")
    parser.add_argument(
        "--verbose", action="store_true", help="print the outcomes of every case, not only of differing ones"
    )
    parser.add_argument(
        "--write-docs", action="store_true", help="only write the tables in docs/compatibility.md anew"
    )
    parser.add_argument(
        "--write-octets", action="store_true", help="only record a RabbitMQ's answers in octets.txt anew"
    )
    options = parser.parse_args()
    if options.write_docs:
        DOCUMENT.write_text(report.document(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    if options.write_octets:
        octets.write(outcomes("rabbitmq", [], list(octets.SCRIPTS))[1])
        return 0
    scripts = [
        name
        for name in octets.SCRIPTS
        if not options.cases or f"octets.{name}".startswith(tuple(options.cases))
    ]
    cases = [
        c
        for c in CASES
        if not (c.outside or c.ours_only) and (not options.cases or c.id.startswith(tuple(options.cases)))
    ]
    try:
        theirs, their_octets = outcomes("rabbitmq", cases, scripts)
        ours, our_octets = outcomes("ours", cases, scripts)
    except StartError as error:
        print(error, file=sys.stderr)
        return 2
    good = True
    tally: Counter[str] = Counter()
    for case in cases:
        mine, other = ours[case.id], theirs[case.id]
        fine, verdict = report.compared(case, mine, other)
        good = good and fine
        tally[verdict.partition(" ")[0].rstrip(":")] += 1
        print(f"{case.id:28} {verdict}")
        if options.verbose or not fine:
            print(f"    {case.statement}\n    ours:     {mine}\n    RabbitMQ: {other}")
    print()
    good = same_octets(their_octets, our_octets) and good
    later = [case for case in cases if case.later]
    print(
        f"\n{len(cases)} cases of {len({c.row for c in cases} - {0})} rows and {sum(not c.row for c in cases)} sentences: "
        + ", ".join(f"{count} {name}" for name, count in tally.most_common())
        + f" ({len(later)} of later features)"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
