"""Headings of tables on pages: words in place of the names of columns."""

from collections.abc import Mapping
from typing import Final

HEADINGS: Final[Mapping[str, str]] = {
    "area_ready": "ready, integral",
    "at_most_us": "CPU per message, at most",
    "boot_id": "run",
    "borne": "greatest rate on time (/s)",
    "boundary": "waiting at the ends",
    "burnt": "error budget used",
    "capacity": "consumer capacity",
    "count": "samples",
    "cpu_us": "CPU per message",
    "dead_lettered": "dead-lettered",
    "fanout": "copies per message",
    "gap": "difference from samples",
    "greatest": "greatest rate (/s)",
    "grown": "backlog growth",
    "hours": "hours observed",
    "late_from": "late from rate (/s)",
    "late_us": "loop lag",
    "little_ms": "mean wait by Little's law",
    "max_us": "greatest",
    "mean_us": "mean",
    "measured_ms": "mean wait of samples",
    "median_s": "median lifetime",
    "min_us": "least",
    "p50_us": "median",
    "p90_us": "90 %",
    "p95_us": "95 %",
    "p99_us": "99 %",
    "p999_us": "99.9 %",
    "per_hour": "change per hour",
    "pub": "published",
    "pub_in": "published",
    "r2": "fit (r²)",
    "rate": "rate (/s)",
    "remembered": "routes from cache",
    "rest": "CPU without messages",
    "room": "bytes left",
    "saturated_at": "one processor busy at (/s)",
    "share_alpha": "share in memory",
    "share_beta": "share with body on disk (transient)",
    "share_delta": "share entirely on disk",
    "share_gamma": "share with body on disk (persistent)",
    "slope": "CPU per message",
    "thrash": "read back / delivered",
    "unroutable": "unroutable share",
    "usual": "usual rate (/s)",
    "vhost": "virtual host",
    "window_s": "window",
    "z": "deviation (z)",
}
"""Heading by name of the column; of others it is the name, with spaces for underscores."""

TABLES: Final[Mapping[str, str]] = {  # the rows of each table, in words
    "queue_interval": "Samples of queues",
    "exchange_interval": "Samples of exchanges",
    "topic_pattern": "Samples of binding keys",
    "conn_interval": "Samples of connections",
    "node_interval": "Samples of nodes",
    "latency_hist": "Latency histograms",
    "event": "Events",
    "bench_run": "Runs",
    "bench_sample": "Seconds of runs",
    "bench_cost": "Costs of runs",
}


DURATIONS: Final[Mapping[str, float]] = {"_us": 1e-6, "_ms": 1e-3, "_s": 1.0}
"""Seconds of the unit of a column with a duration, by the end of its name."""


def unit_of(name: str) -> float | None:
    """Return the seconds of the unit of a column with a duration; None for any other."""
    rate = name.endswith("_per_s")
    return next((seconds for end, seconds in DURATIONS.items() if name.endswith(end) and not rate), None)


def heading(name: str) -> str:
    """Return the heading of a column."""
    return HEADINGS.get(name, name.replace("_", " "))
