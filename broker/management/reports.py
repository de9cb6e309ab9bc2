"""Reports of the analysis: `/api/leveret/reports`."""

from functools import partial

from leveret.broker.administration.access import Right
from leveret.broker.administration.definitions_document import json_text
from leveret.broker.administration.reports import find_reports, read_report
from leveret.broker.http.browsers import SECURE_HEADERS
from leveret.broker.http.call import Answer, Call, Content, Item, Steps
from leveret.broker.http.errors import not_found
from leveret.broker.http.route import Operation, Route

_HEADERS = {
    **SECURE_HEADERS,
    "content-security-policy": (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox; frame-ancestors 'none'; "
        "base-uri 'none'; form-action 'none'"
    ),
    "cache-control": "no-cache",
}
"""Those of a page with styles and pictures: no script runs, and it is of no origin, so it cannot use a session."""


def list_reports(call: Call) -> Steps:
    """List the reports."""
    directory = call.broker.reports_dir
    found = [] if directory is None else (yield partial(find_reports, directory))
    return Item(
        {
            "directory": None if directory is None else json_text(str(directory)),
            "reports": [{**report._asdict(), "title": json_text(report.title)} for report in found],
        }
    )


def get_report(call: Call) -> Steps:
    """Return a report."""
    directory = call.broker.reports_dir
    found = None if directory is None else (yield partial(read_report, directory, call.names["report"]))
    if found is None:
        raise not_found()
    answer: Answer = Content((found,), "text/html; charset=utf-8", _HEADERS)
    return answer


ROUTES = (
    Route(
        "leveret/reports",
        "node",
        {
            "GET": Operation(
                list_reports,
                "The `reports` of the analysis in `management.reports_dir`, the newest first, and that `directory` "
                "(null if there is none).",
                Right.MONITORING,
            )
        },
    ),
    Route(
        "leveret/reports/{report}",
        "node",
        {"GET": Operation(get_report, "A report, as a page without scripts.", Right.MONITORING, kind="text")},
    ),
)
