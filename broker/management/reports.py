"""The address of the reports of the analysis: `/api/leveret/reports`. The broker serves none of them itself."""

from leveret.broker.administration.access import Right
from leveret.broker.administration.definitions_document import json_text
from leveret.broker.http.call import Call, Item, Steps
from leveret.broker.http.route import Routes

ROUTES = Routes("node")


@ROUTES.get("leveret/reports", needs=Right.MONITORING)
def get_reports(call: Call) -> Steps:
    """The `url` of the reports of the analysis (`management.reports_url`), and the directory of the
    `export` that they are made from; null for what is not configured.
    """
    exported = call.broker.export_dir
    yield from ()
    return Item(
        {
            "url": call.broker.reports_url or None,
            "export": None if exported is None else json_text(str(exported)),
        }
    )
