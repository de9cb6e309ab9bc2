"""Runs every case against a real RabbitMQ and against this project's broker, and compares (``make conformance``).

Exit code 0: every difference is explained in explained.py or belongs to a later feature. 1: some difference is not.
2: a broker did not start.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from conformance import report  # noqa: E402
from conformance.brokers import SET_UPS, START, StartError  # noqa: E402
from conformance.cases import Case, Outcome, run  # noqa: E402
from conformance.rows import CASES  # noqa: E402

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"


def outcomes(kind: str, cases: list[Case]) -> dict[str, Outcome]:
    """Run the cases against one kind of broker, one process per set-up."""
    found = {}
    for setup in SET_UPS.values():
        chosen = [case for case in cases if case.setup == setup.name]
        if not chosen:
            continue
        broker = START[kind](setup)
        print(f"{kind}, set-up {setup.name}: {len(chosen)} cases", file=sys.stderr, flush=True)
        try:
            for case in chosen:
                found[case.id] = run(case, broker)
        finally:
            broker.stop()
    return found


def main() -> int:
    """Compare; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help="ids, or beginnings of ids; all by default")
    parser.add_argument(
        "--verbose", action="store_true", help="print the outcomes of every case, not only of differing ones"
    )
    parser.add_argument(
        "--write-docs", action="store_true", help="only write the tables in docs/compatibility.md anew"
    )
    options = parser.parse_args()
    if options.write_docs:
        DOCUMENT.write_text(report.document(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    cases = [
        c
        for c in CASES
        if not (c.outside or c.ours_only) and (not options.cases or c.id.startswith(tuple(options.cases)))
    ]
    try:
        theirs, ours = outcomes("rabbitmq", cases), outcomes("ours", cases)
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
    later = [case for case in cases if case.later]
    print(
        f"\n{len(cases)} cases of {len({c.row for c in cases} - {0})} rows and {sum(not c.row for c in cases)} sentences: "
        + ", ".join(f"{count} {name}" for name, count in tally.most_common())
        + f" ({len(later)} of later features)"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
