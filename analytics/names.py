"""Names of the jobs, in the order in which `all` runs them, and their limits: the help needs no Spark."""

from collections.abc import Mapping
from typing import Final

SUMMARIES: Final[Mapping[str, str]] = {  # A phrase about each job
    "overview": "what is wrong, what has changed, and a page for each queue and node",
    "validate": "invalid lines, decreasing counters, contradictions, missing rows",
    "confirm-compare": "speed-up of the consumer-ack modes with confidence intervals, from the records of bench.paper",
    "latency": "percentiles of confirm and delivery latency by mode, queue and time",
    "paging": "messages by paging state, transitions, and waiting times by Little's law",
    "health": "hot queues, and queues with slow, stalled or missing consumers",
    "anomalies": "unusual publish and delivery rates; when memory or disk will run out",
    "routing": "fan-out, unroutable messages, route cache, most frequent and unused bindings",
    "capacity": "CPU time per message, and the rate that a node can sustain",
    "churn": "opened and closed connections and queues, failed logins, duration of alarms",
    "compact": "convert JSON Lines to Parquet by hour, for faster analysis and for archiving",
}
ALL: Final = "all"
NOT_IN_ALL: Final = frozenset({"compact"})  # jobs that copy the input instead of reporting on it
NOT_LIMITED: Final[Mapping[str, frozenset[str]]] = {
    "--since": frozenset({"compact", "confirm-compare"}),
    "--until": frozenset({"compact", "confirm-compare"}),
    "--vhost": frozenset({"compact", "confirm-compare", "capacity", "churn"}),
    "--queue": frozenset({"compact", "confirm-compare", "capacity", "churn", "routing"}),
}
"""Jobs that an option does not apply to: their tables have no times, or are about a whole node or exchanges."""
NOT_FOLLOWED: Final = frozenset({"overview", "compact", "validate", "confirm-compare"})
"""Jobs that need each row as it was written, or the records of runs that have ended."""
EMBEDDED: Final = "local[*]"
