"""The last lines of the log, and the address of the reports of the analysis."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from api import Api
from fakes import Node

from leveret.broker.config.sections import ExportConfig, ManagementConfig
from leveret.broker.process.recent_log import RECENT


@pytest.fixture
def api() -> Iterator[Api]:
    """The API of a broker whose process keeps its log."""
    logger = logging.getLogger("leveret")
    before = logger.level
    logger.setLevel(logging.INFO)
    RECENT.begin()
    yield Api(Node())
    RECENT.end()
    logger.setLevel(before)


def test_lines_are_read_on_from_the_last(api):
    """Each once, with its time, level and category."""
    before = api.get("leveret/logs")["last"]
    logging.getLogger("leveret.queue").warning("%s is full", "orders")
    found = api.get(f"leveret/logs?after={before}")
    (line,) = found["lines"]

    assert {"number": before + 1, "level": "warning", "category": "queue", "message": "orders is full"} == {
        key: value for key, value in line.items() if key != "time"
    }
    assert (before + 1, 0) == (found["last"], found["missed"])
    assert [] == api.get(f"leveret/logs?after={found['last']}")["lines"]


def test_levels_and_numbers_of_lines_are_chosen(api):
    """The newest lines of the level."""
    for number in range(3):
        logging.getLogger("leveret").error("e%d", number)
        logging.getLogger("leveret").info("i%d", number)

    assert ["e1", "e2"] == [line["message"] for line in api.get("leveret/logs?level=error&count=2")["lines"]]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("level=debug", "level must be one of info"), ("level=x", "level must be one of"), ("count=0", "count must be from 1 to 1000"),
        ("count=1001", "count must be from 1 to 1000"), ("after=-1", "after must not be negative"), ("count=x", "not_integer"),
    ],
)  # fmt: skip
def test_wrong_queries_are_refused(api, query, text):
    """With the reason."""
    answer = api.request("GET", f"leveret/logs?{query}")

    assert 400 == answer.status
    assert text in str(answer.body["reason"])


def test_a_login_is_logged_without_its_password(api):
    """The name of the user is there."""
    before = api.get("leveret/logs")["last"]
    Api(api.node, "guest:hunter2-wrong").request("GET", "overview")
    lines = api.get(f"leveret/logs?after={before}")["lines"]

    assert "guest" in lines[-1]["message"]
    assert "hunter2" not in str(lines)


def test_the_address_of_the_reports_and_the_export_are_told():
    """Those of the configuration; null for what is not configured."""
    address = "http://127.0.0.1:15693/"
    node = Node(
        management=ManagementConfig(reports_url=address), export=ExportConfig(dir=Path("/var/export"))
    )

    assert {"url": address, "export": "/var/export"} == Api(node).get("leveret/reports")
    assert {"url": None, "export": None} == Api(Node()).get("leveret/reports")


def test_the_broker_serves_no_report():
    """There is no route to one, whatever lies beside the export."""
    assert Api(Node()).request("GET", "leveret/reports/capacity").status == 404
