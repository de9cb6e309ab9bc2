"""The gate of a broker: its listeners, the sockets of its clients, and what all of these may take (driver)."""

import asyncio
import logging
import resource
from collections.abc import Callable, Iterable
from typing import Any

from leveret.broker.config.sections import Config
from leveret.broker.connection.node import Node
from leveret.broker.network.listener import Listeners
from leveret.broker.network.socket_state import CHECK_SECONDS
from leveret.broker.process.resource_alarms import Unsent
from leveret.broker.process.shares import Shares
from leveret.broker.scheduling.loop import Loop
from leveret.broker.scheduling.timer_wheel import PeriodicSweep
from leveret.broker.tls.certificates import Certificates

log = logging.getLogger("leveret.connection")

READ_SIZE = 128 * 1024  # larger reads make the pipeline with clients coarse, smaller ones cost system calls
WRITE_HIGH = 1024 * 1024
PROXY_SECONDS = 10.0  # time for the header of a proxy if there is no time limit of the handshake
RESERVED_FILES = 64  # file descriptors that are for something else than clients
HALF_OPEN_SHARE = 4  # divisor of the limit of file descriptors for clients that have not logged in
UNSENT_SHARE = 4  # divisor of the memory limit for the default limit on data that clients do not read
UNSENT_LEAST = 16 * 1024 * 1024
UNSENT_SECONDS = 1.0  # interval of checks of that data


class Gate:
    """The listeners and sockets of one broker."""

    def __init__(
        self,
        config: Config,
        loop: Loop,
        node: Node,  # what connections have of their broker
        make_driver: Callable[[], Any],  # makes the driver of a new client
        memory_limit: int,  # bytes above which publishers are blocked
    ) -> None:
        # config: as given; drivers apply the options of sockets
        self.config, self.loop, self.node = config, loop, node
        self.make_driver = make_driver
        self.read_buffer = memoryview(bytearray(READ_SIZE))
        """All connections read into it: a read is copied out of it before the next can begin."""
        self.write_high = WRITE_HIGH
        self.linger = config.linger_timeout if config.linger else None
        """Seconds for the last bytes to be acknowledged before a socket is reset; None to close without a reset."""
        self.send_timeout = config.send_timeout if config.send_timeout_close else None
        """Seconds after which a client that does not read is disconnected; None for never."""
        self.drivers: set[Any] = (
            set()
        )  # the drivers of all open sockets (`SocketDriver`, which imports this module)
        self.all_closed = asyncio.Event()  # set whenever the last socket is closed
        self.certificates = Certificates(node.audit)
        # return what waits in memory for clients of HTTP; code that starts such listeners adds one
        self.unsent_answers: list[Callable[[], Iterable[Unsent]]] = []
        self.most_sockets = max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - RESERVED_FILES)
        """Maximum number of clients that the file descriptors allow."""
        self._refused_count = 0
        self.listeners = Listeners(
            self._places(),
            make_driver,
            self.log_refusal,
            (config.handshake_timeout or PROXY_SECONDS) if config.proxy_protocol else None,
            config.tls_handshake_rate,
        )
        limit = config.limits.unsent_octets
        self.unsent_limit = max(memory_limit // UNSENT_SHARE, UNSENT_LEAST) if limit is None else limit
        self._unsent_due = 0.0
        checks = PeriodicSweep(lambda: self.drivers, lambda each, now: each.check_peer(now), CHECK_SECONDS)
        loop.on_tick += [checks.run, self._check_unsent, self._log_refused]

    def _places(self) -> Shares:
        config = self.config
        most = min(config.max_half_open, max(2, self.most_sockets // HALF_OPEN_SHARE))
        return Shares(most, min(config.max_half_open_per_address or most // 2, most))

    # -- listeners --------------------------------------------------------------------------------------------------

    async def bind(self) -> None:
        """Bind the listeners, which do not accept yet."""
        config = self.config
        await self.listeners.bind(config.listeners)
        if config.tls_listeners:
            tls = self.certificates.add(config.tls, config.tls_handshake_timeout)
            await self.listeners.bind(config.tls_listeners, tls)

    @property
    def addresses(self) -> dict[str, list[tuple[str, int]]]:
        """The bound addresses by RabbitMQ's name of the protocol."""
        return {"amqp": self.listeners.addresses, "amqp/ssl": self.listeners.tls_addresses}

    def close(self) -> None:
        """Stop accepting connections."""
        self.listeners.close()

    def log_refusal(self, host: str, name: str, reason: str) -> None:
        """Log that a client was refused before it got a connection, at most one line per second for its address."""
        if self.node.logins.refusal_log.admit(host, self.loop.time_source.now()):
            log.error("closing connection %s: %s", name, reason)

    # -- sockets ----------------------------------------------------------------------------------------------------

    @property
    def out_of_files(self) -> bool:
        """True while connections are refused for lack of file descriptors."""
        return len(self.drivers) >= self.most_sockets

    def register(self, driver: Any) -> bool:
        """Register a new socket; False to refuse it."""
        if self.node.is_stopping:
            return False
        if self.out_of_files:
            if not self._refused_count:
                log.error(
                    "refused a connection: the limit of file descriptors is reached; raise it (ulimit -n, or "
                    "LimitNOFILE of systemd), or close connections that are not needed"
                )
            self._refused_count += 1
            return False
        self.drivers.add(driver)
        self.loop.wake(driver.connection, self.node.config.handshake_timeout)
        return True

    def unregister(self, driver: Any) -> None:
        """Unregister a socket."""
        self.release_half_open(driver)
        self.drivers.discard(driver)
        self.loop.ticks.forget(driver.connection)
        if not self.drivers:
            self.all_closed.set()

    def release_half_open(self, driver: Any) -> None:
        """Release the half-open place of a client that has logged in or disconnected."""
        origin, driver.origin = driver.origin, ""
        if not origin:
            return
        source = self.loop.time_source
        left = driver.half_open_until - source.now()
        if left > 0:
            source.call_later(left, self.listeners.release, origin)
        else:
            self.listeners.release(origin)

    def _log_refused(self, _now: float) -> None:
        if self._refused_count:
            log.error("refused %d connections: the limit of file descriptors is reached", self._refused_count)
            self._refused_count = 0
        for address, count in self.node.logins.refusal_log.take_suppressed(self.loop.time_source.now()):
            log.error("refused %d more connections from %s that did not log in", count, address)

    def _check_unsent(self, now: float) -> None:
        if now >= self._unsent_due:
            self._unsent_due = now + UNSENT_SECONDS
            self.limit_unsent()

    def limit_unsent(self) -> None:
        """Disconnect the clients with most unsent data if all of it together exceeds the limit."""
        waiting: list[Unsent] = [(driver.unsent, driver.disconnect) for driver in self.drivers]
        for answers in self.unsent_answers:
            waiting += answers()
        total = sum([octets for octets, _ in waiting])
        if total <= self.unsent_limit:
            return
        for octets, disconnect in sorted(waiting, key=lambda each: -each[0]):
            disconnect(
                f"the client has not read {octets} pending bytes, and the {total} bytes pending for all clients "
                f"exceed limits.unsent_bytes ({self.unsent_limit})"
            )
            total -= octets
            if total <= self.unsent_limit:
                break
