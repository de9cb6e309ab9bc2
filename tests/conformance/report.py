"""Tables: of all cases and their differences (cases.md), of a comparison for the terminal."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from conformance import peers
from conformance.cases import Case, Outcome
from conformance.explained import EXPLAINED, explanation
from conformance.features import CHANGES, FEATURES
from conformance.peers import OF_MACHINE, PEERS, Peer
from conformance.rows import CASES, LAST_ROW, NOT_APPLICABLE


def _cell(text: str) -> str:
    text = text.replace("{q}", "q").replace("{x}", "x")  # names of the case's own queue and exchange
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").split())


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    return fence + " ".join(text.replace("|", "\\|").split()) + fence


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def _expected(outcome: Outcome) -> str:
    if outcome.level == "ok":
        return "works"
    if outcome.level == "socket":
        return "socket closed, no method"
    return f"{outcome.level}, {outcome.code}"


def _status(case: Case, peer: Peer, record: Mapping[str, str]) -> str:
    if case.outside:
        return "needs another interface; unit test"
    if not case.asked_of(peer.name):
        return "Leveret only, with a switch" if case.setup == "switched" else "Leveret only"
    same = expected(case, peer, record) == record.get(case.id)
    return "same" if same else f"explained ({number(case.id, peer)})"


def number(ident: str, peer: Peer) -> int:
    """Return the number of the row that explains a case's difference from a peer; 0 if none does."""
    found = explanation(ident, peer.name)
    return EXPLAINED.index(found) + 1 if found else 0


def _statuses(cases: Iterable[Case]) -> list[str]:
    """Return a cell for each peer: how cases are compared with it."""
    recorded, cells = peers.recorded(), []
    for name, peer in PEERS.items():
        cells.append(", ".join(dict.fromkeys(_status(case, peer, recorded[name]) for case in cases)))
    return cells


_HEADS = tuple(f"as RabbitMQ {peer.version}" for peer in PEERS.values())


_HEADING = """\
# Cases of conformance

Written by `make docs`. A row of the first table is about one or several cases and has the statement of the first; `q` and `x` are a queue
and an exchange of that case. The outcome is Leveret's without a profile. *As RabbitMQ 3.10.8*: `same` means that it has the same outcome, including
the reply text; *as RabbitMQ 4.3.6* says it of Leveret with the profile 4.3. `explained (n)` means that they differ as row n of the last
table says; cases with `Leveret only` are not run against that release. The user `limited` has permissions for names that
begin with `own`; `reader` may configure these and read all names, `writer` may configure these and write to all names.
"""


_CHANGES_HEADING = """\
## Changes from 3.13 to 4.3

What RabbitMQ 4 has changed that a client notices, what each release answers, and what Leveret answers with the profile 4.3. `make conformance PEER=4.3
ARGS=--changes` asks a running 4.3.6 and Leveret these questions alone.
"""


def differing(peer: Peer) -> list[Case]:
    """Return the cases that a peer was asked and that end otherwise here."""
    record = peers.recorded()[peer.name]
    asked = [case for case in CASES if case.asked_of(peer.name)]
    return [case for case in asked if expected(case, peer, record) != record.get(case.id)]


def same(peer: Peer) -> tuple[int, int]:
    """Return the number of cases with the same outcome as a peer, and of those that it was asked."""
    asked = sum(case.asked_of(peer.name) for case in CASES)
    return asked - len(differing(peer)), asked


def all_cases() -> str:
    """Return the tables of all cases, with what each release of RabbitMQ does."""
    by_row: dict[int, list[Case]] = defaultdict(list)
    for case in CASES:
        by_row[case.row].append(case)
    counts = (f"{same(peer)[0]:,} of {same(peer)[1]:,} of RabbitMQ {peer.version}" for peer in PEERS.values())
    parts = [
        _HEADING,
        f"The same are {' and '.join(counts)}.\n",
        "## The 111 error situations\n",
        _table(
            ("row", "situation (of the row's first case)", "outcome", "cases", *_HEADS),
            [_row(number, by_row[number]) for number in range(1, LAST_ROW + 1)],
        ),
    ]
    parts.append("## Further cases\n")
    parts.append(
        _table(
            ("case", "rule or situation", "outcome", *_HEADS),
            [(f"`{c.id}`", _cell(c.statement), _expected(c.expect), *_statuses([c])) for c in by_row[0]],
        )
    )
    parts.append("## Cases by feature\n")
    for heading, features in FEATURES.items():
        rows = []
        for feature in features:
            cases = feature.covered(CASES)
            patterns = ", ".join(_code(pattern) for pattern in feature.cases)
            rows.append((feature.name, patterns, str(len(cases) or ""), *_statuses(cases), feature.note))
        parts.append(_table((heading.lower(), "which", "cases", *_HEADS, "note"), rows))
    parts.append(_CHANGES_HEADING)
    parts.append(_changes())
    parts.append("## Explained differences\n\nThese cases differ from a release of RabbitMQ on purpose.\n")
    parts.append(_differences())
    return "\n".join(parts)


def answer(case: Case, text: str) -> str:
    """Return the text of an outcome in full: that of the record, or of the case for `=`."""
    return str(case.expect) if text == "=" else text


def _changes() -> str:
    """Return what each release answers to the cases about changes, and Leveret with the profile 4.3."""
    rows = []
    peer, recorded = PEERS["4.3"], peers.recorded()
    different = {case.id for case in differing(peer)}
    for change in CHANGES:
        for case in change.covered(CASES):
            answers = [
                _code(answer(case, recorded[name][case.id])) if case.id in recorded[name] else ""
                for name in PEERS
            ]
            ours = "the same"
            if case.id in different:
                ours = f"{_code(str(case.expect))} ({number(case.id, peer)})"
            rows.append((change.name, f"`{case.id}`", _cell(case.statement), *answers, ours))
    heads = ("change", "case", "asked", *(f"RabbitMQ {each.version}" for each in PEERS.values()))
    return _table((*heads, "Leveret, profile 4.3"), rows)


def _differences() -> str:
    return _table(
        ("no.", "cases", "of", "RabbitMQ", "reason", "source"),
        [
            (
                str(n),
                ", ".join(f"`{i}`" for i in e.cases),
                ", ".join(PEERS[name].version for name in e.of),
                *map(_cell, (e.what, e.reason, e.source)),
            )
            for n, e in enumerate(EXPLAINED, 1)
        ],
    )


def _row(row: int, cases: list[Case]) -> tuple[str, ...]:
    if row in NOT_APPLICABLE:
        return (str(row), "not applicable: " + _cell(NOT_APPLICABLE[row]), "", "", *[""] * len(PEERS))
    outcomes = dict.fromkeys(_expected(case.expect) for case in cases)
    return (str(row), _cell(cases[0].statement), " / ".join(outcomes), str(len(cases)), *_statuses(cases))


def shown(case: Case, outcome: Outcome) -> str:
    """The text of an outcome in the record: a sign for the one that is written in the case."""
    return "=" if str(outcome) == str(case.expect) else str(outcome)


def expected(case: Case, peer: Peer, record: Mapping[str, str]) -> str:
    """The text of our outcome of a case in the profile of a peer, when that peer has this record."""
    return "=" if peer is OF_MACHINE or explanation(case.id, peer.name) else record.get(case.id, "=")


def compared(
    case: Case, peer: Peer, record: Mapping[str, str], ours: str, theirs: str | None = None
) -> tuple[bool, str]:
    """Return whether our outcome, and that of a peer if it was asked, are as they should be, and the verdict in words.

    A peer may have our outcome where a difference is explained: some depend on its speed.
    """
    known, good = record.get(case.id), expected(case, peer, record)
    if theirs not in (None, known, good):
        return False, f"DIFFERS from the record: {known}"
    if ours != good:
        return False, f"DIFFERS from {good}"
    if known in (None, ours):
        return True, "same" if known else "not asked"
    return bool(explanation(case.id, peer.name)), f"explained ({number(case.id, peer)})"
