"""The outcome of an import of definitions, or of a dry run: what is added or changed, and what cannot be imported."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from leveret.broker.administration.definitions_document import SECTIONS, Entry, Problem, where

LISTED: Final = 1000  # maximum number of changes, and of vhosts with counts of their own, that are listed
PROBLEMS: Final = 100  # maximum number of problems that are listed
SHOWN: Final = 200  # maximum number of characters of a value in a list of differences
DIFFERENCES: Final = 20  # maximum number of differences that are listed of one entry
ADVICE: Final = "what cannot exist here is left out with definitions.on_unsupported = skip"
HIDDEN: Final = "(hidden)"  # shown instead of a password hash
_SECRET = frozenset({"password_hash"})


class Action(StrEnum):
    """The effect of an import on one entry of a file."""

    ADDED = "added"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    KEPT = "kept"  # it is there with other properties, which an import does not change (exchanges, queues)
    REFUSED = "refused"
    UNCHECKED = "unchecked"  # it belongs to something that is refused
    SKIPPED = "skipped"  # it cannot exist here, or belongs to something that cannot, and is left out


class Difference(NamedTuple):
    """A property that differs, with points between the names of nested objects; its values are None for none."""

    key: str
    before: Any
    after: Any


class Change(NamedTuple):
    """An entry that is added, changed, or kept with other properties: of a section (`kind`), by its position and name.

    `vhost` is None if it is in none. If the object is there, `differences` has at most `DIFFERENCES`.
    """

    action: Action
    kind: str
    vhost: str | None
    entry: str
    differences: list[Difference]


class Outcome:
    """Counts and lists of an import, or of one that is not carried out.

    Lists have the first `LISTED` changes, `LISTED` entries or parts of them that are left out and `PROBLEMS` problems;
    `left_off`, `skipped_count` and `refused` count further ones, the latter with sections that are refused as a whole;
    `unsupported` of these can be left out.
    """

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.left_off = 0
        self.problems: list[Problem | str] = []
        self.refused = self.unsupported = 0
        self.skipped: list[str] = []
        self.skipped_count = 0
        self._counts: dict[str, dict[str | None, dict[Action, int]]] = {}

    def add(
        self,
        section: str,
        at: int,
        entry: Entry,
        before: Mapping[str, Any] | None,
        after: Mapping[str, Any],
        *,
        is_kept: bool,
    ) -> None:
        """Count an entry that can be imported, and list it if it is not unchanged.

        `before` are its properties in the broker, None if it is not there; with `is_kept` an import does not change it.
        """
        if before is None:
            action = Action.ADDED
        elif before == after:
            action = Action.UNCHANGED
        else:
            action = Action.KEPT if is_kept else Action.CHANGED
        vhost = self._count(section, entry, action)
        if action is Action.UNCHANGED:
            return
        if len(self.changes) == LISTED:
            self.left_off += 1
            return
        found = [] if before is None else list(islice(differences(before, after), DIFFERENCES))
        self.changes.append(Change(action, section, vhost, where(section, at, entry), found))

    def refuse(self, problem: Problem) -> None:
        """Count an entry that cannot be imported, and list it."""
        self.refused += 1
        if problem.at is not None:
            self._count(problem.section, problem.entry, Action.REFUSED)
        if len(self.problems) < PROBLEMS:
            self.problems.append(problem)

    def skip(self, problem: Problem, *, is_part: bool = False) -> None:
        """List an entry that is left out, or a part of one that is imported, and count the former."""
        self.skipped_count += 1
        if not is_part:
            self._count(problem.section, problem.entry, Action.SKIPPED)
        if len(self.skipped) < LISTED:
            self.skipped.append(str(problem))

    def join(self, shown: Mapping[str, Any]) -> None:
        """Add the outcome of another part of the definitions, as `shown` returns it."""
        for row in shown["counts"]:
            counts = self._counts.setdefault(row["kind"], {}).setdefault(row["vhost"], {})
            for action in Action:
                if row[action]:
                    counts[action] = counts.get(action, 0) + row[action]
        changes, problems, skipped = shown["changes"], shown["problems"], shown["skipped"]
        room = LISTED - len(self.changes)
        for each in changes[:room]:
            found = [Difference(**difference) for difference in each["differences"]]
            self.changes.append(Change(**each | {"action": Action(each["action"]), "differences": found}))
        self.left_off += len(changes[room:]) + shown["changes_left_off"]
        self.problems += problems[: PROBLEMS - len(self.problems)]
        self.refused += len(problems) + shown["problems_left_off"]
        self.unsupported += shown["unsupported"]
        self.skipped += skipped[: LISTED - len(self.skipped)]
        self.skipped_count += len(skipped) + shown["skipped_left_off"]

    def leave_unchecked(self, section: str, entry: Entry) -> None:
        """Count an entry that belongs to something that is refused."""
        self._count(section, entry, Action.UNCHECKED)

    def _count(self, section: str, entry: object, action: Action) -> str | None:
        found = entry.get("vhost") if isinstance(entry, dict) else getattr(entry, "vhost", None)
        vhost = found if isinstance(found, str) else None
        by_vhost = self._counts.setdefault(section, {})
        place = vhost if vhost in by_vhost or len(by_vhost) < LISTED else None
        counts = by_vhost.setdefault(place, {})
        counts[action] = counts.get(action, 0) + 1
        return vhost

    def counts(self) -> Iterator[tuple[str, str | None, Mapping[Action, int]]]:
        """Yield numbers of entries by section and vhost; those of more than `LISTED` vhosts are with no vhost."""
        for section in SECTIONS:
            for vhost, counts in self._counts.get(section, {}).items():
                yield section, vhost, counts

    def totals(self) -> dict[str, dict[Action, int]]:
        """Return numbers of entries by section."""
        found: dict[str, dict[Action, int]] = {}
        for section, _, counts in self.counts():
            sums = found.setdefault(section, {})
            for action, count in counts.items():
                sums[action] = sums.get(action, 0) + count
        return found

    def summary(self) -> str:
        """Return the numbers as one line for people."""
        parts = (
            f"{name.replace('_', ' ')}: " + ", ".join(f"{counts[each]} {each}" for each in Action if each in counts)
            for name, counts in self.totals().items()
        )  # fmt: skip
        return "; ".join(parts) or "nothing"

    def error(self) -> str:
        """Return the text of the error for the refused entries, one line for each."""
        lines = [str(problem) for problem in self.problems]
        if self.refused > len(lines):
            lines.append(f"and {self.refused - len(lines)} more")
        if self.refused > 1:
            lines.insert(0, f"{self.refused} entries cannot be imported, so nothing was:")
        if self.unsupported:
            lines.append(f"{ADVICE}: {self.unsupported} of {self.refused}")
        return "\n".join(lines)

    def heading(self, *, dry_run: bool) -> dict[str, Any]:
        """Return the first keys of the object that the API shows."""
        return {
            "dry_run": dry_run,
            "valid": not self.refused,
            "unsupported": self.unsupported,
            "summary": self.summary(),
            "changes_left_off": self.left_off,
            "problems_left_off": self.refused - len(self.problems),
            "skipped_left_off": self.skipped_count - len(self.skipped),
        }

    def lists(self) -> tuple[tuple[str, Iterator[Any]], ...]:
        """Return its other keys, and the items of each."""
        counts = (
            {"kind": kind, "vhost": vhost, **{str(each): counts.get(each, 0) for each in Action}}
            for kind, vhost, counts in self.counts()
        )
        changes = (
            {**change._asdict(), "differences": [each._asdict() for each in change.differences]}
            for change in self.changes
        )
        problems, skipped = map(str, self.problems), iter(self.skipped)
        return ("counts", counts), ("changes", changes), ("problems", problems), ("skipped", skipped)

    def shown(self, *, dry_run: bool) -> dict[str, Any]:
        """Return it as the object that the API shows."""
        return {**self.heading(dry_run=dry_run), **{name: list(items) for name, items in self.lists()}}


def differences(
    before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = ""
) -> Iterator[Difference]:
    """Yield the properties that differ; those of nested objects one by one, and secrets without their values."""
    for key in {**before, **after}:
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from differences(old, new, f"{prefix}{key}.")
        elif key in _SECRET and not prefix:
            yield Difference(key, HIDDEN, HIDDEN)
        else:
            yield Difference(f"{prefix}{key}", _short(old), _short(new))


def _short(value: Any) -> Any:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode() if value else ""
    return value if len(text) <= SHOWN else f"{text[:SHOWN]}..."
