import argparse
import os
import socket
from pathlib import Path

import pytest

from bench import brokers, compare
from bench.endpoint import Endpoint, endpoint
from bench.peers import Peer, endpoint_of, listener, parse, peer


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lavinmq=amqp://127.0.0.1", ("lavinmq", Endpoint(5672))),
        ("one=amqp://me:pass%20word@localhost:5673", ("one", Endpoint(5673, "me", "pass word"))),
        ("one=amqp://localhost:5673/a%2Fb", ("one", Endpoint(5673, vhost="a/b"))),
    ],
)
def test_a_peer_has_a_name_and_an_address(text, expected):
    """Port, user and virtual host are those of the URL, or the usual ones."""
    assert expected == parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "amqp://127.0.0.1",
        "=amqp://127.0.0.1",
        "a b=amqp://127.0.0.1",
        "one=http://127.0.0.1",
        "one=amqp://127.0.0.1:x",
    ],
)
def test_a_wrong_peer_is_refused(text):
    """Without a name or an AMQP address there is an error that says what is expected."""
    with pytest.raises(argparse.ArgumentTypeError):
        parse(text)


def test_a_peer_listens_on_this_machine():
    """An address on a network is refused: brokers are compared on the loopback interface."""
    with pytest.raises(argparse.ArgumentTypeError, match="loopback"):
        parse("one=amqp://192.0.2.1")


def test_the_process_of_a_listener_is_found():
    """A port of this process is found to be its own, and a port without a listener nobody's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert os.getpid() == listener(port)
        found = peer("one", Endpoint(port, "me"))
        assert found.rss() > 0
        assert Endpoint(port, "me") == endpoint_of(found)
    assert listener(port) is None


def test_figures_of_an_unknown_process_are_nothing():
    """A peer whose process is not known has no processor time, memory or writes, and is not stopped."""
    found = peer("one", Endpoint(1))
    found.pid = 0
    found.stop()
    found.reset_peak()

    assert (0.0, 0, 0, 0) == (found.cpu_seconds(), found.rss(), found.peak_rss(), found.disk_octets())


def test_a_port_is_an_endpoint_of_the_default_user():
    """A URL and an answer to PLAIN contain user and virtual host."""
    assert "amqp://guest:guest@127.0.0.1:5" == endpoint(5).url
    assert ("\0me\0secret", "amqp://me:secret@127.0.0.1:5/v") == (
        Endpoint(5, "me", "secret").response,
        Endpoint(5, "me", "secret", "v").url,
    )


def test_the_file_systems_of_a_broker_are_those_of_its_files(tmp_path):
    """Files that are open for reading, or are no files, do not count."""
    found = peer("one", Endpoint(1))
    found.pid = 0
    assert set() == found.file_systems()
    found.pid = os.getpid()
    with Path("/proc/self/status").open(), (tmp_path / "data").open("wb") as file:
        ours = brokers.file_system(os.fstat(file.fileno()).st_dev)
        assert ours in found.file_systems()
        assert not any(each.startswith("proc") for each in found.file_systems())
    assert " /" in ours or "tmpfs" in ours or "overlay" in ours


def test_brokers_that_write_to_different_file_systems_are_not_compared(monkeypatch):
    """One that keeps its data in memory would be compared with one that flushes a disk."""
    started = {name: peer(name, Endpoint(1)) for name in ("one", "two", "three")}
    places = {"one": {"ext4 /dev/a"}, "two": {"tmpfs tmpfs"}, "three": set()}
    monkeypatch.setattr(Peer, "file_systems", lambda self: places[self.name])
    options = compare.parser().parse_args([])
    with pytest.raises(brokers.BrokerError, match="ext4 /dev/a and tmpfs tmpfs"):
        compare.print_setting(options, started, dict.fromkeys(started, ""))
    del started["two"]
    compare.print_setting(options, started, dict.fromkeys(started, ""))
