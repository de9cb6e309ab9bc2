"""Charts of the reports of `leveret analyze`, saved by their buttons in a browser. Spark is not needed."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from services.browsing import SECONDS, WIDE

from leveret.analytics import report
from leveret.analytics.figures import Bars, Panel, Series, panels
from leveret.analytics.job import Page, Section
from leveret.analytics.served_files import HEADERS

LINES = panels(
    *(
        Panel("queues", label, [Series(name, [1, 2, 3], [4, 5, 6]) for name in ("one <b>", "two")])
        for label in ("messages/s", "ms")
    )
)
SHOWN = Page(
    "Charts",
    "",
    [],
    [Section("Lines", "", LINES, "lines"), Section("Bars", "", Bars("n", [("q", 3)]), "bars")],
)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """The address of a report, served with the headers of `leveret analyze --serve`."""

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(tmp_path))

        def end_headers(self) -> None:
            for name, value in HEADERS.items():
                self.send_header(name, value)
            super().end_headers()

        def log_message(self, *_args: Any) -> None:
            pass

    report.write_assets(tmp_path)
    report.write(
        tmp_path / "charts" / "report.html",
        report.page(SHOWN, report.Made("test", datetime(2026, 11, 30, tzinfo=UTC)), {}),
    )
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/charts/report.html"
        server.shutdown()
        thread.join(SECONDS)


def test_each_chart_is_saved_as_svg_under_its_name(browser: Any, address: str, tmp_path: Path) -> None:
    """Each button saves the drawing of its own chart, with the names of its lines, and nothing fails in the page."""
    tab = browser.new_page(viewport=WIDE)
    errors: list[str] = []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.goto(address)
    tab.wait_for_selector("html[data-drawn=yes]", timeout=SECONDS * 1000)
    saved = {}
    for button in tab.locator("button.save").all():
        with tab.expect_download(timeout=SECONDS * 1000) as download:
            button.click()
        place = tmp_path / download.value.suggested_filename
        download.value.save_as(place)
        saved[place.name] = ET.parse(place).getroot()
    tab.close()

    texts = {name: " ".join(found.itertext()) for name, found in saved.items()}
    assert ["lines-1.svg", "lines-2.svg", "bars.svg"] == list(saved)
    assert {"{http://www.w3.org/2000/svg}svg"} == {found.tag for found in saved.values()}
    assert all("one <b>" in texts[name] and "two" in texts[name] for name in ("lines-1.svg", "lines-2.svg"))
    assert ("messages/s" in texts["lines-1.svg"], "ms" in texts["lines-2.svg"]) == (True, True)
    assert "q" in texts["bars.svg"].split()
    assert errors == []
