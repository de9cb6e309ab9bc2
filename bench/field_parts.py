"""The parts of a run of `bench.field`, each of which is measured at once and recorded by itself."""

import dataclasses
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

TOOL = "field-part"
START_SECONDS = 6.0
"""Seconds beside its own time that a run of PerfTest takes, with preparation and cleanup."""
FLUSHES_SECONDS = 30.0
CASE_SECONDS = 60.0
ATTEMPTS = 20
"""Rates that a search tries."""
ATTEMPT_SECONDS = 1.5
"""Seconds beside its own time that an attempt takes, with the warm-up."""


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A round of a workload for all brokers in turn, or something that is measured with one broker.

    Attributes:
        kind: `rate`, `flushed`, `highest`, or `case` for what `bench.field_cases` measures.
        order: names of the brokers, in the order in which they are measured.
        workload: of a round, or name of a case; '' for none.
        number: of the round, or of the queues of a search.

    """

    kind: str
    order: tuple[str, ...]
    workload: str = ""
    number: int = 0

    @property
    def key(self) -> str:
        """The key of this part; the order of the brokers is no part of it, as it is that of the round."""
        names = ",".join(sorted(self.order))
        return f"{self.kind} {names} {self.workload} {self.number}"

    def seconds(self, run: float, attempt: float) -> float:
        """Return the seconds that it may take.

        Args:
            run: length of a run of PerfTest in seconds.
            attempt: length of an attempt of a search in seconds.

        """
        match self.kind:
            case "rate":
                return len(self.order) * (run + START_SECONDS)
            case "flushed":
                return FLUSHES_SECONDS
            case "case":
                return CASE_SECONDS
        return ATTEMPTS * (attempt + ATTEMPT_SECONDS)


def plan(
    names: Sequence[str],
    workloads: Sequence[str],
    rounds: int,
    queues: Sequence[int],
    cases: Sequence[str] = (),
    rates_only: Sequence[str] = (),
) -> list[Part]:
    """Return all parts of a run; the order of the brokers rotates with each round; `rates_only` have only rates."""
    parts = []
    for number in range(1, rounds + 1):
        turn = (number - 1) % len(names)
        order = (*names[turn:], *names[:turn])
        parts += [Part("rate", order, workload, number) for workload in workloads]
    for name in names:
        if name not in rates_only:
            parts.append(Part("flushed", (name,)))
            parts += [Part("highest", (name,), number=count) for count in queues]
            parts += [Part("case", (name,), case) for case in cases]
    return parts


def entries(
    recorded: Sequence[Mapping[str, Any]], names: Sequence[str], workloads: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Return what is known of each broker: the medians of its rounds, its searches; of equal parts the last counts.

    Args:
        recorded: the records of the parts, the oldest first.
        names: the brokers.
        workloads: in the order in which they are shown.

    """
    latest = {each["key"]: each for each in recorded}
    found = {}
    for name in names:
        rates: dict[str, list[float]] = {workload: [] for workload in workloads}
        entry: dict[str, Any] = {"flushed": "?", "highest": {}}
        for key, each in latest.items():
            kind, measured, workload, number = key.split(" ")
            if name in measured.split(","):
                entry |= each["known"][name]
                if kind == "rate":
                    if name in each["value"]:
                        rates[workload].append(each["value"][name])
                elif kind == "case":
                    entry.setdefault("cases", {})[workload] = each["value"]
                elif kind == "flushed":
                    entry["flushed"] = each["value"]
                else:
                    entry["highest"][number] = each["value"]
        entry["rates"] = {workload: median(each) for workload, each in rates.items() if each}
        found[name] = entry
    return found
