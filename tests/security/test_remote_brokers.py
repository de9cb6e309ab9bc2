"""Shovels: what their URIs name, what the broker at their other end sends, and with whose rights they run."""

import os
import socket
import stat
import struct
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner
from conformance.wire import Client
from doubles.hostile_broker import LOGIN
from processes.running import serving
from services.shovelling import Http, await_true

import leveret
from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Basic, Queue, make
from leveret.broker.amqp.fastpath import HEARTBEAT
from leveret.broker.amqp.properties import build
from leveret.broker.cli.main import main

NOTHING = {"configure": "^$", "write": "^$", "read": "^$"}
SOON = 10.0
DELETE = encode_method(1, make(Queue.Delete, 0, "precious", False, False, False))


def framed(kind: int, payload: bytes) -> bytes:
    """A frame of channel 1."""
    return struct.pack(">BHI", kind, 1, len(payload)) + payload + b"\xce"


@pytest.fixture
def governed(tmp_path) -> Iterator[tuple[leveret.Broker, Http, Http]]:
    """A broker; its API for an administrator, and for a policymaker without any permission."""
    with leveret.Broker(data_dir=tmp_path / "data", management=True) as broker:
        http = Http(broker.management_url)
        http.request("PUT", "users/ann", {"password": "p", "tags": "policymaker"})
        http.request("PUT", "permissions/%2F/ann", NOTHING)
        yield broker, http, Http(f"http://ann:p@{broker.management_url.partition('@')[2]}")


class Remote:
    """A hostile broker: it lets a shovel in, and then does what it is told to.

    Args:
        act: gets the socket when the shovel's consumer is there.

    """

    def __init__(self, act: Callable[[socket.socket], None]) -> None:
        self._act = act
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.uri = f"amqp://127.0.0.1:{self._listening.getsockname()[1]}"
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        self._listening.settimeout(SOON)
        try:
            sock, _ = self._listening.accept()
            with sock:
                sock.settimeout(SOON)
                consumed = encode_method(1, make(Basic.ConsumeOk, "c"))
                declared = encode_method(1, make(Queue.DeclareOk, "q", 0, 0))
                for reply in (*LOGIN, declared, encode_method(1, make(Basic.QosOk)), consumed):
                    sock.recv(65_536)
                    if reply is LOGIN[2]:  # tune-ok and open may come one after the other
                        time.sleep(0.05)
                    sock.sendall(reply)
                self._act(sock)
        except OSError:
            pass
        finally:
            self.ended.set()

    def close(self) -> None:
        """Accept nobody any more."""
        self._listening.close()


def answers(broker: leveret.Broker) -> float:
    """Return the seconds that a client needs to log in, declare a queue and publish into it."""
    began = time.monotonic()
    client = Client(("127.0.0.1", broker.port), timeout=SOON)
    channel = client.login().channel()
    channel.publish("", channel.queue(exclusive=True), b"x")
    client.close_socket()
    return time.monotonic() - began


@pytest.mark.parametrize("name", ["/dev/ptmx", "/dev/zero", "fifo"])
@pytest.mark.parametrize("key", ["cacertfile", "certfile"])
def test_sec_37_a_name_of_a_shovel_holds_nobody(governed, tmp_path, name, key):
    """A device or a FIFO as its certificate is an error of the shovel: others are served, and the broker stops."""
    broker, http, _ = governed
    os.mkfifo(tmp_path / "fifo")
    uri = f"amqps://127.0.0.1:1?{key}={tmp_path / name}"
    http.shovel("s", src_uri=uri, src_queue="a", dest_queue="b", reconnect_delay=0.05)

    await_true(lambda: "cannot use" in http.status("s").get("reason", ""))
    assert answers(broker) < SOON
    broker.stop()


def test_sec_37_certificates_of_shovels_are_for_administrators(governed):
    """Others name no file of the broker's host, unless the configuration has a directory of them."""
    _, _, ann = governed
    value = {
        "src-uri": "amqps://x?cacertfile=/etc/shadow",
        "dest-uri": "amqp://y",
        "src-queue": "a",
        "dest-queue": "b",
    }
    status, body = ann.request("PUT", "parameters/shovel/%2F/s", {"value": value})

    assert (400, True) == (status, "shovel.certificate_dir" in body["reason"])


def flood(octets: bytes) -> Callable[[socket.socket], None]:
    """Return what sends the same again and again, at most 64 MiB."""

    def act(sock: socket.socket) -> None:
        for _ in range((64 << 20) // len(octets)):
            sock.sendall(octets)

    return act


def giant(sock: socket.socket) -> None:
    """Announce a frame of 2 GiB, and send as much of it as is taken, at most 64 MiB."""
    sock.sendall(struct.pack(">BHI", 3, 1, 2**31))
    flood(bytes(65_536))(sock)


@pytest.mark.parametrize(
    "act",
    [giant, flood(HEARTBEAT * 8192), flood(encode_method(0, make(Queue.PurgeOk, 1)) * 4096)],
    ids=["a giant frame", "heartbeats", "methods"],
)
def test_sec_38_a_hostile_broker_holds_nobody(governed, act):
    """Its frames end its connection long before it costs time or memory that others need."""
    broker, http, _ = governed
    tracemalloc.start()
    remote = Remote(act)
    http.shovel("s", src_uri=remote.uri, src_queue="a", dest_queue="b", reconnect_delay=0)

    assert remote.ended.wait(SOON)
    assert "server sen" in http.await_state("s", "terminated")["reason"] or "unasked" in str(http.status("s"))
    assert answers(broker) < SOON
    assert tracemalloc.get_traced_memory()[1] < 20 << 20
    tracemalloc.stop()
    remote.close()


@pytest.mark.parametrize(
    "content",
    [
        framed(2, build(len(DELETE) - 8)) + DELETE,
        framed(2, build(len(DELETE) + 2)) + framed(3, b"xy") + DELETE,
        framed(2, build(4)) + framed(3, b"fo") + DELETE,
    ],
    ids=["instead of a body", "behind a piece", "in the middle"],
)
def test_sec_39_a_hostile_broker_gives_no_orders(governed, content):
    """A method among the frames of a delivery does not get to the broker that the messages go to."""
    broker, http, _ = governed
    client = Client(("127.0.0.1", broker.port), timeout=SOON)
    channel = client.login().channel()
    channel.queue("precious", durable=True)
    deliver = encode_method(1, make(Basic.Deliver, "c", 1, False, "", "q"))
    remote = Remote(lambda sock: (sock.sendall(deliver + content), sock.recv(65_536))[0])
    http.shovel("s", src_uri=remote.uri, src_queue="a", dest_queue="b", reconnect_delay=0)

    http.await_state("s", "terminated")
    assert 0 == channel.call("queue.declare", queue="precious", passive=True).message_count
    client.close_socket()
    remote.close()


def test_sec_40_shovels_have_the_rights_of_their_setters(governed):
    """A policymaker without permissions moves no message, and uses nobody's login without its password."""
    broker, http, ann = governed
    client = Client(("127.0.0.1", broker.port), timeout=SOON)
    channel = client.login().channel()
    channel.queue("secret", durable=True)
    channel.publish("", "secret", b"secret")
    ann.shovel("s", src_queue="secret", dest_queue="mine", reconnect_delay=0)
    status, body = ann.request(
        "PUT",
        "parameters/shovel/%2F/t",
        {
            "value": {
                "src-uri": "amqp://guest@",
                "dest-uri": "amqp://",
                "src-queue": "secret",
                "dest-queue": "mine",
            }
        },
    )

    assert "refused" in http.await_state("s", "terminated")["reason"]
    assert (400, True) == (status, "needs the password" in body["reason"])
    assert 1 == channel.ready("secret")
    client.close_socket()


def test_sec_41_exports_are_for_their_owner(tmp_path):
    """Definitions with password hashes are readable for the owner only, whoever may read the file before."""
    with serving(tmp_path) as running:
        data = ("--data-dir", str(running.data_dir))
        for words in (("ctl", *data, "export_definitions"), ("definitions", "export", *data)):
            file = tmp_path / f"{words[0]}.json"
            file.write_text("{}")
            file.chmod(0o666)
            result = CliRunner().invoke(main, [*words, str(file)])

            assert 0 == result.exit_code, result.output
            assert 0o600 == stat.S_IMODE(file.stat().st_mode)
            assert b"password_hash" in file.read_bytes()
