"""The address of the reports of the analysis."""

from pathlib import Path

from api import Api
from fakes import Node

from leveret.broker.config.sections import ExportConfig, ManagementConfig


def test_their_address_and_the_export_are_told():
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
