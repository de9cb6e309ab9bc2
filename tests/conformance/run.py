"""Runs every case against a real RabbitMQ and against this project's broker, and compares (``make conformance``).

Exit code 0: both answer as is recorded, and every difference is explained in explained.toml. 1: something differs.
2: a broker did not start.
"""

import argparse
import difflib
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from conformance import octets, peers, report  # noqa: E402
from conformance.brokers import SET_UPS, Broker, SetUp, StartError, start_ours, start_rabbitmq  # noqa: E402
from conformance.cases import Case, run  # noqa: E402
from conformance.features import changed  # noqa: E402
from conformance.peers import PEERS, Peer  # noqa: E402
from conformance.rows import CASES  # noqa: E402

ALL_CASES = Path(__file__).with_name("cases.md")


Answers = dict[str, list[str]]
Start = Callable[[SetUp], Broker]


def outcomes(start: Start, cases: list[Case], scripts: list[str]) -> tuple[dict[str, str], Answers]:
    """Run the cases, and the scripts that compare octets, against a broker, one process per set-up."""
    found, answers = {}, {}
    for setup in SET_UPS.values():
        chosen = [case for case in cases if case.setup == setup.name]
        recorded = [name for name in scripts if octets.SCRIPTS[name][0] == setup.name]
        if not (chosen or recorded):
            continue
        broker = start(setup)
        heading = f"{broker.kind}, set-up {setup.name}: {len(chosen)} cases, {len(recorded)} recorded octet for octet"
        print(heading, file=sys.stderr, flush=True)
        try:
            for case in chosen:
                found[case.id] = report.shown(case, run(case, broker))
            for name in recorded:
                answers[name] = octets.record(broker, name)
        finally:
            broker.stop()
    return found, answers


def same_octets(peer: Peer, theirs: Answers, ours: Answers) -> bool:
    """Return whether both brokers answered as the record has it; prints what differs."""
    recorded = octets.read(peer)
    good = True
    for name in theirs:
        for kind, wanted, answers in (
            ("RabbitMQ", recorded[name], theirs),
            ("ours", octets.expected(peer, name), ours),
        ):
            for line in difflib.unified_diff(wanted, answers[name], "the record", kind, lineterm="", n=0):
                good = False
                print(f"octets.{name}: {line}")
    print(f"{len(theirs)} scripts, {sum(map(len, theirs.values()))} frames compared octet for octet")
    return good


def ask_again(peer: Peer, cases: list[Case], theirs: dict[str, str], ours: dict[str, str]) -> None:
    """Ask about the cases that are not as they should be once more, alone: on a busy machine a time may be too short."""
    record = peers.recorded()[peer.name]
    others = [case for case in cases if theirs[case.id] != record.get(case.id)]
    theirs |= outcomes(lambda setup: start_rabbitmq(setup, peer), others, [])[0]
    mine = [case for case in cases if not report.compared(case, peer, record, ours[case.id])[0]]
    ours |= outcomes(lambda setup: start_ours(setup, peer.profile), mine, [])[0]


def same_outcomes(
    peer: Peer, cases: list[Case], theirs: dict[str, str], ours: dict[str, str], *, verbose: bool
) -> bool:
    """Return whether both brokers' outcomes are as they should be; prints the verdict of each case."""
    good, record = True, peers.recorded()[peer.name]
    tally: Counter[str] = Counter()
    for case in cases:
        mine, other = ours[case.id], theirs[case.id]
        fine, verdict = report.compared(case, peer, record, mine, other)
        good = good and fine
        tally[verdict.partition(" ")[0].rstrip(":")] += 1
        print(f"{case.id:28} {verdict}")
        if verbose or not fine:
            print(
                f"    {case.statement}\n    written:  {case.expect}\n    ours:     {mine}\n    RabbitMQ: {other}"
            )
    print(
        f"\n{len(cases)} cases of {len({c.row for c in cases} - {0})} rows and {sum(not c.row for c in cases)} sentences: "
        + ", ".join(f"{count} {name}" for name, count in tally.most_common())
    )
    return good


def write(peer: Peer, found: dict[str, str], answers: Answers) -> None:
    """Record what a peer answered, in place of what was recorded of the same cases and scripts."""
    record = peers.recorded()
    record[peer.name] |= found
    peers.write(record, [case.id for case in CASES])
    octets.write(peer, octets.read(peer) | answers)


def main() -> int:
    """Compare the brokers and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help="ids, or beginnings of ids; all by default")
    parser.add_argument("--peer", choices=PEERS, default="3.10", help="the release of RabbitMQ")
    parser.add_argument(
        "--verbose", action="store_true", help="print the outcomes of every case, not only of differing ones"
    )
    parser.add_argument(
        "--changes", action="store_true", help="only what 4.x has changed, with the outcomes of every case"
    )
    parser.add_argument("--write-docs", action="store_true", help="only write cases.md")
    parser.add_argument("--write", action="store_true", help="only record a RabbitMQ's answers anew")
    parser.add_argument("--new", action="store_true", help="only what is not recorded yet")
    parser.add_argument("--if-there", action="store_true", help="succeed where that RabbitMQ cannot be had")
    options = parser.parse_args()
    if options.write_docs:
        ALL_CASES.write_text(report.all_cases(), encoding="utf-8")
        return 0
    peer = PEERS[options.peer]
    if options.if_there and peer.missing:
        print(f"RabbitMQ {peer.name} is left out: {peer.missing}")
        return 0
    begins = tuple(options.cases) or ("",)
    scripts = [name for name in octets.SCRIPTS if f"octets.{name}".startswith(begins)]
    cases = [case for case in CASES if case.asked_of(peer.name) and case.id.startswith(begins)]
    if options.changes:
        scripts, cases = [], [case for case in changed(cases) if case in cases]
    if options.new:
        scripts = [name for name in scripts if name not in octets.read(peer)]
        cases = [case for case in cases if case.id not in peers.recorded()[peer.name]]
    try:
        theirs, their_octets = outcomes(lambda setup: start_rabbitmq(setup, peer), cases, scripts)
        if options.write:
            write(peer, theirs, their_octets)
            return 0
        ours, our_octets = outcomes(lambda setup: start_ours(setup, peer.profile), cases, scripts)
        ask_again(peer, cases, theirs, ours)
    except StartError as error:
        print(error, file=sys.stderr)
        return 2
    good = same_outcomes(peer, cases, theirs, ours, verbose=options.verbose or options.changes)
    return 0 if same_octets(peer, their_octets, our_octets) and good else 1


if __name__ == "__main__":
    sys.exit(main())
