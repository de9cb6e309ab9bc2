"""All jobs by name, in the order of `names`."""

from collections.abc import Mapping
from typing import Final

from leveret.analytics import (
    anomalies,
    capacity,
    churn,
    compact,
    confirm_compare,
    health,
    latency,
    overview,
    paging,
    routing,
)
from leveret.analytics.job import Job

JOBS: Final[Mapping[str, Job]] = {
    job.name: job
    for job in (
        overview.JOB,
        compact.VALIDATE,
        confirm_compare.JOB,
        latency.JOB,
        paging.JOB,
        health.JOB,
        anomalies.JOB,
        routing.JOB,
        capacity.JOB,
        churn.JOB,
        compact.COMPACT,
    )
}
