import re
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from bench.field_report import BEGIN, CHART, END, PLACES, chart, table, times, write

RECORD: dict[str, Any] = {
    "time": "2026-11-24T03:00:00Z",
    "revision": "abc1234",
    "machine": "2 cores of a <machine> & more",
    "rounds": 3,
    "seconds": 6,
    "limit_ms": 10.0,
    "brokers": {
        "leveret": {
            "product": "Leveret 1.0",
            "flushed": "early",
            "rates": {"persist-1500": 24_449.4, "unknown-1": 25_000.0},
            "highest": {"1": {"rate": 20_000.0, "limited": False}, "30": {"rate": 9000.0, "limited": True}},
        },
        "other": {
            "product": "Other 2",
            "flushed": "no",
            "rates": {"persist-1500": 8716.0},
            "highest": {"1": {"rate": 0.0, "limited": False}},
        },
    },
}


def test_the_table_has_a_row_for_each_figure():
    """Figures of a broker that has none are a dash; a rate that the client limited is marked."""
    lines = table(RECORD).splitlines()

    assert [
        "| messages per second | Leveret | other | times other |",
        "|---|---|---|---|",
        "| 1,500 bytes, persistent, confirms and acks (`persist-1500`) | 24,449 | 8,716 | 2.81 |",
        "| unknown-1 (`unknown-1`) | 25,000 | - | - |",
        "| p99 at most 10 ms, 1 queue | 20,000 | 0 | - |",
        "| p99 at most 10 ms, 30 queues | over 9,000 | - | - |",
        "| flushed before the confirm | early | no | |",
    ] == lines[:7]
    assert all(part in lines[-1] for part in ("2026-11-24", "abc1234", "2 cores", "Leveret 1.0", "Other 2"))


def test_the_chart_is_an_image():
    """The chart is well-formed, with a bar for each figure, and names date, revision and machine."""
    root = ET.fromstring(chart(RECORD))
    texts = [each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}text")]

    assert 2 + 4 * 2 + 1 == len(list(root.iter("{http://www.w3.org/2000/svg}rect")))
    assert "2026-11-24, revision abc1234, 2 cores of a <machine> & more" == texts[-1]


def test_table_and_chart_replace_those_before(tmp_path):
    """Writing twice leaves one table between the marks and what is around them."""
    (tmp_path / CHART).parent.mkdir(parents=True)
    for name in PLACES:
        (tmp_path / name).write_text(f"before\n\n{BEGIN}\n\nold\n\n{END}\nafter\n")
    for _ in range(2):
        write(RECORD, tmp_path)

    for name in PLACES:
        written = (tmp_path / name).read_text()
        image = re.search(r"!\[.*\]\((.*)\)\n\n", written)
        assert image is not None
        assert (tmp_path / CHART).samefile((tmp_path / name).parent / image[1])
        shown = table(RECORD, flushed=name != "README.md")
        assert f"before\n\n{BEGIN}\n\n{shown}\n\n{END}\nafter\n" == written.replace(image[0], "")
    assert chart(RECORD) == (tmp_path / CHART).read_text()


def test_a_page_without_marks_is_left_alone(tmp_path):
    """A page that lacks the marks is an error, and stays as it is."""
    for name in PLACES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("page\n")
    with pytest.raises(ValueError, match="lacks the marks"):
        write(RECORD, tmp_path)

    assert "page\n" == (tmp_path / PLACES[0]).read_text()


def test_a_server_of_another_protocol_is_no_yardstick():
    """Times are those of the fastest other broker of AMQP."""
    assert "2.00" == times({"leveret": 4.0, "rabbitmq": 2.0, "nats": 8.0})
