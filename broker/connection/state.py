"""States of a connection: what each accepts, what may follow it, and RabbitMQ's names for them.

Theory. The states before `open` are those of the handshake (spec 2.2.4):

    header -> starting -> tuning -> opening -> open

Then the broker sends `connection.close` and waits for close-ok, or it answers the client's and waits for the end of the
socket:

    open -> closing -> closed          open -> closed

An error leads to `closing` or `closed` from everywhere, the loss of the socket to `lost`. `STATES` is the whole table;
`Connection.enter` is the only place where a state changes, and chooses the function that scans input in the new one.
"""

from typing import Any, NamedTuple

from leveret.broker.amqp.commands import Connection as Wire

HEADER = "header"  # before the protocol header
STARTING = "starting"  # start is sent, start-ok awaited
TUNING = "tuning"  # tune is sent, tune-ok awaited
OPENING = "opening"  # tune-ok is received, open awaited
OPEN = "open"  # open-ok is sent: channels may be opened
CLOSING = "closing"  # `connection.close` is sent, close-ok awaited
CLOSED = "closed"  # all input is discarded; the socket is closed when everything is written, or by the client
LOST = "lost"  # the socket is closed


class State(NamedTuple):
    """A row of the table of states."""

    accepts: tuple[type, ...]
    """Methods on channel 0 that are executed; others are errors, or ignored once `connection.close` was sent."""
    following: frozenset[str]  # states that may come next
    reports_errors: bool = False
    """True if a client's error is reported with `connection.close`; otherwise the socket is closed without a word."""


STATES: dict[str, State] = {
    HEADER: State((), frozenset({STARTING, CLOSING, CLOSED, LOST})),
    STARTING: State((Wire.StartOk,), frozenset({TUNING, CLOSING, CLOSED, LOST})),
    TUNING: State((Wire.TuneOk,), frozenset({OPENING, CLOSING, CLOSED, LOST})),
    OPENING: State((Wire.Open,), frozenset({OPEN, CLOSING, CLOSED, LOST}), reports_errors=True),
    OPEN: State((Wire.Close, Wire.UpdateSecret), frozenset({CLOSING, CLOSED, LOST}), reports_errors=True),
    CLOSING: State((Wire.Close, Wire.CloseOk), frozenset({CLOSING, CLOSED, LOST})),
    CLOSED: State((), frozenset({CLOSED, LOST})),
    LOST: State((), frozenset()),
}
HANDSHAKE = frozenset({HEADER, STARTING, TUNING, OPENING})  # the states of the handshake

FLOW_SECONDS = 5.0  # time for which a connection counts as paced, as in RabbitMQ: pauses are shorter


def connection_state(connection: Any, alarm: str, now: float) -> str:
    """Return RabbitMQ's name for the state (rabbit_reader); `now` is seconds of the clock of `Connection.paused_at`.

    `blocked`: it has published while an alarm was raised, and is not read. `blocking`: an alarm is raised, and it has
    not published yet. `flow`: it is paused now and then for queues or the disk. `running`, or `closing`: none of these.
    """
    if connection.state != OPEN:
        return "closing"
    if connection.blocked:
        return "blocked"
    if alarm:
        return "blocking"
    return "flow" if now - connection.paused_at < FLOW_SECONDS else "running"
