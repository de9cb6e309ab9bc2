"""Bad clients of a listener with TLS: stalled handshakes, mutated ClientHellos, connections that come and go."""

import contextlib
import random
import shutil
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pika
from processes.running import Running

HEADER = b"AMQP\0\0\x09\x01"
SECONDS = 60.0
BROKER_ADDRESS = "127.0.0.1"


def trusting() -> ssl.SSLContext:
    """Return a context that accepts every certificate, for clients that test something else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def client_hello(version: ssl.TLSVersion | None = None) -> bytes:
    """Return the first record of a client, for a version or for all that OpenSSL knows."""
    context = trusting()
    if version is not None:
        context.maximum_version = version
    out = ssl.MemoryBIO()
    handshake = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        handshake.do_handshake()
    return out.read()


def mutated(hello: bytes, chance: random.Random) -> bytes:
    """Return a ClientHello with a few changes: bits flipped, octets replaced, cut, inserted, repeated, records added."""
    octets = bytearray(hello)
    for _ in range(chance.choice((1, 1, 1, 2, 4, 16))):
        at = chance.randrange(len(octets)) if octets else 0
        match chance.randrange(8):
            case 0 if octets:
                octets[at] ^= 1 << chance.randrange(8)
            case 1 if octets:
                octets[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF, chance.randrange(256)))
            case 2:
                del octets[at:]
            case 3:
                del octets[at : at + chance.randrange(1, 9)]
            case 4:
                octets[at:at] = chance.randbytes(chance.randrange(1, 64))
            case 5:
                octets[at:at] = octets[at : at + chance.randrange(1, 64)]
            case 6 if len(octets) > 9:  # a length of the record, the message, or a list in it
                octets[chance.choice((3, 4, 6, 7, 8))] = chance.randrange(256)
            case _:
                octets += chance.choice(
                    (hello, b"\x15\x03\x01\x00\x02\x02\x28", b"\x17\x03\x03\x40\x01" + b"x" * 99)
                )
    return bytes(octets)


def send(address: tuple[str, int], octets: bytes) -> None:
    """Send bytes as a client, and wait until the broker has closed the connection; raises TimeoutError."""
    with socket.create_connection(address, timeout=SECONDS) as sock:
        try:
            sock.sendall(octets)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass
        except ConnectionError:
            pass


class Healthy:
    """A client with TLS that asks the broker something all the time, in a thread of its own.

    Attributes:
        seconds: the duration of each answer so far.
        failure: what has ended it; None while it goes on.

    """

    def __init__(self, address: tuple[str, int]) -> None:
        self.seconds: list[float] = []
        self.failure: BaseException | None = None
        self._ended = threading.Event()
        options = pika.SSLOptions(trusting(), "localhost")
        self._connection = pika.BlockingConnection(
            pika.ConnectionParameters(*address, ssl_options=options, heartbeat=0)
        )
        self._channel = self._connection.channel()
        self._channel.queue_declare("healthy", exclusive=True)
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join(SECONDS)
        self._connection.close()

    def _ask(self) -> None:
        try:
            while not self._ended.is_set():
                began = time.monotonic()
                self._channel.queue_declare("healthy", passive=True)
                self.seconds.append(time.monotonic() - began)
        except BaseException as error:
            self.failure = error

    def go_on(self, count: int) -> None:
        """Wait for so many further answers."""
        wanted = len(self.seconds) + count
        deadline = time.monotonic() + SECONDS
        while len(self.seconds) < wanted:
            assert self.failure is None, self.failure
            assert time.monotonic() < deadline, f"{len(self.seconds)} of {wanted} answers"
            time.sleep(0.01)

    def worst(self, share: float, since: int = 0) -> float:
        """Return the duration, in seconds, that this share of the answers from a position on did not exceed."""
        taken = sorted(self.seconds[since:])
        return taken[min(len(taken) - 1, int(len(taken) * share))]


@contextlib.contextmanager
def stalled(address: tuple[str, int], count: int, sources: Sequence[str]) -> Iterator[list[socket.socket]]:
    """Connect so many clients, from several addresses in turn, that stop within their ClientHello."""
    beginning = client_hello()[:50]
    with contextlib.ExitStack() as open_sockets:
        sockets = []
        for at in range(count):
            sock = socket.create_connection(address, SECONDS, (sources[at % len(sources)], 0))
            sockets.append(open_sockets.enter_context(sock))
            with contextlib.suppress(ConnectionError):
                sock.sendall(beginning)
        yield sockets


def log_in(address: tuple[str, int]) -> None:
    """Connect a new client with TLS, up to the broker's first method; raises OSError."""
    with socket.create_connection(address, SECONDS) as sock, trusting().wrap_socket(sock) as tls:
        tls.sendall(HEADER)
        assert b"\x00\x0a\x00\x0a" == tls.recv(4096)[7:11]


def come_and_go(address: tuple[str, int], count: int, threads: int = 4) -> None:
    """Connect and close so many clients with TLS."""
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(count // threads):
                log_in(address)
        except BaseException as error:
            failures.append(error)

    running = [threading.Thread(target=work) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not failures, failures


def open_files(running: Running) -> int:
    """Return the number of open files of the broker's process."""
    return sum(1 for _ in Path(f"/proc/{running.process.pid}/fd").iterdir())


def settle(running: Running, most: int) -> None:
    """Wait until the broker has no more open files than that."""
    deadline = time.monotonic() + SECONDS
    while (count := open_files(running)) > most:
        assert time.monotonic() < deadline, f"{count} open files, not {most}"
        time.sleep(0.05)


def words(folder: Path, server: Any, *more: str) -> list[str]:
    """Return the words of the command line for a broker with that certificate."""
    assert folder.is_dir()
    settings = [
        "listeners.ssl.default=127.0.0.1:0",
        f"ssl_options.certfile={server.certfile}",
        f"ssl_options.keyfile={server.keyfile}",
        "ssl_options.reload_interval=0",
        *more,
    ]
    return [word for setting in settings for word in ("--set", setting)]


def reload_under_load(
    running: Running, current: Any, others: Sequence[Any], count: int
) -> tuple[list[int], list[Any]]:
    """Replace the certificate of a broker so many times while two clients connect all the time.

    Args:
        running: the broker; its log is read.
        current: the certificate in use (`Issued`), whose files are replaced.
        others: those that take turns in them; it has the first.
        count: how often.

    Returns:
        How many connections each client has made, and what has failed.

    """
    ended = threading.Event()
    failures: list[Any] = []
    counts = [0, 0]

    def client(number: int) -> None:
        try:
            while not ended.is_set():
                log_in(running.tls_address)
                counts[number] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        for at in range(1, count + 1):
            for kind in ("certfile", "keyfile"):
                old = getattr(current, kind)
                new = old.with_suffix(".next")
                shutil.copy(getattr(others[at % len(others)], kind), new)
                new.replace(old)
            running.process.send_signal(signal.SIGHUP)
            running.wait_for("TLS certificate replaced")
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    return counts, failures
