"""`leveret top` before it shows anything."""

import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from click.testing import CliRunner
from processes.running import serving

from leveret.broker import exit_codes
from leveret.broker.cli.main import main


def run(*arguments):
    """Run the command without a terminal."""
    return CliRunner().invoke(main, ["top", *arguments])


def test_without_the_library_one_line_names_the_extra(monkeypatch, tmp_path):
    """Which is what has to be installed."""
    monkeypatch.delitem(sys.modules, "leveret.broker.cli.top.app", raising=False)
    monkeypatch.setitem(sys.modules, "textual", None)
    monkeypatch.setitem(sys.modules, "textual.app", None)
    result = run("--data-dir", str(tmp_path))

    assert exit_codes.UNAVAILABLE == result.exit_code
    (line,) = result.stderr.splitlines()
    assert "pip install 'leveret[top]'" in line


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--uri", "http://127.0.0.1:1"), exit_codes.UNAVAILABLE, "unable to connect to http://127.0.0.1:1"),
        (("--uri", "amqp://x"), exit_codes.USAGE, "expected http://USER:PASSWORD@HOST:PORT"),
        (("--data-dir", "nowhere"), exit_codes.UNAVAILABLE, "the directory does not exist"),
        (("--data-dir", ".", "--uri", "http://x"), exit_codes.USAGE, "exclude each other"),
        (("--interval", "0"), 2, "--interval"),
    ],
)
def test_problems_are_told_before_the_screen_changes(arguments, code, text):
    """In the words, and with the exit codes, of `leveret ctl`."""
    result = run(*arguments)

    assert code == result.exit_code
    assert text in result.stderr


def test_a_server_that_is_no_management_api_is_told():
    """By one line, as by `leveret ctl`."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_arguments):
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        result = run("--uri", f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join()

    assert exit_codes.UNAVAILABLE == result.exit_code
    assert "is not a management API" in result.stderr


def test_it_needs_a_terminal(tmp_path):
    """A pipe is told which command prints lists; a vhost that does not exist is told, too."""
    with serving(tmp_path) as running:
        directory = str(running.data_dir)
        piped, absent = run("--data-dir", directory), run("--data-dir", directory, "-p", "none")

    assert exit_codes.USAGE == piped.exit_code
    assert "needs a terminal; `leveret ctl list_queues` prints a list" in piped.stderr
    assert exit_codes.UNAVAILABLE == absent.exit_code
