"""Conformance cases: their scripts, running one against a broker, and the form of its outcome."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from conformance.brokers import Broker
from conformance.codec import BY_NAME
from conformance.wire import Channel, Client, ClosedError, QuietError

CODES = {
    311: "CONTENT_TOO_LARGE", 312: "NO_ROUTE", 313: "NO_CONSUMERS", 320: "CONNECTION_FORCED", 402: "INVALID_PATH",
    403: "ACCESS_REFUSED", 404: "NOT_FOUND", 405: "RESOURCE_LOCKED", 406: "PRECONDITION_FAILED", 501: "FRAME_ERROR",
    502: "SYNTAX_ERROR", 503: "COMMAND_INVALID", 504: "CHANNEL_ERROR", 505: "UNEXPECTED_FRAME", 506: "RESOURCE_ERROR",
    530: "NOT_ALLOWED", 540: "NOT_IMPLEMENTED", 541: "INTERNAL_ERROR",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a script.

    `level` is "ok" (it ran to its end and returned `seen`), "channel" or "connection" (closed by the broker with a code,
    the ids of a method and a text), "socket" (closed without a method) or "quiet" (an answer never came). `after` says
    what the broker did next if that was wrong: a connection that stays open after its close, a channel number that cannot
    be opened again.
    """

    level: str
    code: int = 0
    class_id: int = 0
    method_id: int = 0
    text: str = ""
    seen: Any = None
    after: str = ""

    def __str__(self) -> str:
        """One line for tables."""
        after = f" ({self.after})" if self.after else ""
        if self.level == "ok":
            return ("ok" if self.seen is None else f"ok {_text(self.seen)}") + after
        if not self.code:
            return f"{self.level} {self.text}".strip() + after
        text = (
            self.text.encode("utf-8", "surrogateescape")
            .decode("utf-8", "backslashreplace")
            .replace("\n", "\\n")
        )
        return f"{self.level} {self.code} {self.class_id}/{self.method_id} {text}{after}"


def _text(seen: Any) -> str:
    """The text of what a script returned, the same for equal values: sorted where there is no order."""
    if isinstance(seen, dict):
        return f"{{{', '.join(sorted(f'{_text(key)}: {_text(value)}' for key, value in seen.items()))}}}"
    if isinstance(seen, set | frozenset):
        return f"{{{', '.join(sorted(map(_text, seen)))}}}"
    if isinstance(seen, list):
        return f"[{', '.join(map(_text, seen))}]"
    if type(seen) is tuple:
        return f"({', '.join(map(_text, seen))})"
    return repr(seen)


def _closed(level: str, code: int, method: str | None, text: str | None) -> Outcome:
    spec = BY_NAME[method] if method else None
    full = CODES[code] if text is None else f"{CODES[code]} - {text}"
    return Outcome(level, code, spec.class_id if spec else 0, spec.method_id if spec else 0, full)


def channel(code: int, method: str | None, text: str | None) -> Outcome:
    """The broker closes the channel; `method` is the one at fault, `text` what follows the code's name."""
    return _closed("channel", code, method, text)


def connection(code: int, method: str | None, text: str | None) -> Outcome:
    """The broker closes the connection; None as text: the code's name alone."""
    return _closed("connection", code, method, text)


def ok(seen: Any = None) -> Outcome:
    """The script runs to its end and returns this."""
    return Outcome("ok", seen=seen)


SOCKET = Outcome("socket")


class Session:
    """Environment of a script: clients of one broker, and names of its own."""

    def __init__(self, case: "Case", broker: Broker) -> None:
        """Names derive from the case, so that texts are the same on every broker."""
        self.broker = broker
        self.q, self.x = case.names["q"], case.names["x"]
        self._clients: list[Client] = []
        self._channel: Channel | None = None

    def client(self, timeout: float = 5.0) -> Client:
        """A new socket, nothing sent."""
        client = self.broker.client(timeout)
        self._clients.append(client)
        return client

    def login(self, user: str = "guest", virtual_host: str = "/", **rest: Any) -> Client:
        """A new connection, opened; every user's password is the name."""
        return self.client().login(user, user, virtual_host, **rest)

    def channel(self, user: str = "guest", virtual_host: str = "/", **rest: Any) -> Channel:
        """Channel 1 of a new connection."""
        return self.login(user, virtual_host, **rest).channel(1)

    def queue(self, **fields: Any) -> Channel:
        """Declare the case's queue on a new channel, which is returned."""
        opened = self.channel()
        opened.queue(self.q, **fields)
        return opened

    def finish(self) -> None:
        """Drop every socket."""
        for client in self._clients:
            client.close_socket()


def fill(s: Session, opened: Channel, count: int = 3) -> Channel:
    """Declare the case's queue and put the messages 1 to `count` into it."""
    opened.queue(s.q)
    for number in range(1, count + 1):
        opened.publish("", s.q, str(number).encode())
    opened.ready(s.q, count)
    return opened


Script = Callable[[Session], Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the error table (or a variant of it), or one sentence about the protocol."""

    id: str
    statement: str
    expect: Outcome
    script: Script
    setup: str = "main"
    fatal: bool = False
    outside: bool = False
    of: tuple[str, ...] = ("3.10", "4.3")
    profiles: tuple[str, ...] = ("3.13", "4.3")
    names: dict[str, str] = field(default_factory=dict)

    @property
    def row(self) -> int:
        """The row of the error table; 0 for further cases."""
        digits = re.match(r"\d+", self.id)
        return int(digits[0]) if digits else 0

    def asked_of(self, peer: str) -> bool:
        """Return whether a release of RabbitMQ is asked."""
        return not self.outside and peer in self.of


class Cases(list[Case]):
    """A list of cases filled by decorating their scripts.

    Args:
        prefix: the beginning of their ids.
        usual: fields of each case that does not say otherwise.

    """

    def __init__(self, prefix: str = "", **usual: Any) -> None:
        super().__init__()
        self._prefix, self._usual = prefix, usual

    def case(
        self, ident: str, expect: Outcome | None = None, *, statement: str | None = None, **rest: Any
    ) -> Callable[[Script], Script]:
        """Add a case; its statement is the script's docstring; in expected texts {q} and {x} are its queue and exchange."""
        ident = self._prefix + ident

        def add(script: Script) -> Script:
            name = ident.replace(".", "-").replace(" ", "-")
            names = {"q": f"q-{name}", "x": f"x-{name}"}
            outcome = ok() if expect is None else expect
            outcome = replace(
                outcome, text=outcome.text.replace("{q}", names["q"]).replace("{x}", names["x"])
            )
            words = statement or _statement(script)
            self.append(Case(ident, words, outcome, script, names=names, **self._usual | rest))
            return script

        return add


def _statement(script: Script) -> str:
    """The docstring of a script as a part of a sentence."""
    words = (script.__doc__ or "").removesuffix(".")
    return words[0].lower() + words[1:] if words.split()[0].istitle() else words


_MASKS = (
    (re.compile(r"<\d+\.\d+\.\d+>"), "<pid>"),
    (re.compile(r"amq\.gen-[A-Za-z0-9_\-]+"), "amq.gen-NAME"),
    (re.compile(r"amq\.ctag-[A-Za-z0-9_\-]+"), "amq.ctag-NAME"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:PORT"),
    (re.compile(r"(?<=')[\w-]+@[\w.-]+(?=')"), "NODE"),
)


def mask(text: str) -> str:
    """Text with what differs from run to run replaced."""
    for pattern, name in _MASKS:
        text = pattern.sub(name, text)
    return text


def _after(case: Case, error: ClosedError) -> str:
    """Do what a client owes after a close and see that the broker does its part."""
    client = error.client
    try:
        if error.level == "channel" and error.close:
            number = error.close.channel
            client.send(number, "channel.close-ok")
            client.call(number, "channel.open")
            return ""
        if error.level == "connection" and not case.fatal:
            client.send(0, "connection.close-ok")
            client.read_rest(timeout=4)
    except QuietError:
        return "the socket stays open" if error.level == "connection" else "the channel does not reopen"
    except (ClosedError, OSError) as problem:
        return f"then {problem}"
    return ""


def run(case: Case, broker: Broker) -> Outcome:
    """Run one case against a broker."""
    session = Session(case, broker)
    try:
        seen = case.script(session)
        return Outcome("ok", seen=mask(seen) if isinstance(seen, str) else seen)
    except ClosedError as error:
        after = _after(case, error)
        if error.close is None:
            return Outcome(error.level, after=after)
        fields = error.close.fields
        return Outcome(
            error.level,
            fields["reply_code"],
            fields["class_id"],
            fields["method_id"],
            mask(fields["reply_text"]),
            after=after,
        )
    except QuietError:
        return Outcome("quiet")
    except ConnectionError:
        return Outcome("socket")
    except (AssertionError, AttributeError, ValueError, KeyError, OSError) as problem:
        return Outcome("broken", text=f"{type(problem).__name__}: {problem}")
    finally:
        session.finish()
