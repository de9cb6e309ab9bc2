"""Tables: of the data for docs/compatibility.md, of a comparison for the terminal."""

from collections import defaultdict

from conformance.cases import Case, Outcome
from conformance.explained import EXPLAINED, explanation
from conformance.features import FEATURES
from conformance.rows import CASES, LAST_ROW, NOT_APPLICABLE
from samples.made_tables import put_between_marks


def document(text: str) -> str:
    """Return `text` with the part between the marks generated from the data."""
    return put_between_marks(text, "generated", _generated())


def _cell(text: str) -> str:
    text = text.replace("{q}", "q").replace("{x}", "x")  # names of the case's own queue and exchange
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").split())


def _code(text: str) -> str:
    return "`" + " ".join(text.replace("|", "\\|").split()) + "`"


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def _expected(outcome: Outcome) -> str:
    if outcome.level == "ok":
        return "works"
    if outcome.level == "socket":
        return "socket closed, no method"
    return f"{outcome.level}, {outcome.code}"


def _status(case: Case) -> str:
    if case.later:
        return f"later: {case.later}"
    if case.outside:
        return "needs another interface; unit test"
    if case.ours_only:
        return "Leveret only, with a switch" if case.setup == "switched" else "Leveret only"
    found = explanation(case.id)
    return f"explained ({EXPLAINED.index(found) + 1})" if found else "same"


def _generated() -> str:
    parts = ["### The 111 error situations\n"]
    by_row: dict[int, list[Case]] = defaultdict(list)
    for case in CASES:
        by_row[case.row].append(case)
    rows = []
    for number in range(1, LAST_ROW + 1):
        if number in NOT_APPLICABLE:
            rows.append((str(number), "not applicable: " + _cell(NOT_APPLICABLE[number]), "", ""))
            continue
        cases = by_row[number]
        statuses = dict.fromkeys(_status(case) for case in cases)
        outcomes = dict.fromkeys(_expected(case.expect) for case in cases)
        rows.append(
            (
                str(number),
                _cell(cases[0].statement),
                " / ".join(outcomes),
                ", ".join(statuses) + f" ({len(cases)})",
            )
        )
    parts.append(
        _table(
            ("row", "situation (of the row's first case)", "outcome", "compared with RabbitMQ (cases)"), rows
        )
    )
    parts.append("### Further cases\n")
    parts.append(
        _table(
            ("case", "rule or situation", "outcome", "compared with RabbitMQ"),
            [(f"`{c.id}`", _cell(c.statement), _expected(c.expect), _status(c)) for c in by_row[0]],
        )
    )
    parts.append("### Cases by feature\n")
    for heading, features in FEATURES.items():
        rows = []
        for feature in features:
            cases = feature.covered(CASES)
            statuses = dict.fromkeys(_status(case) for case in cases)
            patterns = ", ".join(_code(pattern) for pattern in feature.cases)
            compared_as = f"{len(cases)}: " + ", ".join(statuses) if cases else ""
            rows.append((feature.name, patterns, compared_as, feature.note))
        parts.append(_table((heading.lower(), "cases", "compared with RabbitMQ", "note"), rows))
    parts.append("### Explained differences from RabbitMQ 3.10.8\n")
    parts.append(
        _table(
            ("no.", "cases", "RabbitMQ 3.10.8", "reason", "source"),
            [
                (
                    str(n),
                    ", ".join(f"`{i}`" for i in e.cases),
                    _cell(e.what),
                    _cell(e.reason),
                    _cell(e.source),
                )
                for n, e in enumerate(EXPLAINED, 1)
            ],
        )
    )
    later: dict[str, list[str]] = defaultdict(list)
    for case in CASES:
        if case.later:
            later[case.later].append(f"`{case.id}`")
    if later:
        parts.append("### Expected later\n")
        parts.append(
            _table(
                ("subject", "cases"), [(subject, ", ".join(ids)) for subject, ids in sorted(later.items())]
            )
        )
    return "\n".join(parts)


def compared(case: Case, ours: Outcome, theirs: Outcome) -> tuple[bool, str]:
    """Return whether a pair of outcomes is as it should be, and the verdict in words."""
    if ours == theirs:
        return True, "same"
    if case.later:
        return True, f"later: {case.later}"
    found = explanation(case.id)
    if found and ours == case.expect and found.theirs(ours) == theirs:
        return True, f"explained ({EXPLAINED.index(found) + 1})"
    differing = [
        name
        for name in ("level", "code", "class_id", "method_id", "text", "seen", "after")
        if getattr(ours, name) != getattr(theirs, name)
    ]
    return False, "DIFFERS in " + ", ".join(differing)
