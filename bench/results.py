"""Benchmark results: appends figures to files, and prints them with their bars."""

import json
import time
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"


def append(entry: dict[str, object]) -> None:
    """Append one line of JSON to today's file in `bench/results/`, with the time."""
    RESULTS.mkdir(exist_ok=True)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with (RESULTS / f"{now[:10]}.jsonl").open("a") as sink:
        sink.write(json.dumps({"time": now, **entry}) + "\n")


class Report:
    """Prints figures with their bars, records them and remembers missed bars.

    Args:
        tool: the name under which figures are recorded.
        judged: whether bars are checked.
    """

    __slots__ = ("judged", "missed", "tool")

    def __init__(self, tool: str, *, judged: bool = True) -> None:
        self.tool, self.judged, self.missed = tool, judged, 0

    def line(
        self, what: str, value: float, unit: str, *, most: float | None = None, least: float | None = None
    ) -> None:
        """Print one figure; with `most` or `least` it is judged."""
        verdict = ""
        good = (most is None or value <= most) and (least is None or value >= least)
        if most is not None or least is not None:
            bar = f"<= {most:,.6g}" if most is not None else f">= {least:,.6g}"
            verdict = f"  ({bar}{'' if not self.judged else ', pass' if good else ', FAIL'})"
            self.missed += self.judged and not good
        print(f"  {what:<58}{value:>14,.2f} {unit}{verdict}", flush=True)
        append({"tool": self.tool, "what": what, "value": value, "unit": unit, "most": most, "least": least})

    def fact(self, what: str, *, holds: bool) -> None:
        """Print a condition that must hold."""
        print(f"  {what:<58}{'pass' if holds else 'FAIL':>14}", flush=True)
        self.missed += not holds
        append({"tool": self.tool, "what": what, "holds": holds})
