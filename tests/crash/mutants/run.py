"""Runs each planted bug and says whether a campaign catches it (`make campaign NAME=mutants`).

A mutant is a module beside this one that changes the broker when it is imported. Only the command line made here
does so: `python -c "import <mutant>; from leveret.broker.cli.main import main; main()"`. The product has no switch for it.
"""

import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import uvloop
from crash.answers import answers
from crash.consumer_acks import consumer_acks
from crash.faults import faults
from crash.kills import EVERY, LITTLE, Totals, kills
from crash.loopdisk import why_no_small_disks
from crash.moves import FEATURES
from crash.pipeline import ONCE
from crash.pipelines import FULL, KILL, SLOW, pipelines
from crash.points import purges
from crash.promises import LIGHT, MODES
from crash.tracer import why_not as why_not_traced
from crash.transfers import transfers

HERE = Path(__file__).parent
KILLS = 40
"""Kills at most: some mutants need luck to be caught by a single one."""
SEED = 5
CRASHED = "O8"
"""The ledger's oracle for a broker that logs a traceback: then it is the mutant that does not work."""


def program(mutant: str) -> tuple[str, ...]:
    """Return the interpreter's arguments for a mutant."""
    return (
        "-c",
        f"import sys; sys.path.append({str(HERE)!r}); import {mutant}; from leveret.broker.cli.main import main; main()",
    )


def _killed(
    home: Path,
    mutant: str,
    moving: Collection[str] = (),
    variants: Sequence[tuple[str, Sequence[str]]] = EVERY,
) -> Totals:
    return uvloop.run(
        kills(
            home,
            KILLS,
            SEED,
            say=str,
            program=program(mutant),
            enough=1,
            stall=2.0,
            allowance=10.0,
            moving=moving,
            variants=variants,
        )
    )


def _little(home: Path, mutant: str) -> Totals:
    return _killed(home, mutant, variants=[(LITTLE, ())])


def _moved(home: Path, mutant: str) -> Totals:
    return _killed(home, mutant, FEATURES)


def _answered(home: Path, mutant: str, mode: str = MODES[0], count: int = KILLS) -> Totals:
    return uvloop.run(
        consumer_acks(
            home,
            count,
            SEED,
            mode,
            say=str,
            program=program(mutant),
            enough=1,
            stall=2.0,
            allowance=10.0,
        )
    )


def _answered_lightly(home: Path, mutant: str) -> Totals:
    return _answered(home, mutant, LIGHT)


def _answered_in_the_end(home: Path, mutant: str) -> Totals:
    return _answered(home, mutant, count=1)


def _purged(home: Path, mutant: str) -> Totals:
    return uvloop.run(purges(home, 5, program=program(mutant)))


def _changed(home: Path, mutant: str) -> Totals:
    return answers(home, 10, SEED, say=str, program=program(mutant), allowance=10.0, enough=1)


def _carried(home: Path, mutant: str) -> Totals:
    return uvloop.run(
        transfers(
            home,
            KILLS,
            SEED,
            say=str,
            program=program(mutant),
            enough=1,
            stall=2.0,
            allowance=10.0,
            drain_every=1,
        )
    )


def _filled(home: Path, mutant: str) -> Totals:
    return uvloop.run(faults(home, 1, SEED, kinds=["full"], say=str, enough=1, program=program(mutant)))


def _transacted(home: Path, mutant: str, kind: str = KILL, huge_every: int = 2, **options: Any) -> Totals:
    return uvloop.run(
        pipelines(
            home,
            KILLS,
            SEED,
            kinds=[kind],
            say=str,
            enough=1,
            huge_every=huge_every,
            program=program(mutant),
            allowance=10.0,
            **options,
        )
    )


def _repeated(home: Path, mutant: str) -> Totals:
    return _transacted(home, mutant, huge_every=0, shapes=(ONCE,))


def _transacted_slowly(home: Path, mutant: str) -> Totals:
    return _transacted(home, mutant, SLOW, 0)


def _transacted_without_room(home: Path, mutant: str) -> Totals:
    return _transacted(home, mutant, FULL, 0)


MUTANTS: dict[str, tuple[Callable[[Path, str], Totals], Callable[[], str]]] = {
    "confirm_before_commit": (_killed, str),
    "delete_before_put": (_killed, str),
    "reused_position": (_killed, str),
    "body_dropped": (_killed, str),
    "multiple_over_open": (_killed, str),
    "requeue_at_tail": (_killed, str),
    "not_redelivered": (_killed, str),
    "ack_lost_on_close": (_killed, str),
    "purge_after_ok": (_purged, str),
    "log_ignored": (_little, str),
    "source_forgotten_early": (_moved, str),
    "confirm_with_source": (_moved, str),
    "delay_forgotten_early": (_moved, str),
    "delay_cut_short": (_moved, str),
    "expiry_forgotten": (_moved, str),
    "confirm_at_delivery": (_answered, str),
    "first_copy_confirms": (_answered, str),
    "requeue_forgets": (_answered_in_the_end, str),
    "lost_is_confirmed": (_answered_lightly, str),
    "promises_unwritten": (_answered, str),
    "answer_before_disk": (_changed, str),
    "moved_too_late": (_carried, str),
    "deleted_with_moving": (_carried, str),
    "retry_forgets": (_carried, str),
    "transaction_cut": (_transacted, str),
    "transaction_not_joined": (_transacted_slowly, why_not_traced),
    "transaction_not_moved": (_transacted_without_room, why_no_small_disks),
    "id_unwritten": (_repeated, str),
    "id_lost_when_rewritten": (_repeated, str),
    "id_of_others": (_repeated, str),
    "id_of_another_scope": (_repeated, str),
    "repeat_confirmed_early": (_repeated, str),
    "open_reader": (_filled, why_no_small_disks),
}
"""The campaign that has to catch each mutant, and a function that returns why it cannot be run here."""


def run_one(mutant: str) -> Totals:
    with tempfile.TemporaryDirectory(prefix="leveret-mutant-") as home:
        return MUTANTS[mutant][0](Path(home), mutant)


def run_all(only: str | None = None) -> int:
    """Run all, or one; 0 if each was caught."""
    missed = 0
    for mutant, (_, why_not) in MUTANTS.items():
        if only not in {None, mutant}:
            continue
        if reason := why_not():
            print(f"{mutant}: skipped: {reason}", flush=True)
            continue
        began = time.monotonic()
        totals = run_one(mutant)
        by = [violation for violation in totals.violations if violation.oracle != CRASHED]
        caught = bool(by and totals.cycles)  # without a cycle it has not even started
        missed += not caught
        what = f"caught after {totals.cycles} cycles by {by[0]}" if caught else "NOT caught"
        print(f"{mutant}: {what} ({time.monotonic() - began:.1f} s)", flush=True)
    print(f"{missed} mutants not caught", flush=True)
    return 1 if missed else 0
