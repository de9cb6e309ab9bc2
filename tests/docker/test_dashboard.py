"""The dashboard is what Grafana's own types of a dashboard know, and can be imported into any Grafana."""

import json

import pytest
from grafana_foundation_sdk.cog import encoder, plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from processes.running import ROOT

BOARD = json.loads((ROOT / "docker" / "grafana" / "dashboards" / "leveret.json").read_text())
LATER = {"/templating/list/definition"}
"""Keys that came after the version of Grafana whose types these are."""


@pytest.fixture(scope="module", autouse=True)
def kinds():
    """Types of panels and queries are known."""
    plugins.register_default_plugins()


def read_again(board):
    """Return a dashboard as Grafana's types read and write it: what they do not know is left out."""
    return json.loads(encoder.JSONEncoder().encode(Dashboard.from_json(board)))


def unknown(given, kept, path=""):
    """Yield the places of what was left out or changed."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            if key in kept:
                yield from unknown(value, kept[key], f"{path}/{key}")
            else:
                yield f"{path}/{key}"
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for one, other in zip(given, kept, strict=True):
            yield from unknown(one, other, path)
    elif given != kept:
        yield path


def test_grafana_knows_every_key_of_the_dashboard():
    """Each key, and each value of it, is one of Grafana's types, in panels and queries, too."""
    assert LATER == set(unknown(BOARD, read_again(BOARD)))


def test_a_key_that_grafana_does_not_know_is_found():
    """A misspelt key of a panel, of its options or of a query is left out by the types, which this test would show."""
    panel = BOARD["panels"][0]
    query = panel["targets"][0] | {"exprr": "up"}
    wrong = panel | {"titel": "x", "targets": [query], "options": panel["options"] | {"colour": "red"}}

    assert {"/panels/titel", "/panels/targets/exprr", "/panels/options/colour"} <= set(
        unknown({"panels": [wrong]}, read_again({"panels": [wrong]}))
    )


def test_the_data_source_is_chosen_by_a_variable():
    """No panel, query or variable names a data source of one Grafana, so the dashboard is imported without editing."""
    sources = [panel["datasource"] for panel in BOARD["panels"]]
    sources += [
        query["datasource"]
        for panel in BOARD["panels"]
        for query in panel["targets"]
        if "datasource" in query
    ]
    sources += [each["datasource"] for each in BOARD["templating"]["list"] if "datasource" in each]

    assert [{"type": "prometheus", "uid": "${datasource}"}] == [
        dict(each) for each in {tuple(sorted(source.items())) for source in sources}
    ]
    assert not {"__inputs", "id"} & BOARD.keys()
