"""The table of what `cycles` has kept, for cycles.md."""

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

from replicated.controls import CONTROLS
from replicated.nemeses import MOVE, NEMESES

_HEAD = "| done to | alone | beside another | confirmed | lost | repeated | out of order | seconds without a confirm |"


def latest(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the last entry of each cycle: a cycle that was repeated counts once."""
    last = {(entry["seed"], entry["number"]): entry for entry in entries if "number" in entry}
    return list(last.values())


def takeovers(entries: Sequence[dict[str, Any]], done: str = "kill") -> str:
    """Return how long each log was without a confirm, in cycles with one nemesis that took a leader of several away."""
    good = [each for each in latest(entries) if each["nemeses"] == [done] and not each["wrong"]]
    alone = [each.get("takeovers", {}) for each in good]
    several = [gaps for gaps in alone if len(gaps) > 1]
    found = sorted(gap for gaps in several for gap in gaps.values())
    if not found:
        return ""
    return (
        f"{done} alone of a leader of several logs: {len(several)} cycles, {len(found)} takeovers, "
        f"median {median(found):.1f} s, at most {found[-1]:.1f} s"
    )


def table(entries: Sequence[dict[str, Any]]) -> str:
    """Return a row for each nemesis, one for all, and one for each control run."""
    cycles = latest(entries)
    rows = [_HEAD, "|---|---|---|---|---|---|---|---|"]
    rows += [
        row
        for each in (*NEMESES, MOVE)
        if (row := _row(each.name, [c for c in cycles if each.name in c["nemeses"]]))
    ]
    if cycles:
        rows.append(_row("all", cycles))
    failed = sum(bool(entry["wrong"]) for entry in cycles)
    notes: Counter[str] = Counter()
    for entry in cycles:
        notes.update(entry["notes"])
    revisions = ", ".join(sorted({f"`{entry['revision']}`" for entry in cycles}))
    dates = sorted({entry["date"] for entry in cycles})
    told = (
        f"{len(cycles)} cycles, {failed} failed; {notes['leaderships']} leaderships, {notes['snapshots']} snapshots put into "
        f"the database, {notes['restored']} copies made from one; {' to '.join(dict.fromkeys(dates[:1] + dates[-1:]))}, "
        f"{revisions}."
    )
    controls = {entry["control"]: entry for entry in entries if "control" in entry}
    caught = [
        f"| {name} | {controls[name]['wrong'][0].splitlines()[0][:120] if controls[name]['wrong'] else '**not caught**'} |"
        for name in CONTROLS
        if name in controls
    ]
    text = "\n".join([*rows, "", told, ""])
    if caught:
        text += "\n".join(["", "| control run | caught by |", "|---|---|", *caught, ""])
    return text


def _row(name: str, cycles: Sequence[dict[str, Any]]) -> str:
    if not cycles:
        return ""
    counts: Counter[str] = Counter()
    for entry in cycles:
        counts.update(entry["counts"])
    alone = sum(len(entry["nemeses"]) == 1 for entry in cycles)
    gaps = sorted(entry["gap"] for entry in cycles)
    return (
        f"| {name} | {alone} | {len(cycles) - alone} | {counts['confirmed']:,} | {counts['lost']} | "
        f"{counts['duplicates'] + counts['unmarked']} | {counts['disordered']} | {median(gaps):.1f}, at most {gaps[-1]:.1f} |"
    )
