"""Report on an import of definitions or its dry run: as text, as JSON, and as an exit code."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from leveret.broker import exit_codes

WOULD_CHANGE: Final = 1
"""Exit code of a dry run of what can be imported and would change something; 0 if it would change nothing."""

_NUMBERS = ("added", "changed", "unchanged", "kept", "refused", "unchecked")


def report(answer: Mapping[str, Any], formatter: str) -> Iterator[str]:
    """Yield lines.

    Args:
        answer: as the API returns it.
        formatter: json, or anything else for text.

    """
    if formatter == "json":
        yield msgspec.json.encode(answer).decode()
        return
    if not answer["dry_run"]:
        yield f"Imported: {answer['summary']}"
        return
    yield from _table(answer["counts"])
    for change in answer["changes"]:
        yield f"{change['action']}: {change['entry']}"
        for each in change["differences"]:
            yield f"    {each['key']}: {_text(each['before'])} -> {_text(each['after'])}"
    yield from _left_off(answer["changes_left_off"])
    for problem in answer["problems"]:
        yield f"refused: {problem}"
    yield from _left_off(answer["problems_left_off"])
    if not answer["valid"]:
        yield "Dry run: nothing of this can be imported."
    else:
        yield "Dry run: nothing was changed." if _would_change(answer) else "Dry run: nothing would change."


def dry_run_exit_code(answer: Mapping[str, Any]) -> int:
    """Return 0 if nothing would change, 1 if something would, 65 if it cannot be imported."""
    if not answer["valid"]:
        return exit_codes.DATA
    return WOULD_CHANGE if _would_change(answer) else 0


def _would_change(answer: Mapping[str, Any]) -> bool:
    return any(row["added"] or row["changed"] for row in answer["counts"])


def _table(counts: list[Mapping[str, Any]]) -> Iterator[str]:
    rows = [("kind", "vhost", *_NUMBERS)]
    rows += [(row["kind"], row["vhost"] or "", *(str(row[each]) for each in _NUMBERS)) for row in counts]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _text(value: Any) -> str:
    return "nothing" if value is None else msgspec.json.encode(value).decode()


def _left_off(count: int) -> Iterator[str]:
    if count:
        yield f"and {count} more"
