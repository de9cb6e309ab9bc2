"""`leveret top` in a terminal: a real one for the process, drawn by an emulator for the test."""

import re
import signal

import pika
import pytest
from processes.running import free_port, serving
from processes.terminal import Terminal

from leveret.broker import exit_codes

COLOUR = re.compile(rb"\x1b\[[0-9;]*?\b(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[0-9;]*)?m")
LEAVE = b"\x1b[?1049l"
"""Ends the use of the second screen of a terminal."""
SHOW_CURSOR = b"\x1b[?25h"
TOP = ("top", "--interval", "0.3")


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A broker with three queues, one with messages and a name that would clear the screen."""
    with serving(tmp_path_factory.mktemp("top")) as made:
        declare(made, {"orders": 3, "bills": 1, "\x1b[2Jevil": 2})
        yield made


def declare(running, queues):
    """Declare queues, each with so many messages."""
    host, port = running.address
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, port))
    channel = connection.channel()
    channel.confirm_delivery()
    for name, count in queues.items():
        channel.queue_declare(name, durable=True)
        for _ in range(count):
            channel.basic_publish("", name, b"body")
    connection.close()


def test_a_terminal_shows_the_broker(running):
    """Queues with the most messages first; keys sort, filter, switch and resize; q restores the terminal."""
    with Terminal(*TOP, "--data-dir", str(running.data_dir)) as terminal:
        terminal.wait_for("q quit")
        terminal.wait_for("orders")
        rows = [line.split()[0] for line in terminal.screen.display[6:9]]
        assert ["orders", "�[2Jevil", "bills"] == rows
        assert COLOUR.search(terminal.octets)
        terminal.press("/ord")
        terminal.wait_for("filter ord: 1-1 of 1")
        terminal.press("\x1b")
        terminal.wait_for("1-3 of 3")
        terminal.press("2")
        terminal.wait_for("There are no connections")
        terminal.press("1")
        terminal.resize(140, 40)
        terminal.wait_for("REDEL/S")
        terminal.press("q")
        assert (0, True) == terminal.ended()
        assert terminal.octets.rindex(LEAVE) > terminal.octets.rindex(b"orders")
        assert SHOW_CURSOR in terminal.octets


def test_without_a_broker_one_line_is_left(tmp_path):
    """It is not lost with the second screen of the terminal, and the exit code is that of `leveret ctl`."""
    with Terminal(*TOP, "--data-dir", str(tmp_path / "nowhere")) as terminal:
        code, is_restored = terminal.ended()

    assert (exit_codes.UNAVAILABLE, True) == (code, is_restored)
    assert b"the directory does not exist" in terminal.octets[terminal.octets.rindex(LEAVE) :]


@pytest.mark.parametrize("how", ["ctrl-c", signal.SIGTERM])
def test_the_terminal_is_restored(running, how):
    """Whatever ends it; without colours if the user wants none."""
    with Terminal(*TOP, "--data-dir", str(running.data_dir), NO_COLOR="1") as terminal:
        terminal.wait_for("orders")
        if how == "ctrl-c":
            terminal.press("\x03")
        else:
            terminal.process.send_signal(how)
        assert (0, True) == terminal.ended()
        assert LEAVE in terminal.octets
        assert SHOW_CURSOR in terminal.octets
        assert None is COLOUR.search(terminal.octets)


def test_a_restart_of_the_broker_is_survived(tmp_path):
    """Over HTTP and with a login: it says that it tries again, and then goes on."""
    port = free_port()
    management = ("--set", "management.enabled=true", "--set", f"management.tcp.port={port}")
    uri = f"http://guest:guest@127.0.0.1:{port}"
    with serving(tmp_path, *management) as first, Terminal(*TOP, "--uri", uri) as terminal:
        terminal.wait_for("There are no queues")
        first.stopped_by(signal.SIGTERM)
        terminal.wait_for("not reachable, trying again")
        with serving(tmp_path, *management) as second:
            declare(second, {"after": 0})
            terminal.wait_for("after")
            terminal.press("q")
            assert (0, True) == terminal.ended()
