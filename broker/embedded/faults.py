"""Faults on demand: `Broker.faults` and `AsyncBroker.faults` (driver).

Theory. Each fault is a change of the `FaultState`, which the connections, alarms and the disk of the server look at,
and an undo. Everything runs in the event loop of the broker; the undo of a fault that has ended already does nothing.
"""

from collections.abc import Callable
from typing import Literal, Self

from leveret.broker.embedded.embedded_server import EmbeddedServer
from leveret.broker.embedded.errors import LeveretError
from leveret.broker.embedded.fault_state import MID_BODY, MOMENTS, FaultState

When = Literal["now", "before-confirm", "after-confirm", "mid-body"]
Tell = Callable[[EmbeddedServer], object]
Run = Callable[[Callable[[], object]], object]
"""Runs a function in the event loop of a broker. Raises what it raises, and ClosedBrokerError."""


class Fault:
    """An active fault. It ends with `end`, a `with` block or `Faults.clear`."""

    def __init__(self, end: Callable[[], object]) -> None:
        self._end: Callable[[], object] | None = end

    def end(self) -> None:
        """End the fault; no effect if it has ended."""
        end, self._end = self._end, None
        if end is not None:
            end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class Faults:
    """The faults of a broker.

    Each method begins a fault at once, and returns a `Fault` with which it ends: by its method `end`, or as a context
    manager. All methods raise ClosedBrokerError if the broker is not running.
    """

    def __init__(self, state: FaultState, server: Callable[[], EmbeddedServer], run: Run) -> None:
        self._state = state
        self._server = server
        self._run = run

    def _begin(self, begin: Tell, end: Tell, **changes: object) -> Fault:
        """Change the state, and tell the server; the end of the fault undoes that, and tells it, too."""

        def change() -> None:
            server = self._server()  # raises before anything has changed
            self._state.change(changes)
            begin(server)

        def undo() -> None:
            self._state.reset(changes)
            end(self._server())

        self._run(change)
        return Fault(lambda: self._run(undo))

    # -- publishers -------------------------------------------------------------------------------------------------

    def nack_next(self, count: int = 1) -> Fault:
        """Refuse the next publishes on channels in confirm mode: no queue gets them, and they are nacked.

        Args:
            count: number of publishes, at least 1.
        """
        _check_positive(count=count)
        return self._begin(EmbeddedServer.watch_publishes, EmbeddedServer.watch_publishes, nacks=count)

    def hold_confirms(self) -> Fault:
        """Send no confirms, neither acks nor nacks, until `release_confirms` or the end of the fault."""
        return self._begin(_nothing, EmbeddedServer.release_confirms, holds_confirms=True)

    def release_confirms(self) -> None:
        """Send the held confirms, and end `hold_confirms`."""
        self._run(self._release_confirms)

    def _release_confirms(self) -> None:
        self._state.reset(("holds_confirms",))
        self._server().release_confirms()

    # -- connections ------------------------------------------------------------------------------------------------

    def drop_connections(self, when: When = "now", *, times: int = 1) -> Fault:
        """Drop connections without `connection.close`, as a failing network does.

        Args:
            when: 'now' drops all connections at once. Otherwise the next connection is dropped that reaches this
                moment: 'before-confirm', when a publish is to be acked, which has taken effect; 'after-confirm', when
                the ack was sent; 'mid-body', in the middle of a message: the client gets half of the body of a
                delivery, or the broker half of that of a publish, which has no effect then.
            times: number of connections to be dropped, at least 1; without effect for 'now'.
        """
        _check_positive(times=times)
        if when == "now":
            return self._begin(EmbeddedServer.sever_all, _nothing)
        if when not in MOMENTS:
            raise ValueError(f"when is 'now' or one of {MOMENTS}, not {when!r}")
        tell = EmbeddedServer.watch_publishes if when == MID_BODY else _nothing
        return self._begin(tell, tell, moment=when, drops=times)

    def delay(self, seconds: float) -> Fault:
        """Delay all frames of the broker, by its own clock (`Broker.clock`).

        Args:
            seconds: the delay, more than 0.
        """
        _check_positive(seconds=seconds)
        return self._begin(_nothing, EmbeddedServer.release_output, delay=seconds)

    def slow_consumers(self, bytes_per_second: float) -> Fault:
        """Let connections with consumers take only so many bytes a second, by the clock of the broker.

        Args:
            bytes_per_second: more than 0. Up to as many bytes, and at least a kilobyte, are on their way at a time;
                further messages stay in their queues.
        """
        _check_positive(bytes_per_second=bytes_per_second)
        return self._begin(EmbeddedServer.limit_outboxes, _lift_limits, rate=bytes_per_second)

    def refuse_logins(self) -> Fault:
        """Refuse every login as if the password were wrong; connections that are open stay open."""
        return self._begin(_nothing, _nothing, refuses_logins=True)

    # -- resources --------------------------------------------------------------------------------------------------

    def block(self, resource: Literal["memory", "disk"]) -> Fault:
        """Raise an alarm: connections that publish are blocked, and get `connection.blocked` if they know it.

        Args:
            resource: the resource that the alarm names.
        """
        if resource not in {"memory", "disk"}:
            raise ValueError(f"resource is 'memory' or 'disk', not {resource!r}")

        return self._begin(
            EmbeddedServer.check_alarms, EmbeddedServer.check_alarms, **{f"is_{resource}_short": True}
        )

    def fill_disk(self) -> Fault:
        """Let every write find the disk full: persistent publishes are nacked, and publishers are blocked.

        Raises LeveretError for a broker without a data directory.
        """
        self._run(self._check_disk)
        return self._begin(_nothing, EmbeddedServer.check_alarms, is_disk_full=True)

    def _check_disk(self) -> None:
        if self._server().disk is None:
            raise LeveretError("the broker has no disk: give it a data_dir, or use faults.block('disk')")

    # -- deliveries -------------------------------------------------------------------------------------------------

    def redeliver_all(self) -> Fault:
        """Requeue all unacked deliveries, and deliver them again, flagged as redelivered.

        The consumer sees the same as after the loss of its channel, but the channel stays open. The acks of the first
        deliveries have no effect.
        """
        return self._begin(EmbeddedServer.redeliver_all, _nothing)

    def hostile(self, seed: int = 0) -> Fault:
        """Behave in ways that AMQP allows and clients do not expect, chosen by the seed.

        A quarter of the messages is delivered twice, the second time flagged as redelivered and after up to three
        younger messages. Publishes are confirmed one by one, in any order. Frames of several channels are interleaved.

        The seed determines which messages of a queue are duplicated, by their positions in the queue, and the order of
        confirms that are sent together. It also determines the order of deliveries to the only consumer of a queue,
        whatever its prefetch and whenever it acks, if the messages are in the queue before it begins. A duplicate does
        not wait for younger messages if none is in the queue; so beside a publisher its place depends on that, too.

        Args:
            seed: another one gives another order.
        """
        return self._begin(EmbeddedServer.release_duplicates, EmbeddedServer.release_duplicates, seed=seed)

    # -- the end ----------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """End all faults. Confirms that were held and frames on their way are sent."""
        self._run(self.clear_in_loop)

    def clear_in_loop(self) -> None:
        """End all faults; must be called in the event loop of the broker."""
        server = self._server()
        self._state.reset()
        server.release_duplicates()
        server.watch_publishes()
        server.release_confirms()
        _lift_limits(server)
        server.check_alarms()


def _nothing(_: EmbeddedServer) -> None: ...


def _lift_limits(server: EmbeddedServer) -> None:
    server.limit_outboxes()
    server.release_output()


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if value <= 0:
            raise ValueError(f"{name} must be more than 0, not {value}")
