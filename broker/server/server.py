"""The server: owns listeners, connections, vhosts, users, and their shared turn (driver)."""

import asyncio
import contextlib
import itertools
import logging
import os
import resource
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from importlib import import_module
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from leveret import __version__
from leveret.broker import COMPATIBLE_VERSION, exit_codes
from leveret.broker.administration import Administration, BadRequestError, DefinitionsError
from leveret.broker.administration.access import Delegation
from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Connection as Wire, make
from leveret.broker.amqp.sasl import ANONYMOUS, EXTERNAL, mechanisms
from leveret.broker.amqp.tables import typed
from leveret.broker.auth.login_throttle import HTTPLogins, LoginSources, LoginThrottle
from leveret.broker.auth.name_patterns import Patterns
from leveret.broker.auth.passwords import Password, PasswordPolicy, WeakPasswordError
from leveret.broker.auth.sessions import Sessions
from leveret.broker.auth.users import User, Users
from leveret.broker.channel.channel import Channel
from leveret.broker.config.config import Config, effective
from leveret.broker.connection.connection import Connection
from leveret.broker.connection.connection_tracking import ConnectionTracking
from leveret.broker.connection.flow_control import FlowControl
from leveret.broker.connection.node import Backends
from leveret.broker.connection.publish_limits import Buckets, PublishLimits
from leveret.broker.counters.confirm_latency import ConfirmWait
from leveret.broker.counters.histogram import Latency
from leveret.broker.metadata.recorder import (
    Definitions,
    MetadataJournal,
    NullJournal,
    StoredGlobalParameters,
    StoredUsers,
)
from leveret.broker.metadata.restore import restore
from leveret.broker.network.listener import Listeners
from leveret.broker.network.peer_check import CHECK_SECONDS
from leveret.broker.network.socket_driver import SocketDriver
from leveret.broker.persistence.damage_log import DamageLog
from leveret.broker.process.audit_log import AuditLog
from leveret.broker.process.garbage_collector import COLLECTIONS, Collector
from leveret.broker.process.log_limit import LogLimit
from leveret.broker.process.named_files import MOST_DEFINITIONS, read_named
from leveret.broker.process.resource_alarms import Unsent, disk_limit, memory_limit
from leveret.broker.process.shares import Shares
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.scheduling.periodic_sweep import PeriodicSweep
from leveret.broker.scheduling.time_slices import TimeSlices
from leveret.broker.scheduling.time_source import TimerHandle, TimeSource
from leveret.broker.scheduling.timer_wheel import TICK_SECONDS, TimerWheel
from leveret.broker.scheduling.turn import Turn
from leveret.broker.server.resource_monitor import ResourceMonitor
from leveret.broker.server.shutdown import STOP_SECONDS, Shutdown, Telemetry
from leveret.broker.statistics.node_figures import ListenerFacts
from leveret.broker.vhost.object_limits import ObjectLimits
from leveret.broker.vhost.parameter_checks import SHOVEL
from leveret.broker.vhost.parameters import Parameters
from leveret.broker.vhost.vhost import VHost, make_in_memory
from leveret.confirm.deadlock import FORSAKEN, TRAP, TRAP_SECONDS, is_forsaken, is_trapped
from leveret.confirm.modes import CONFIRM_MODES
from leveret.storage.queues.memory_monitor import INTERVAL as PAGING_SECONDS, MemoryMonitor
from leveret.storage.queues.pager import freeing

if TYPE_CHECKING:
    from leveret.broker.administration.access import Cluster, ProcessControl
    from leveret.broker.administration.definitions_outcome import Outcome
    from leveret.broker.connection.event_exchange import EventExchange
    from leveret.broker.persistence.backup import Backups
    from leveret.broker.persistence.data_store import DataStore
    from leveret.broker.shovel.shovels import Shovels
    from leveret.broker.statistics.statistics import Statistics
    from leveret.broker.tls.certificate import CertificateFacts
    from leveret.broker.tls.credentials import Credentials, Watch

T = TypeVar("T")
log = logging.getLogger("leveret.connection")
loop_log = logging.getLogger("leveret")
queue_log = logging.getLogger("leveret.queue")
storage_log = logging.getLogger("leveret.storage")

READ_SIZE = 128 * 1024  # larger reads make the pipeline with clients coarse, smaller ones cost system calls
WRITE_HIGH = 1024 * 1024
PROXY_SECONDS = 10.0
"""Time for the header of a proxy if there is no time limit of the handshake."""
ERROR_LINES = 10
"""Lines of the log within a second about errors of one user from one address."""
HALF_OPEN_SHARE = 4
"""Divisor of the limit of file descriptors for the number of clients that have not logged in."""
UNSENT_SHARE = 4
"""Divisor of the memory limit for the default limit on data that clients do not read."""
UNSENT_LEAST = 16 * 1024 * 1024
UNSENT_SECONDS = 1.0
MOST_ROWS = 50_000
"""Changes of metadata that wait for a full disk; all of them are tried again together, a few hundred bytes each."""
HELD_OCTETS = 1024 * 1024
"""Bytes of incomplete publishes that a connection may hold while memory is short."""
CLUSTER_NAME = "cluster_name"
"""The global parameter that is the name of the cluster."""
CLUSTER_ID = "internal_cluster_id"
"""The global parameter that is the id of the cluster: made at the first start, as by RabbitMQ."""
_CLUSTER_ID_OCTETS = 16
RESERVED_FILES = 64  # file descriptors reserved for everything that is not a client


def server_properties(cluster_name: str) -> dict[str, object]:
    """Return the server properties that `connection.start` sends."""
    return {
        "capabilities": {
            "publisher_confirms": True,
            "exchange_exchange_bindings": True,
            "basic.nack": True,
            "consumer_cancel_notify": True,
            "connection.blocked": True,
            "consumer_priorities": True,
            "authentication_failure_close": True,
            "per_consumer_qos": True,
            "direct_reply_to": True,
        },
        "cluster_name": cluster_name,
        "copyright": "Copyright (c) the Leveret authors",
        "information": "Licensed under the Apache License 2.0",
        "platform": "Python",
        "product": "RabbitMQ",
        "version": COMPATIBLE_VERSION,
        "leveret_version": __version__,
    }


class Server:
    """A broker.

    Args:
        config: the configuration. `start` binds its listeners; `stop` ends every connection.
        disk: the data store; None for a broker without persistence. The server closes it.
        time_source: the time of everything that happens after a time; None for the real time.

    Raises what `load_definitions` raises.
    """

    monitor_class: type[ResourceMonitor] = ResourceMonitor
    driver_class = SocketDriver
    users_class = StoredUsers
    vhost_class: Callable[..., VHost] = VHost
    channel_class: Callable[[int, Any], Channel] = Channel

    def __init__(  # noqa: PLR0915 - all it has, in one place
        self, config: Config, disk: "DataStore | None" = None, time_source: TimeSource | None = None
    ) -> None:
        self.config = config
        self.limits = limits = config.limits
        self.compatibility = config.compatibility
        self.disk = disk
        self.time_source = TimeSource() if time_source is None else time_source
        # shared by connections (see `broker.connection.node.Node`)
        self.turn = Turn(TimeSlices(self.monotonic, self.used, round(config.slow_step * 1e9)))
        self.context = NodeContext(self.time_source.wall)
        self.turn.is_backlogged = self._is_backlogged
        self.turn.is_full = self._is_full
        for mode in CONFIRM_MODES:
            self.context.latencies.confirm[mode] = Latency()
        self.export = self._make_export()
        self.journal: MetadataJournal = NullJournal() if disk is None else disk.journal
        next_id = itertools.count(1).__next__ if disk is None else disk.next_id
        self.definitions = Definitions(self.journal, next_id, self.context)
        self._event_exchange = self._make_event_exchange()
        self.patterns = Patterns(python=config.compatibility.python_patterns)
        self.users: Users = self.users_class(self.definitions, config.loopback_users, self.patterns)
        self.backends: Backends | None = self._make_backends()
        rules = config.credentials
        self.users.passwords = PasswordPolicy(
            rules.hashing,
            (rules.min_length or 0) if rules.validator == "min_length" else 0,
            self.patterns.compile(rules.regexp) if rules.validator == "regexp" else None,
        )
        self.vhosts: dict[str, VHost] = {}
        self._file_limit = max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - RESERVED_FILES)
        self.clients = ConnectionTracking(
            self.turn,
            self.context,
            self.users,
            self.vhosts,
            node_name=config.node_name,
            connection_max=limits.connection_max,
            channel_max=limits.channel_max_per_node,
            most_sockets=self._file_limit,
        )
        self.damage_log = None if disk is None else DamageLog(disk.damages, self.vhosts)
        self.object_limits = ObjectLimits(
            self.vhosts,
            queues=limits.cluster_queue_limit,
            exchanges=limits.cluster_exchange_limit,
            bindings_of=limits.vhost_bindings,
            argument_octets=limits.argument_octets,
        )
        self.parameters = Parameters(self)
        self.global_parameters = StoredGlobalParameters(self.definitions)
        self.mechanisms = config.auth_mechanisms
        self.anonymous_user = config.anonymous_user
        self.certificate_login = config.certificate_login
        self.handshake_timeout = config.handshake_timeout
        self.auth_failure_delay = config.auth_failure_delay
        self.initial_frame_max = config.initial_frame_max
        self.frame_max = config.frame_max
        self.channel_max = config.channel_max
        self.heartbeat = config.heartbeat
        self.consumer_timeout = round(config.consumer_timeout * 1000)
        self.confirm_timeout = config.confirm_timeout
        self.delegation = Delegation(
            "" if config.shovel.certificate_dir is None else str(config.shovel.certificate_dir.absolute()),
            config.shovel.local_rights == "setter",
            config.rerouting == "policymaker",
        )
        self.collector = Collector()
        self.resource_monitor = self.monitor_class(
            self,
            disk,
            memory_limit(config.memory_absolute, config.memory_relative),
            disk_limit(config.disk_free_absolute, config.disk_free_relative),
        )
        self.alarm = ""
        self.blocked: set[Connection] = set()
        # the process
        self.read_buffer = memoryview(bytearray(READ_SIZE))
        self.write_high = WRITE_HIGH
        self.send_timeout = config.send_timeout if config.send_timeout_close else None
        self.linger = config.linger_timeout if config.linger else None
        self.addresses: list[tuple[str, int]] = []
        self.tls_addresses: list[tuple[str, int]] = []
        self.drivers: set[SocketDriver] = set()
        most = min(config.max_half_open, max(2, self._file_limit // HALF_OPEN_SHARE))
        share = config.max_half_open_per_address or most // 2
        self.audit = AuditLog(self.time_source.wall, is_on=False)
        """The audit log, which whoever opens its file switches on."""
        self.audit.is_required = config.audit.required
        self.audited_objects: str = config.audit.objects
        self.publish_limits = PublishLimits(
            limits.connection_max_publish_rate, limits.connection_max_publish_bytes
        )
        self.publish_buckets = Buckets()
        self.login_throttle = LoginThrottle(config.auth_max_failures, config.auth_failure_period)
        self.login_sources = LoginSources()
        self.http_logins = HTTPLogins()
        self.is_basic_disabled = config.management.disable_basic_auth
        self.sessions = Sessions(self.users, config.management.session_seconds)
        self.http_listeners: list[ListenerFacts] = []
        """The HTTP listeners, which whoever starts them adds."""
        self.unsent_answers: list[Callable[[], Iterable[Unsent]]] = []
        """Each returns what waits in memory for clients of HTTP, which whoever starts the listeners adds."""
        self.refusal_log = LogLimit()
        self.error_log = LogLimit(ERROR_LINES)
        self.credentials: list[Credentials] = []
        """The certificates of all listeners with TLS; whoever starts an HTTP listener adds its own."""
        self._reloads: set[asyncio.Task[None]] = set()
        self._watch: Watch | None = None
        places = Shares(most, min(share, most))
        self._listeners = Listeners(
            places,
            lambda: self.driver_class(self),
            self.log_refusal,
            (config.handshake_timeout or PROXY_SECONDS) if config.proxy_protocol else None,
            config.tls_handshake_rate,
        )
        self._refused_count = 0
        self._stopping = False
        self._is_open = False
        self._is_recovered = False
        """True once queues have the messages of the last run."""
        self._began = self._ticked = 0.0
        """Time of the start, and of the last tick of the clock."""
        self.all_closed = asyncio.Event()
        """Set whenever the last socket is closed."""
        self._turn_scheduled = False
        self._confirm_wait = ConfirmWait()
        self._withheld: asyncio.TimerHandle | None = None
        """Sends the confirms that are withheld."""
        self._jobs_scheduled = False
        self._paging_due = 0.0
        self._timer: TimerHandle | None = None
        self._waiting_for_disk: list[FlowControl] = []
        self._ticks = TimerWheel(0.0)
        self._peer_checks = PeriodicSweep(lambda: self.drivers, SocketDriver.check_peer, CHECK_SECONDS)
        limit = max(self.resource_monitor.memory.limit // UNSENT_SHARE, UNSENT_LEAST)
        self._unsent_limit = limit if limits.unsent_octets is None else limits.unsent_octets
        self._unsent_due = 0.0
        self._overdue = PeriodicSweep(lambda: self.clients.connections, Connection.close_overdue)
        self._queue_checks = PeriodicSweep(self._all_queues, self._check_queue)
        self._loop: asyncio.AbstractEventLoop
        self._ticker: asyncio.TimerHandle | None = None
        self._tick_due = 0
        self.goes_on = False
        """True if the process goes on, as a node that waits, once the server is stopped."""
        self.process: ProcessControl | None = None
        """The process, if it is the broker's own."""
        self.cluster: Cluster | None = None
        """The cluster, if the log is replicated."""
        self._shovels: Shovels | None = None
        self._loading_shovels: asyncio.Task[None] | None = None
        self.administration = Administration(self)
        self._recovered = self.load_definitions(() if disk is None else disk.environment.rows("defs"))
        self._start_frames: tuple[str | None, bytes, bytes] = None, b"", b""
        """The name of the cluster, and the first frames with it, without and with TLS."""

    def load_definitions(self, rows: Iterable[tuple[bytes, bytes]]) -> list[Queue]:
        """Create what an earlier run has stored or, if this is the first one, what the configuration defines.

        Users, vhosts, permissions and limits of the configuration apply to an empty store only, as in RabbitMQ: later
        they would restore what an administrator has changed or deleted. Nor do they apply if a definitions file is to
        be imported, which `start` does.

        Returns:
            The durable queues of the earlier run, without their messages.

        Raises:
            DamagedError, UnknownFormatError: see `restore.restore`.
            InvalidPatternError: a pattern of the configuration is invalid.
            WeakPasswordError: a password of the configuration is not allowed by its rules.

        """
        stored = list(rows)
        if stored:
            queues = restore(stored, self.definitions, self.users, self.global_parameters, self._make_vhost)
            if self.context.events is not None:
                self.context.events.forget()
            return queues
        config = self.config
        if config.definitions is None:
            self._seed()
        elif config.users != Config().users:
            names = ", ".join([f"'{user.name}'" for user in config.users])
            text = (
                "definitions: %s has to define the users, so those of the configuration (%s) are not created"
            )
            log.warning(text, config.definitions, names)
        return []

    def _seed(self) -> None:
        """Create the vhosts and users of the configuration."""
        config = self.config
        for name in config.vhosts:
            self.add_vhost(name)
        for name, vhost_limits in self.limits.vhost_limits.items():
            self.users.set_vhost_limits(name, vhost_limits)
        for user in config.users:
            try:
                hashed = self.users.passwords.hashed(Password(user.password))
            except WeakPasswordError as error:
                raise WeakPasswordError(f"password of the default user '{user.name}': {error}") from None
            self.users.add(User(user.name, hashed, tuple(user.tags), self.users.passwords.algorithm))
            for vhost, (configure, write, read) in user.permissions.items():
                self.users.set_permissions(user.name, vhost, configure, write, read)
        for row in config.topic_permissions:
            self.users.set_topic_permissions(row.user, row.vhost, row.exchange, row.write, row.read)
        for name, user_limits in self.limits.user_limits.items():
            self.users.set_user_limits(name, user_limits)

    def add_vhost(
        self, name: str, *, description: str = "", tags: tuple[str, ...] = (), default_queue_type: str = ""
    ) -> VHost:
        """Add a vhost."""
        vhost = self._make_vhost(name)
        vhost.description, vhost.tags, vhost.default_queue_type = description, tags, default_queue_type
        self.definitions.add_vhost(vhost)
        for default in self.limits.default_limits:
            if self.patterns.compile(default.pattern)(name.encode("utf-8", "surrogateescape")):
                self.users.set_vhost_limits(name, default.limits)
                break
        if self._event_exchange is not None and name == self._event_exchange.vhost:
            self._event_exchange.open(vhost)  # it was deleted with everything in it
        return vhost

    def update_vhost(self, vhost: VHost) -> None:
        """Record the current description, tags and default queue type of a vhost."""
        self.definitions.update_vhost(vhost)

    def remove_vhost(self, vhost: VHost) -> None:
        """Delete a vhost with everything in it and all permissions in it; its connections must be closed before.

        It is no longer found from now on, and a restart does not restore it once this is committed; its queues and
        exchanges are deleted by a job.
        """
        del self.vhosts[vhost.name]
        self.definitions.remove_vhost(vhost)
        self.users.remove_vhost(vhost.name)
        steps = self.context.acting(self.context.actor, vhost.remove_all())
        self.turn.add_writing_job(steps, f"deletion of vhost '{vhost.name}'")

    def _make_vhost(self, name: str) -> VHost:
        """Create a vhost that is not recorded yet."""
        vhost = self.vhosts[name] = self.vhost_class(
            name,
            self.turn,
            self.context,
            limits=lambda: self.users.vhost_limits(name),
            make_backing=make_in_memory if self.disk is None else self.disk.make_backing,
            delay_disk=self.disk,
            confirm_mode=self.config.confirm_mode,
            most_deaths=self.limits.most_deaths,
            patterns=self.patterns,
            object_limits=self.object_limits,
        )
        vhost.router.hop_limit = self.limits.exchange_hops
        vhost.parameters.on_change = self._parameter_changed
        return vhost

    def _make_backends(self) -> Backends | None:
        """Create the backends that decide about logins, unless the internal database alone does."""
        settings = self.config.backends
        if settings.is_internal:
            return None
        from leveret.broker.auth.backends.access_control import access_control  # noqa: PLC0415 - only if it is used

        return access_control(
            settings, self.users, now=self.time_source.now, wall=self.time_source.wall, in_step=self._answered
        )

    def _answered(self, work: Callable[[], object]) -> None:
        """Do what the answer of a backend leads to, as a step of the loop."""

        def step() -> None:
            work()
            self._run_and_finish_turn()

        self.run_step("answer of a backend", step)

    def _make_export(self) -> Telemetry | None:
        """Create the telemetry export if it is configured."""
        if self.config.export.dir is None:
            return None
        # Imported here, because that takes longer than the start of a server without it.
        from leveret.broker.export.writer import Export  # noqa: PLC0415

        return Export(self, self.config.export, self.config.node_name)

    def _make_event_exchange(self) -> "EventExchange | None":
        """Create what publishes events, if that is configured; nothing is published before it is opened."""
        if not self.config.events.enabled:
            return None
        from leveret.broker.connection.event_exchange import EventExchange  # noqa: PLC0415 - most brokers have none

        self.context.feed = made = EventExchange(self.turn, self.context, self.config.node_name)
        return made

    def _open_event_exchange(self) -> None:
        """Declare the exchange of events, with its vhost if there is none, and publish them from now on."""
        if self._event_exchange is not None:
            name = self.config.events.vhost
            self._event_exchange.open(self.vhosts.get(name) or self.add_vhost(name))

    # -- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bind the listeners; clients may connect when this returns. Raises OSError for a port that is in use.

        If it fails the data are left as after a clean stop: nothing was delivered, so nothing is marked as redelivered
        later, and no recovery is needed.
        """
        self._loop = loop = asyncio.get_running_loop()
        self.time_source.attach(loop)
        self._began = self.now()
        while self.turn.slices:  # left by the restoration of metadata; turns begin after the disk
            self.run_step("job", self.turn.slices.run)
            await asyncio.sleep(0)
        self.turn.slices.on_waiting = self._schedule_jobs
        if CLUSTER_ID not in self.global_parameters:
            new = secrets.token_urlsafe(_CLUSTER_ID_OCTETS)
            self.global_parameters.set(CLUSTER_ID, f"rabbitmq-cluster-id-{new}")
        try:
            await self._bind()
            if self.disk is not None:
                await self._start_disk(self.disk)
            if self.config.definitions is not None:
                self.import_definitions(self.config.definitions)
                await self.stored()
            self._open_event_exchange()
            self.resource_monitor.start(loop)
            if self.disk is not None:
                self.disk.environment.begin_use()
            self._listeners.open(self.config.backlog)
        except BaseException:
            await self._abandon()
            raise
        self.context.timers.on_sooner = self._set_timer
        self._run_timers()
        self._ticks = TimerWheel(self.time_source.now())
        self._schedule_tick()
        self._ticked = self.now()
        self._is_open = True
        self.watch_certificates()
        self.turn.slices.watch()
        if self.export is not None:
            self.export.start(loop)
        if any(vhost.parameters for vhost in self.vhosts.values()):
            if self.config.shovel.enabled:
                self._loaded_shovels().start()
            else:
                log.warning("no shovel runs: shovel.enabled is false")

    async def _abandon(self) -> None:
        """Close everything that a failed start has opened."""
        self._listeners.close()
        self.resource_monitor.stop()
        if self.disk is None:
            return
        if self._is_recovered:
            await self.disk.stop(
                store
                for vhost in self.vhosts.values()
                for queue in vhost.queues.values()
                for store in queue.stores
            )
        else:
            self.disk.close()

    async def _start_disk(self, disk: "DataStore") -> None:
        """Recover the messages of the last run, and have the configuration's objects stored."""
        began = self.now()
        monitor = self.resource_monitor
        disk.start(self, self._loop, monitor.report_full, self.time_source, monitor.disk.limit)
        slices = self.turn.slices
        disk.pager.release = lambda run: slices.add(freeing(run), "release of dropped messages")
        total = disk.recover([store for queue in self._recovered for store in queue.stores])
        if self._recovered:
            seconds = self.now() - began
            log.info("recovered %d queues, %d messages in %.2f s", len(self._recovered), total, seconds)
        for queue in self._recovered:
            queue.recovered()
        self._recovered = []
        self._is_recovered = True
        delayed = disk.recover_delayed(line for vhost in self.vhosts.values() for line in vhost.delay_lines())
        if delayed:
            log.info("recovered %d delayed messages", delayed)
        await self.stored()

    async def stored(self, *, files: bool = False) -> bool:
        """Wait until everything journaled so far is on disk; False if the disk is full.

        `files`: also wait for bodies that are being written to files of their own.
        """
        self.run_turn()
        await self.finish_jobs()
        stored: asyncio.Future[bool] = self._loop.create_future()
        wait = self.journal.when_all_safe if files else self.journal.when_safe
        wait(partial(_resolve, stored))
        self.finish_turn()
        return await self.result_of(stored)

    async def result_of(self, future: "asyncio.Future[T]") -> T:
        """Wait for a future that the server resolves."""
        return await future

    async def finish_jobs(self) -> None:
        """Wait until no work is deferred any more."""
        while self.turn.slices or self.turn.has_paused_jobs:  # each round of the loop runs a step of the jobs
            self.turn.resume_paused_jobs()
            await asyncio.sleep(0)

    def import_definitions(self, path: Path) -> "list[Outcome]":
        """Import a definitions file, or each one of a directory. Raises DefinitionsError for invalid definitions."""
        outcomes = []
        for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
            try:
                done = self.administration.definitions.import_file(None, read_named(file, MOST_DEFINITIONS))
            except OSError as error:
                raise DefinitionsError(f"cannot read definitions {file}: {error.strerror}") from None
            except BadRequestError as error:
                raise DefinitionsError(f"cannot import definitions {file}: {error}") from None
            log.info("definitions: imported from %s: %s", file, done.summary())
            self.audit.record("definitions.import", name=str(file), reason=done.summary())
            outcomes.append(done)
        return outcomes

    async def _bind(self) -> None:
        """Bind the listeners, which do not accept yet."""
        await self._listeners.bind(self.config.listeners)
        self.addresses = self._listeners.addresses
        if self.config.tls_listeners:
            from leveret.broker.tls.credentials import Credentials  # noqa: PLC0415 - only if it is used

            tls = Credentials(self.config.tls, self.config.tls_handshake_timeout)
            self.credentials.append(tls)
            await self._listeners.bind(self.config.tls_listeners, tls)
            self.tls_addresses = self._listeners.tls_addresses

    def watch_certificates(self) -> None:
        """Read the certificates of listeners again when their files have changed, until `forget_certificates`."""
        if self.credentials:
            from leveret.broker.tls.credentials import Watch  # noqa: PLC0415 - only if it is used

            for each in self.credentials:
                each.on_reload = self._record_reload
            self._watch = Watch(self.credentials, self.config.tls.reload_interval)
            self._watch.start()

    async def forget_certificates(self) -> None:
        """Look no more whether certificates have changed."""
        if self._watch is not None:
            await self._watch.stop()

    async def stop(self, reason: str = "shutdown", seconds: float = STOP_SECONDS) -> int:
        """Stop accepting, close every connection with 320, write to disk what only memory has, and close the store.

        `seconds`: time for clients to answer; the sockets of those that did not are closed then. Returns the number of
        entries, messages and definitions, that are lost because the disk is full; none of them was confirmed.
        """
        self._stopping = True
        await self.forget_certificates()
        lost = await Shutdown(self, seconds).run(reason)
        if self.backends is not None:
            await self.backends.close()
        return lost

    def close_listeners(self) -> None:
        """Stop accepting connections."""
        self._listeners.close()

    async def stop_shovels(self) -> None:
        """Stop the shovels; what they have under way is confirmed and acked if that takes no longer than a moment."""
        if self._loading_shovels is not None:
            await asyncio.wait((self._loading_shovels,))
        if self._shovels is not None:
            await self._shovels.stop()

    def stop_timers(self) -> None:
        """Stop the ticks, the wall-clock timers and the checks of memory and disk, and what is left of shovels."""
        if self._loading_shovels is not None:
            self._loading_shovels.cancel()
        if self._shovels is not None:
            self._shovels.abandon()
        for handle in (self._ticker, self._timer, self._withheld):
            if handle is not None:
                handle.cancel()
        self.resource_monitor.stop()

    # -- the turn ---------------------------------------------------------------------------------------------------

    def finish_turn(self, *, is_alone: bool = False) -> None:
        """Write to every connection touched by the turn, and continue soon if work is left.

        `is_alone` is true for the turn of a socket that was read twice in a row: no other client is active.
        """
        turn = self.turn
        outboxes = turn.outboxes
        if outboxes:
            turn.outboxes = []
            for outbox in outboxes:
                outbox.flush()
        latencies = self.context.latencies
        if latencies.is_ending:
            latencies.settle(self.monotonic())
        if self.disk is not None:
            self.disk.commits.wake(is_alone=is_alone)
        if turn.withheld and self._withheld is None:
            self._withheld = self.call_later(turn.confirm_wait / 1e9, self.send_withheld)
        if turn.unfinished or turn.queues or turn.channels or turn.outboxes:
            self.schedule_turn()

    def send_withheld(self) -> None:
        """Send the confirms that are withheld (`Turn.withheld`)."""
        if self._withheld is not None:
            self._withheld.cancel()
            self._withheld = None
        self.turn.send_withheld()
        self.finish_turn()

    def schedule_turn(self) -> None:
        """Run the turn in the next step."""
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_scheduled = False
        self.run_step("end of a turn, last", self._resume_turn)

    def _resume_turn(self) -> None:
        self.turn.resume_unfinished()
        self._run_and_finish_turn()

    def _schedule_jobs(self) -> None:
        if not self._jobs_scheduled:
            self._jobs_scheduled = True
            self._loop.call_soon(self._next_jobs)

    def _next_jobs(self) -> None:
        self._jobs_scheduled = False
        try:
            self.run_step("job", self._run_jobs)
        finally:  # an error must not stop the others
            if self.turn.slices:
                self._schedule_jobs()

    def _run_jobs(self) -> None:
        self.turn.slices.run()
        self._run_and_finish_turn()

    def run_turn(self) -> None:
        """Run the turn in a time slice of its own, then write."""
        self.context.now = self.turn.slices.renew()
        self._run_and_finish_turn()

    def _run_and_finish_turn(self) -> None:
        self.turn.run()
        self.finish_turn()

    def run_step(self, kind: str, work: Callable[[], object], whom: object = None) -> None:
        """Do some work as one step of the event loop, which is logged if it is slow.

        Args:
            kind: kind of step.
            work: the work; it runs the turn or finishes it.
            whom: the object it works for; by default the queue or job that ran last.

        """
        slices = self.turn.slices
        self.context.now = slices.begin()
        try:
            work()
        finally:
            slices.end(kind, slices.latest if whom is None else whom)

    # -- the disk ---------------------------------------------------------------------------------------------------

    def storage_failed(self, error: BaseException) -> None:
        """Handle a failed disk: its contents are unknown, so nothing may be confirmed or retried."""
        storage_log.critical("storage failed, stopping immediately: %s", error, exc_info=error)
        logging.shutdown()
        os._exit(exit_codes.IO)

    def _is_backlogged(self) -> bool:
        """Return whether the backlog of the disk is too large."""
        return self.disk is not None and self.disk.commits.backlogged

    def _is_full(self) -> bool:
        """Return whether the disk is full, and no commit waits for deferred queues."""
        return self.disk is not None and self.disk.commits.is_full and not self.disk.commits.is_held

    def wait_for_disk(
        self, flow: FlowControl, *, publishes: bool = True, declares: bool = False, is_light: bool = False
    ) -> bool:
        """Return whether a connection must wait because of the backlog of the disk; if so it is resumed later.

        Connections that write nothing wait only while a commit is held, because any method may defer queues; so do, on
        a full disk, those that only declare: they may have consumers, which free space. A light publisher may exceed
        the limit for others.
        """
        if self.disk is None:
            return False
        commits = self.disk.commits
        if not commits.backlogged or (is_light and not commits.overloaded):
            return False
        if not (publishes or commits.is_held or (declares and not commits.is_full)):
            return False
        self._waiting_for_disk.append(flow)
        return True

    @property
    def is_metadata_full(self) -> bool:
        """True if the disk is full and as many changes of metadata wait for it as may (`MOST_ROWS`)."""
        disk = self.disk
        return disk is not None and disk.journal.row_count >= MOST_ROWS and disk.commits.is_full

    def backlog_cleared(self) -> None:
        """Resume the connections that wait for the disk; a turn follows."""
        self.turn.disk_caught_up()
        waiting, self._waiting_for_disk = self._waiting_for_disk, []
        for flow in waiting:
            flow.disk_caught_up()

    @property
    def waiting_for_disk(self) -> int:
        """Number of publishers that are not read because of the backlog of the disk."""
        return len(self._waiting_for_disk)

    @property
    def blob_threshold(self) -> int:
        """Content size in bytes from which a body is written to a file of its own; without a disk none is."""
        return sys.maxsize if self.disk is None else self.disk.blob_threshold

    def run_read(self, read: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Run a read of messages in a thread, and `done` in a step of the loop; only a broker with a disk needs it."""
        assert self.disk is not None  # noqa: S101 - nothing else is read
        self.disk.run_read(read, done)

    # -- how it is --------------------------------------------------------------------------------------------------

    @property
    def uptime(self) -> float:
        """Seconds since the start."""
        return self.now() - self._began

    @property
    def lag(self) -> float:
        """Delay of the event loop's last tick in seconds."""
        return max(0.0, self.now() - self._ticked - TICK_SECONDS) if self._is_open else 0.0

    @property
    def node_name(self) -> str:
        """The name of this node."""
        return self.config.node_name

    @property
    def reports_url(self) -> str:
        """The address of the reports of the analysis; empty if there is none."""
        return self.config.management.reports_url

    @property
    def export_dir(self) -> Path | None:
        """The directory of the telemetry export; None if nothing is exported."""
        return self.config.export.dir

    @property
    def cluster_name(self) -> str:
        """The name of the cluster, which clients see: one that an administrator has set, or the configured one."""
        name = self.global_parameters.get(CLUSTER_NAME)
        return name if isinstance(name, str) else self.config.cluster_name

    @property
    def cluster_id(self) -> str:
        """The id of the cluster; '' before the first start, or if an administrator has removed it."""
        name = self.global_parameters.get(CLUSTER_ID)
        return name if isinstance(name, str) else ""

    def rename_cluster(self, name: str) -> None:
        """Set the name that clients see, as a global parameter as in RabbitMQ."""
        self.global_parameters.set(CLUSTER_NAME, name)

    @property
    def start_frame(self) -> bytes:
        """The first frame that a client receives."""
        return self._named_start_frames()[1]

    @property
    def secure_start_frame(self) -> bytes:
        """The first frame that a client with TLS receives."""
        return self._named_start_frames()[2]

    def _named_start_frames(self) -> tuple[str | None, bytes, bytes]:
        name = self.cluster_name
        if self._start_frames[0] != name:
            properties = typed(server_properties(name))
            enabled = self.config.auth_mechanisms
            plain, secure = (
                encode_method(0, make(Wire.Start, 0, 9, properties, mechanisms(enabled, more), "en_US"))
                for more in ((ANONYMOUS,), (ANONYMOUS, EXTERNAL))
            )
            self._start_frames = name, plain, secure
        return self._start_frames

    @property
    def listeners(self) -> list[ListenerFacts]:
        """All bound listeners."""
        plain = [ListenerFacts("amqp", host, port) for host, port in self.addresses]
        with_tls = [ListenerFacts("amqp/ssl", host, port) for host, port in self.tls_addresses]
        return [*plain, *with_tls, *self.http_listeners]

    def effective_settings(self) -> Iterator[str]:
        """Yield the effective configuration in lines; passwords are masked."""
        return effective(self.config)

    @property
    def obstacle(self) -> str:
        """Reason why clients may not connect; '' if they may."""
        if self._stopping:
            return "the broker is stopping"
        return "" if self._is_open else "the broker is starting"

    def may_write(self) -> bool:
        """Return whether anything may be written to clients now; false for a node that may lead no more."""
        return True

    @property
    def backups(self) -> "Backups | None":
        """The backups of the data; None without a data directory, and until it is in use."""
        return None if self.disk is None else self.disk.backups

    @cached_property
    def statistics(self) -> "Statistics":
        """The samples behind the management API, loaded when it is first asked for."""
        from leveret.broker.statistics.statistics import Statistics  # noqa: PLC0415 - not without the API

        return Statistics(self, self.config.management.interval_ms / 1000)

    def _loaded_shovels(self) -> "Shovels":
        """Return the shovels, loaded when there is one."""
        if self._shovels is None:
            from leveret.broker.shovel.shovels import Shovels  # noqa: PLC0415 - most brokers have none

            self._shovels = Shovels(self)
        return self._shovels

    def _parameter_changed(self, vhost: str, component: str, name: str) -> None:
        """Start, replace or stop the shovel of a parameter."""
        if component != SHOVEL or not (self._is_open and self.config.shovel.enabled) or self._stopping:
            return
        if self._shovels is not None:
            self._shovels.changed(vhost, name)
        elif self._loading_shovels is None:
            self._loading_shovels = self._loop.create_task(self._load_shovels())

    async def _load_shovels(self) -> None:
        """Load what shovels need in a thread, which takes 15 ms, then start all that there are."""
        try:
            await asyncio.to_thread(import_module, "leveret.broker.shovel.shovels")
            self._start_loaded()
        finally:
            self._loading_shovels = None

    def _start_loaded(self) -> None:
        """Start all shovels if they are being loaded; who asks for them meanwhile waits for the rest of that."""
        if self._loading_shovels is not None and self._shovels is None and not self._stopping:
            self._loaded_shovels().start()

    def shovel_statuses(self) -> list[dict[str, Any]]:
        """Return the status of each shovel, without logins."""
        self._start_loaded()
        return [] if self._shovels is None else self._shovels.statuses()

    def restart_shovel(self, vhost: str, name: str) -> bool:
        """Restart a shovel; returns whether there is one."""
        self._start_loaded()
        return self._shovels is not None and self._shovels.restart(vhost, name)

    @property
    def most_sockets(self) -> int:
        """Maximum number of clients that the file descriptors allow."""
        return self._file_limit

    @property
    def out_of_files(self) -> bool:
        """True while connections are refused for lack of file descriptors."""
        return len(self.drivers) >= self._file_limit

    # -- time -------------------------------------------------------------------------------------------------------

    def wall_clock(self) -> int:
        """Return milliseconds since the epoch, by the time source."""
        return self.time_source.wall()

    monotonic = staticmethod(time.monotonic_ns)
    """Returns nanoseconds of a clock that is never set, for measurements."""
    used = staticmethod(time.thread_time_ns)
    """Returns nanoseconds of processor time used by the event loop's thread."""

    def now(self) -> float:
        """Return seconds of the loop's monotonic clock, for what depends on the machine, its network and its load."""
        return self._loop.time()

    def call_later(self, seconds: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """Call a function later by the loop's clock, in a step of its own."""
        return self._loop.call_later(seconds, self.run_step, "timer", callback, callback)

    def deadline(self, connection: Connection, seconds: float) -> None:
        """Set the connection's deadline that many seconds from now."""
        connection.set_deadline(self.time_source.now() + seconds)
        self.wake(connection, seconds)

    def wake(self, connection: Connection, seconds: float) -> None:
        """Schedule the connection's `tick` that many seconds from now."""
        self._ticks.schedule(connection, self.time_source.now() + seconds)

    def _schedule_tick(self) -> None:
        """Schedule the next `_tick`."""
        self._tick_due = self.monotonic() + int(TICK_SECONDS * 1e9)
        self._ticker = self._loop.call_later(TICK_SECONDS, self.run_step, "tick", self._tick, "")

    def _tick(self) -> None:
        now = self._ticked = self.now()
        self.context.latencies.loop_lag.record((self.context.now - self._tick_due) // 1000)
        self._schedule_tick()
        self.turn.confirm_wait = self._confirm_wait.next(
            self.context.latencies.confirm, is_shared=self.turn.is_shared
        )
        self.turn.is_shared = False
        self.run_timeouts(self.time_source.now())
        self._peer_checks.run(now)
        self.collector.collect_due(now, self.resource_monitor.memory.used, self.turn.reads)
        if self.collector.is_loaded:
            for part in range(1, COLLECTIONS):
                self._loop.call_later(
                    TICK_SECONDS * part / COLLECTIONS,
                    self.run_step,
                    "collection",
                    self.collector.collect_new,
                    "",
                )
        if now >= self._unsent_due:
            self._unsent_due = now + UNSENT_SECONDS
            self._limit_unsent()
        self._queue_checks.run(now)
        self.resource_monitor.check_memory(now)
        if self.disk is not None and now >= self._paging_due:
            self._paging_due = inf
            self.turn.slices.add(self._update_ram_targets(self.disk.monitor, now), "memory monitor")
        self.run_turn()
        self.log_damage(now)
        if self._refused_count:
            log.error("refused %d connections: the limit of file descriptors is reached", self._refused_count)
            self._refused_count = 0
        self.audit.report_repeated(self.time_source.now())
        for address, count in self.refusal_log.take_suppressed(self.time_source.now()):
            log.error("refused %d more connections from %s that did not log in", count, address)
        for client, count in self.error_log.take_suppressed(self.time_source.now()):
            log.error("%d more errors of %s within a second", count, client)

    def run_timeouts(self, now: float) -> None:
        """Carry out deadlines, heartbeats, consumer and confirm timeouts that are due; called every tick.

        `now`: seconds of the time source.
        """
        self._ticks.run(now)
        self._overdue.run(now)

    def _update_ram_targets(self, monitor: MemoryMonitor, now: float) -> Iterator[None]:
        """Update the queues' memory limits; with very many queues this takes longer than the interval of checks."""
        try:
            yield from monitor.steps(now)
        finally:
            self._paging_due = self.now() + PAGING_SECONDS

    def log_damage(self, now: float = inf) -> None:
        """Log unreadable data; by default also what is held back to be summed up."""
        if self.damage_log is not None:
            for line in self.damage_log.lines(now):
                storage_log.error("%s", line)

    def _all_queues(self) -> Iterable[Queue]:
        return itertools.chain.from_iterable(vhost.all_queues() for vhost in self.vhosts.values())

    def _check_queue(self, queue: Queue, now: float) -> None:
        queue.sample_capacity()
        if queue.awaiting is None:
            return
        if is_trapped(queue, now):
            queue_log.warning(TRAP, queue, queue.awaiting.open_count, TRAP_SECONDS)
            self.context.note("trap", queue.vhost, queue.name)
        if is_forsaken(queue, now):
            queue_log.warning(FORSAKEN, queue, queue.awaiting.open_count, TRAP_SECONDS)

    def _set_timer(self, when: int) -> None:
        """Run the timers at that time (epoch ms), which is sooner than what was due so far.

        Or earlier, to read the wall clock again (`TimeSource.longest_wait`).
        """
        if self._timer is not None:
            self._timer.cancel()
        seconds = min(max(0, when - self.context.clock()) / 1000, self.time_source.longest_wait)
        self._timer = self.time_source.call_later(seconds, self._run_timers)

    def _run_timers(self) -> None:
        self._timer = None
        self.run_step("timers, last", self._run_due_timers)

    def _run_due_timers(self) -> None:
        following = self.context.timers.run(self.context.clock(), self.turn.slices.is_over)
        if following is not None:
            self._set_timer(following)
        self.run_turn()

    def set_alarm(self, reason: str) -> None:
        """Block connections that publish from now on, for this reason; with an empty one, unblock all."""
        self.alarm = reason
        if not reason:
            blocked, self.blocked = self.blocked, set()
            for connection in blocked:
                connection.unblock()

    def free_memory(self, octets: int) -> None:
        """Close connections with incomplete publishes, the largest first, until that many bytes are freed."""
        for held, connection in self.clients.with_unfinished(HELD_OCTETS):
            if octets <= 0:
                break
            connection.close_for_memory(held)
            octets -= held

    # -- connections ------------------------------------------------------------------------------------------------

    def register(self, driver: SocketDriver) -> bool:
        """Register a new socket; False to refuse it."""
        if self._stopping:
            return False
        if len(self.drivers) >= self._file_limit:
            if not self._refused_count:
                log.error(
                    "refused a connection: the limit of file descriptors is reached; raise it (ulimit -n, or "
                    "LimitNOFILE of systemd), or close connections that are not needed"
                )
            self._refused_count += 1
            return False
        self.drivers.add(driver)
        self._ticks.schedule(driver.connection, self.time_source.now() + self.handshake_timeout)
        return True

    @property
    def tls_certificates(self) -> "dict[str, CertificateFacts]":
        """The certificates of listeners, by the beginning of their keys."""
        return {key: facts for each in self.credentials for key, facts in each.keys_of.items()}

    @property
    def tls_reloads(self) -> dict[str, int]:
        """The numbers of reloads of certificates since the start: that succeeded, and that failed."""
        return {
            "succeeded": sum(each.reloads for each in self.credentials),
            "failed": sum(each.failures for each in self.credentials),
        }

    def forget_decisions(self) -> None:
        """Forget what authentication backends have decided, so that connections ask them again within a second."""
        if self.backends is not None:
            self.backends.forget()

    @property
    def auth_counts(self) -> Mapping[str, tuple[Mapping[str, int], float]]:
        """The questions to authentication backends by outcome, and the seconds that they have taken."""
        return {} if self.backends is None else self.backends.counts

    def reload_tls(self, done: Callable[[list[str]], object] = len) -> None:
        """Read the certificates of all listeners again; calls back with what is wrong, in which case the old stay."""
        if not self.credentials:
            done([])
            return
        task = asyncio.get_running_loop().create_task(self._reload_tls(done))
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def _reload_tls(self, done: Callable[[list[str]], object]) -> None:
        found = [await each.reload() for each in self.credentials]
        done([problem for problem in found if problem])

    def _record_reload(self, credentials: "Credentials", problem: str) -> None:
        """Record in the audit log that the certificates of a listener were read again."""
        outcome = "failed" if problem else "ok"
        found = {
            key: {"subject": facts.subject, "validity": facts.validity}
            for key, facts in credentials.keys_of.items()
        }
        self.audit.record(
            "tls.reload", outcome=outcome, name=credentials.name, reason=problem, certificates=found
        )

    def log_refusal(self, host: str, name: str, reason: str) -> None:
        """Log that a client was refused before it got a connection, at most one line per second for its address."""
        if self.refusal_log.admit(host, self.time_source.now()):
            log.error("closing connection %s: %s", name, reason)

    def _limit_unsent(self) -> None:
        """Disconnect the clients with most unsent data if all of it together exceeds the limit."""
        waiting: list[Unsent] = [(driver.unsent, driver.disconnect) for driver in self.drivers]
        for answers in self.unsent_answers:
            waiting += answers()
        total = sum([octets for octets, _ in waiting])
        if total <= self._unsent_limit:
            return
        for octets, disconnect in sorted(waiting, key=lambda each: -each[0]):
            disconnect(
                f"the client has not read {octets} pending bytes, and the {total} bytes pending for all clients "
                f"exceed limits.unsent_bytes ({self._unsent_limit})"
            )
            total -= octets
            if total <= self._unsent_limit:
                break

    def release_half_open(self, driver: SocketDriver) -> None:
        """Release the half-open place of a client that has logged in or disconnected."""
        origin, driver.origin = driver.origin, ""
        if not origin:
            return
        left = driver.half_open_until - self.time_source.now()
        if left > 0:
            self.time_source.call_later(left, self._listeners.release, origin)
        else:
            self._listeners.release(origin)

    def unregister(self, driver: SocketDriver) -> None:
        """Unregister a socket."""
        self.release_half_open(driver)
        self.drivers.discard(driver)
        self._ticks.forget(driver.connection)
        if not self.drivers:
            self.all_closed.set()

    def close_soon(self, driver: SocketDriver, delay: float) -> None:
        """Close a socket after its outbox has been flushed, and `delay` seconds."""

        def close() -> None:
            driver.flush()
            if delay:
                driver.stop_reading()
                self.time_source.call_later(delay, self.run_step, "timer", driver.finish, driver.finish)
            else:
                driver.finish()

        self._loop.call_soon(self.run_step, "timer", close, close)

    def set_socket_options(self, sock: socket.socket) -> None:
        """Apply the configured TCP options."""
        config = self.config
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, int(config.nodelay))
            if config.keepalive:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if config.sndbuf:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.sndbuf)
            if config.recbuf:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.recbuf)


def _resolve(future: "asyncio.Future[T]", result: T) -> None:
    """Resolve a future, unless nobody waits for it any more."""
    if not future.done():
        future.set_result(result)
