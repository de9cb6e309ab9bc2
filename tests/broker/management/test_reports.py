"""Reports of the analysis."""

import os
from pathlib import Path

import pytest
from api import Api
from fakes import Node

from leveret.broker.administration import reports
from leveret.broker.config.sections import ExportConfig, ManagementConfig

PAGE = "<!doctype html>\n<html><head><title>Capacity &amp; more</title></head><body>42</body></html>"


@pytest.fixture
def api(tmp_path) -> Api:
    """The API of a broker with a directory of reports."""
    return Api(Node(management=ManagementConfig(reports_dir=tmp_path / "reports")))


def written(folder: Path, text: str = PAGE) -> Path:
    """Write a report."""
    folder.mkdir(parents=True)
    (folder / "report.html").write_text(text, encoding="utf-8")
    return folder / "report.html"


def test_reports_are_listed_and_shown(api, tmp_path):
    """With their titles, the newest first; a page of theirs runs no scripts and is of no origin."""
    os.utime(written(tmp_path / "reports" / "churn", "no title"), (10, 10))
    os.utime(written(tmp_path / "reports" / "capacity"), (20, 20))
    found = api.get("leveret/reports")
    answer = api.request("GET", "leveret/reports/capacity")

    assert str(tmp_path / "reports") == found["directory"]
    assert [("capacity", "Capacity & more", 20_000), ("churn", "churn", 10_000)] == [
        (each["name"], each["title"], each["time"]) for each in found["reports"]
    ]
    assert PAGE.encode() == answer.body
    assert "text/html; charset=utf-8" == answer.headers["content-type"]
    assert {"default-src 'none'", "sandbox", "frame-ancestors 'none'"} <= set(
        answer.headers["content-security-policy"].split("; ")
    )
    assert "nosniff" == answer.headers["x-content-type-options"]


def test_without_a_directory_there_are_none():
    """Nor if it is named and does not exist."""
    assert {"directory": None, "reports": []} == Api(Node()).get("leveret/reports")
    named = Api(Node(management=ManagementConfig(reports_dir=Path("/nowhere/at/all"))))
    assert [] == named.get("leveret/reports")["reports"]
    assert 404 == named.request("GET", "leveret/reports/capacity").status


def test_they_are_looked_for_beside_the_export(tmp_path):
    """In its folder `reports`, unless another is configured."""
    written(tmp_path / "reports" / "capacity")
    api = Api(Node(export=ExportConfig(dir=tmp_path)))

    assert ["capacity"] == [each["name"] for each in api.get("leveret/reports")["reports"]]


@pytest.mark.parametrize(
    "name",
    ["..", "%2E%2E", "..%2Fsecret", "capacity%2F..%2F..%2Fsecret", ".hidden", "%00", "a%00b", "", "x" * 65],
)
def test_names_lead_nowhere_else(api, tmp_path, name):
    """A report is a folder in the directory, and nothing besides."""
    written(tmp_path / "secret")
    written(tmp_path / "reports" / "capacity")
    written(tmp_path / "reports" / ".hidden")

    assert 404 == api.request("GET", f"leveret/reports/{name}/").status or not name
    assert ["capacity"] == [each["name"] for each in api.get("leveret/reports")["reports"]]


def test_links_are_not_followed(api, tmp_path):
    """Neither of a folder nor of a file: others may write to the directory."""
    secret = written(tmp_path / "secret")
    (tmp_path / "reports" / "file").mkdir(parents=True)
    (tmp_path / "reports" / "file" / "report.html").symlink_to(secret)
    (tmp_path / "reports" / "folder").symlink_to(secret.parent)

    assert [] == api.get("leveret/reports")["reports"]
    assert [404, 404] == [api.request("GET", f"leveret/reports/{each}").status for each in ("file", "folder")]


def test_what_is_no_file_or_too_large_is_no_report(api, tmp_path, monkeypatch):
    """A pipe would hold the reader up, and a large file fill the memory."""
    (tmp_path / "reports" / "pipe").mkdir(parents=True)
    os.mkfifo(tmp_path / "reports" / "pipe" / "report.html")
    (tmp_path / "reports" / "folder" / "report.html").mkdir(parents=True)
    written(tmp_path / "reports" / "large")
    monkeypatch.setattr(reports, "MOST_OCTETS", 10)

    assert [] == api.get("leveret/reports")["reports"]
    assert {404} == {
        api.request("GET", f"leveret/reports/{each}").status for each in ("pipe", "folder", "large")
    }
