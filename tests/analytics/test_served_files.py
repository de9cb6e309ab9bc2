"""Which files of an output a browser may have, and by which names of this machine; the socket for jobs."""

import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from leveret.analytics import asking
from leveret.analytics.asked import Asked
from leveret.analytics.asking import SOCKET, NoServerError, ask
from leveret.analytics.objective import DEFAULT
from leveret.analytics.scope import Scope
from leveret.analytics.served_files import file_of, is_welcome


@pytest.mark.parametrize(
    "target", [".hidden/page.html", ".page.html", "_page.html", "table.parquet", ".", "../x.html"]
)
def test_sec_48_a_link_leads_to_what_may_be_served(tmp_path, target):
    """A link among the pages leads neither out of the output nor to a file in it that is not served itself."""
    output = tmp_path.resolve() / "out"
    (output / ".hidden").mkdir(parents=True)
    for name in (".hidden/page.html", ".page.html", "_page.html", "table.parquet", "../x.html", "page.html"):
        (output / name).write_text("", encoding="ascii")
    (output / "link.html").symlink_to(target)
    (output / "other.html").symlink_to("page.html")

    assert file_of(output, "/link.html") is None
    assert output / "page.html" == file_of(output, "/other.html")


@pytest.mark.parametrize("listening", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1", "localhost"])
def test_sec_48_loopback_is_served_to_this_machine_only(listening):
    """On every address of loopback the name that a page of the web has given it is refused."""
    assert not is_welcome("rebound.example:15693", listening)
    assert not is_welcome("10.0.0.1", listening)
    assert not is_welcome("", listening)
    assert all(
        is_welcome(name, listening) for name in ("localhost:1", "127.0.0.1", "[::1]:15693", "127.8.9.1")
    )
    assert is_welcome("reports.example", "10.0.0.1")


def test_sec_47_settings_are_sent_to_no_other_user(tmp_path, monkeypatch):
    """A socket in a shared output that another user has put there gets no request: it has the settings of Spark."""
    asked = Asked(["all"], tmp_path, tmp_path, Scope(), DEFAULT, None, {"spark.x.password": "p"}, None)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(tmp_path / SOCKET))
        listening.listen()
        listening.setblocking(False)
        other = SimpleNamespace(st_uid=os.geteuid() + 1)
        monkeypatch.setattr(asking, "IDLE_SECONDS", 1)
        monkeypatch.setattr(Path, "stat", lambda _self, **_options: other)

        with pytest.raises(NoServerError, match="another user"):
            ask(asked, print)
        with pytest.raises(BlockingIOError):
            listening.accept()
