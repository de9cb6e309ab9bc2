import pytest
from samples.made_rows import Made, histogram, quiet, row

from leveret.analytics import (
    anomalies,
    capacity,
    churn,
    confirm_compare,
    health,
    latency,
    overview,
    paging,
    report,
    routing,
)
from leveret.analytics.job import run
from leveret.analytics.plots import plots

ONE = {
    "latency_hist": {"scope": "node", "metric": "confirm", "mode": "standard", **histogram([40])},
    "topic_pattern": {"pattern": "#"},
}
"""Values that turn a generated row of a table into a plausible one."""


@pytest.mark.parametrize(
    "job",
    [
        anomalies.JOB,
        capacity.JOB,
        churn.JOB,
        confirm_compare.JOB,
        health.JOB,
        latency.JOB,
        overview.JOB,
        paging.JOB,
        routing.JOB,
    ],
    ids=lambda job: job.name,
)
def test_of_nothing_and_of_one_row_there_is_a_page(spark, tmp_path, job):
    """Tables without a row, and with a single one, are analysed like others; the page has the headings and no error."""
    names = (*job.needs, *job.uses)
    for rows in ({name: [] for name in names}, {name: [row(name, **ONE.get(name, {}))] for name in names}):
        page = run(job, Made(spark, rows), tmp_path / job.name, quiet)

        assert page.title
        assert all(section.figure is None or plots(section.figure) for section in page.sections)
        assert "None" not in "".join(page.facts)
        assert {"NaN", "nan", "Infinity"}.isdisjoint(
            report.value(each[name])
            for section in page.sections
            for each in section.rows
            for name in section.columns.split()
        )
