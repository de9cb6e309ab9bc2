"""Runs sessions against a broker, many at once, on plain non-blocking sockets.

A session is made from the seed and its case number alone: what it sends, where the stream is split, how it ends.
"""

import contextlib
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from random import Random

from conformance.codec import METHOD, encode_method, frame
from fuzz.grammar import Script
from fuzz.mutate import mutated
from fuzz.replies import Replies, ReplyError

PATIENCE_SECONDS = 0.03  # what a graceful session waits for the broker to close before it half-closes itself
LINGER_SECONDS = 0.05
DEAF_SECONDS = 0.1  # how long a client that reads nothing stays
DEADLINE_SECONDS = (
    60.0  # after which a session that the broker has not ended is a failure, on a busy machine too
)
_CLOSE_OK = frame(METHOD, 0, encode_method("connection.close-ok"))
_LINGER = struct.pack("ii", 1, 0)
VALID_EVERY = 10
"""One session in so many is valid and runs beside the mutated ones."""


class Case:
    """One session to run.

    Args:
        seed: of the whole run.
        number: of the session; a negative one is valid, not mutated.

    """

    __slots__ = ("after_open", "chunks", "ending", "mutations", "number", "script", "seed")

    def __init__(self, seed: int, number: int) -> None:
        self.seed = seed
        self.number = number
        rng = Random(f"{seed}:{number}")
        self.after_open = rng.random() < 0.8
        self.mutations: list[str] = []
        if number < 0:
            self.script = Script(rng, f"s{-number}", loose=False)
            self.ending = "graceful" if rng.random() < 0.5 else "half-close"
        else:
            self.script = Script(rng, f"m{number}", loose=True)
            self.mutations = mutated(self.script, after_open=self.after_open)
            self.ending = rng.choice(_ENDINGS)
        self.chunks = list(_split(rng, self.script.frames))

    @property
    def valid(self) -> bool:
        """True if nothing was mutated."""
        return self.number < 0


_ENDINGS = ("graceful",) * 5 + ("half-close",) * 11 + ("abort-sent", "abort-amid", "abort-reply", "deaf")


def _split(rng: Random, frames: list[bytes]) -> Iterator[bytes]:
    data = b"".join(frames)
    way = rng.random()
    if way < 0.6 or len(data) < 2:
        yield data
        return
    if way < 0.7:  # after frames
        cuts = sorted({rng.randrange(1, len(frames) + 1) for _ in range(4)})
        start = 0
        for cut in [*cuts, len(frames)]:
            yield b"".join(frames[start:cut])
            start = cut
        return
    count = rng.randrange(1, 5) if way < 0.97 else 40
    cuts = sorted(rng.randrange(1, len(data)) for _ in range(count))
    start = 0
    for cut in [*cuts, len(data)]:
        yield data[start:cut]
        start = cut


class Session:
    __slots__ = (
        "case",
        "deadline",
        "half_close_at",
        "half_closed",
        "leave_at",
        "local_port",
        "replies",
        "sock",
        "todo",
    )

    def __init__(self, case: Case, port: int) -> None:
        self.case = case
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if case.ending == "deaf":
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.sock.connect(("127.0.0.1", port))
        self.sock.setblocking(False)
        self.local_port = self.sock.getsockname()[1]
        agreed = case.script.frame_max if case.valid or case.after_open else 131072
        self.replies = Replies(frame_max=agreed, record=case.valid)
        self.todo = [chunk for chunk in case.chunks if chunk]
        self.todo.reverse()
        self.half_closed = False
        self.half_close_at = 0.0
        self.leave_at = 0.0
        self.deadline = time.monotonic() + DEADLINE_SECONDS

    def send(self) -> bool:
        """Write one more chunk; True when all is written."""
        todo = self.todo
        if todo:
            chunk = todo.pop()
            try:
                sent = self.sock.send(chunk)
            except BlockingIOError:
                sent = 0
            except (BrokenPipeError, ConnectionResetError):
                todo.clear()  # the broker has closed; its last words may still be there to read
                return True
            if sent < len(chunk):
                todo.append(chunk[sent:])
        return not todo

    def half_close(self) -> None:
        """Half-close: no more octets come."""
        self.half_closed = True
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
        self.sock.close()


class Failure(Exception):  # noqa: N818 - it is one
    """A session went as it must not."""

    def __init__(self, case: Case, reason: str) -> None:
        self.case = case
        super().__init__(f"seed {case.seed}, case {case.number} ({case.ending}, {case.mutations}): {reason}")


class Sessions:
    """Runs cases, `concurrency` at a time.

    Args:
        port: the broker's.
        concurrency: sessions at once.

    """

    def __init__(self, port: int, concurrency: int = 48) -> None:
        self._port = port
        self._concurrency = concurrency
        self._poll = select.epoll()
        self._running: dict[int, Session] = {}
        self.cases_of_ports: dict[int, int] = {}
        """Local port to the number of the last case that used it, to find the session a log line is about."""
        self.failures: list[Failure] = []
        self.tally: Counter[str] = Counter()
        self._look_at = 0.0

    def run(self, cases: Iterator[Case]) -> Iterator[None]:
        """Run all; yields now and then, so that the caller can look around (and stop by not coming back)."""
        more = True
        try:
            while more or self._running:
                while more and len(self._running) < self._concurrency:
                    case = next(cases, None)
                    if case is None:
                        more = False
                    else:
                        self._start(case)
                self._turn()
                yield
        finally:
            for session in list(self._running.values()):
                self._end(session, abort=True)
            self._poll.close()

    def _start(self, case: Case) -> None:
        session = Session(case, self._port)
        number = session.sock.fileno()
        self._running[number] = session
        self.cases_of_ports[session.local_port] = case.number
        self._poll.register(number, select.EPOLLIN | select.EPOLLOUT)
        tally = self.tally
        tally["sessions"] += 1
        if case.valid:
            tally["valid"] += 1
        else:
            tally["mutated after channel.open" if case.after_open else "mutated in the handshake"] += 1
            tally["mutations"] += len(case.mutations)
        tally[case.ending] += 1

    def _turn(self) -> None:
        for number, events in self._poll.poll(0.02):
            session = self._running.get(number)
            if session is None:
                continue
            try:
                if session.case.ending == "deaf" and not session.todo:
                    self._end(session, abort=True)
                    continue
                if session.case.ending != "deaf" and events & ~select.EPOLLOUT and self._read(session):
                    continue
                if events & select.EPOLLOUT:
                    self._write(session)
            except ReplyError as error:
                self._fail(session, str(error))
            except ConnectionResetError:  # octets of ours were not read, which may cost us the last replies
                if session.case.valid:
                    self._fail(session, "the broker has reset the connection")
                self._end(session)
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + 0.005
        for session in list(self._running.values()):
            if session.half_close_at and now > session.half_close_at:
                session.half_close_at = 0.0
                session.half_close()
            if session.leave_at and now > session.leave_at:
                self._end(session)
            elif now > session.deadline:
                if session.case.ending == "deaf":
                    self._end(session, abort=True)
                    continue
                self._fail(session, f"the broker has not ended it after {DEADLINE_SECONDS} s")

    def _write(self, session: Session) -> None:
        case = session.case
        if not session.send():
            if case.ending == "abort-amid" and len(session.todo) * 2 <= len(case.chunks):
                self._end(session, abort=True)
            return
        if case.ending in {"abort-sent", "abort-amid"}:
            self._end(session, abort=True)
            return
        if case.ending == "deaf":
            self._poll.modify(session.sock.fileno(), 0)
            session.deadline = time.monotonic() + DEAF_SECONDS
            return
        self._poll.modify(session.sock.fileno(), select.EPOLLIN)
        if case.ending == "graceful":
            session.half_close_at = time.monotonic() + PATIENCE_SECONDS
        else:
            session.half_close()

    def _read(self, session: Session) -> bool:
        """Take what came; True when the session is over."""
        data = session.sock.recv(262144)
        if not data:
            self._over(session)
            return True
        replies = session.replies
        before = replies.closed
        try:
            replies.feed(data)
        except (ValueError, KeyError, IndexError, struct.error) as error:
            raise ReplyError(f"does not decode: {error!r} in {data[:200]!r}") from error
        if session.case.ending == "abort-reply":
            self._end(session, abort=True)
            return True
        if replies.closed is not None and before is None:
            self.tally[f"connection.close {replies.closed[0]}"] += 1
            if session.case.number % 8 == 0:  # the broker keeps the socket for a while: see what else it says
                session.leave_at = time.monotonic() + LINGER_SECONDS
            elif replies.closed[0] == 501 or session.case.number % 8 < 3:
                self._end(session)
                return True
            if not session.half_closed and not session.todo:
                with contextlib.suppress(OSError):
                    session.sock.send(_CLOSE_OK)
        return False

    def _over(self, session: Session) -> None:
        """The broker has closed the socket."""
        case, replies = session.case, session.replies
        if case.valid:
            self._judge_valid(session)
        elif not replies.whole:
            self._fail(session, "the last reply is cut off")
            return
        self._end(session)

    def _judge_valid(self, session: Session) -> None:
        script, replies = session.case.script, session.replies
        for number, expected in script.expected.items():
            got = replies.methods.get(number, [])
            if got != expected:
                self._fail(session, f"channel {number}: expected {expected}, got {got}; {replies.closed}")
                return
        for number, count in script.published.items():
            got_count = replies.confirmed.get(number, 0)
            if count != got_count:
                self._fail(session, f"channel {number}: {count} publishes, confirmed up to {got_count}")
                return

    def _fail(self, session: Session, reason: str) -> None:
        self.failures.append(Failure(session.case, reason))
        self._end(session)

    def _end(self, session: Session, *, abort: bool = False) -> None:
        number = session.sock.fileno()
        if self._running.pop(number, None) is None:
            return
        self._poll.unregister(number)
        if abort:
            session.abort()
        else:
            session.sock.close()
