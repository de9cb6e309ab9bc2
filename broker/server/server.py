"""The server: owns listeners, connections, vhosts, users, and their shared turn (driver)."""

import asyncio
import itertools
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from leveret.broker import exit_codes
from leveret.broker.administration import Administration, BadRequestError, DefinitionsError
from leveret.broker.administration.access import AdministeredBroker, Delegation
from leveret.broker.auth.login_throttle import Logins
from leveret.broker.auth.name_patterns import Patterns
from leveret.broker.auth.passwords import Password, PasswordPolicy, WeakPasswordError
from leveret.broker.auth.sessions import Sessions
from leveret.broker.auth.users import User
from leveret.broker.config.config import Config, effective
from leveret.broker.connection.connection import Connection
from leveret.broker.connection.connection_tracking import ConnectionTracking
from leveret.broker.connection.publish_limits import Buckets, PublishLimits
from leveret.broker.metadata.directory import CLUSTER_ID, Directory
from leveret.broker.metadata.recorder import Definitions, MetadataJournal, NullJournal, StoredUsers
from leveret.broker.network.gate import Gate
from leveret.broker.network.socket_driver import SocketDriver
from leveret.broker.process.audit_log import AuditLog
from leveret.broker.process.memory import COLLECTIONS, Collector
from leveret.broker.process.named_files import MOST_DEFINITIONS, read_named
from leveret.broker.process.resource_alarms import disk_limit, memory_limit
from leveret.broker.process.shares import LogLimit
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.loop import Loop, resolve
from leveret.broker.scheduling.time_source import TimeSource
from leveret.broker.scheduling.timer_wheel import TICK_SECONDS, PeriodicSweep
from leveret.broker.server.resource_monitor import ResourceMonitor
from leveret.broker.server.shovel_loader import ShovelLoader
from leveret.broker.server.shutdown import STOP_SECONDS, close_store, disconnect
from leveret.broker.statistics.node_figures import ListenerFacts
from leveret.broker.vhost.interceptors import Interceptors
from leveret.broker.vhost.object_limits import ObjectLimits
from leveret.broker.vhost.parameters import Parameters
from leveret.broker.vhost.vhost import VHost, make_in_memory
from leveret.confirm.deadlock import FORSAKEN, TRAP, TRAP_SECONDS, is_forsaken, is_trapped
from leveret.storage.queues.pager import freeing

if TYPE_CHECKING:
    from leveret.broker.administration.definitions_outcome import Outcome
    from leveret.broker.auth.backends.access_control import AccessControl
    from leveret.broker.connection.event_exchange import EventExchange
    from leveret.broker.export.writer import Export
    from leveret.broker.persistence.data_store import DataStore

T = TypeVar("T")
log = logging.getLogger("leveret.connection")
loop_log = logging.getLogger("leveret")
queue_log = logging.getLogger("leveret.queue")
storage_log = logging.getLogger("leveret.storage")

ERROR_LINES = 10  # lines of the log within a second about errors of one user from one address
CLUSTER_ID_OCTETS = 16
MOST_ROWS = 50_000  # changes of metadata that wait for a full disk, and are retried together


def seed(directory: Directory, config: Config) -> None:
    """Create the vhosts and users of the configuration."""
    users = directory.users
    for name in config.vhosts:
        directory.add_vhost(name)
    for name, vhost_limits in config.limits.vhost_limits.items():
        users.set_vhost_limits(name, vhost_limits)
    for user in config.users:
        try:
            hashed = users.passwords.hashed(Password(user.password))
        except WeakPasswordError as error:
            raise WeakPasswordError(f"password of the default user '{user.name}': {error}") from None
        users.add(User(user.name, hashed, tuple(user.tags), users.passwords.algorithm))
        for vhost, (configure, write, read) in user.permissions.items():
            users.set_permissions(user.name, vhost, configure, write, read)
    for row in config.topic_permissions:
        users.set_topic_permissions(row.user, row.vhost, row.exchange, row.write, row.read)
    for name, user_limits in config.limits.user_limits.items():
        users.set_user_limits(name, user_limits)


class Server(AdministeredBroker):
    """A broker.

    Args:
        config: the configuration. `start` binds its listeners; `stop` ends every connection.
        disk: the data store; None for a broker without persistence. The server closes it.
        time_source: the time of everything that happens after a time; None for the real time.

    Raises what `load_definitions` raises.
    """

    loop_class: type[Loop] = Loop
    monitor_class: type[ResourceMonitor] = ResourceMonitor
    driver_class = SocketDriver
    users_class = StoredUsers
    vhost_class: Callable[..., VHost] = VHost

    def __init__(  # noqa: PLR0915 - all it has, in one place
        self, config: Config, disk: "DataStore | None" = None, time_source: TimeSource | None = None
    ) -> None:
        self.config = config
        self.disk = disk
        self.loop = loop = self.loop_class(time_source or TimeSource(), round(config.slow_step * 1e9))
        loop.timeouts = self.run_timeouts
        loop.storage_failed = self.storage_failed
        # shared by connections (see `broker.connection.node.Node`)
        self.time_source, self.turn, self.context = loop.time_source, loop.turn, loop.context
        self.context.ids.most = config.limits.message_ids
        self.turn.is_backlogged = lambda: self.disk is not None and self.disk.commits.backlogged
        self.turn.is_full = self._is_full
        limits = config.limits
        self.audit = AuditLog(self.time_source.wall, is_on=False)
        self.audit.is_required = config.audit.required
        self.publish_limits = PublishLimits(
            limits.connection_max_publish_rate, limits.connection_max_publish_bytes
        )
        self.publish_buckets = Buckets()
        self.logins = Logins(config.auth_max_failures, config.auth_failure_period)
        self.error_log = LogLimit(ERROR_LINES)
        self.alarm = ""
        self.blocked = set()
        self.is_stopping = False
        self.is_open = False
        self.export = self._make_export()
        self._event_exchange = self._make_event_exchange()
        journal, next_id = self._make_journal()
        self.journal = journal
        # users, vhosts and parameters
        definitions = Definitions(journal, next_id, self.context)
        patterns = Patterns(python=config.compatibility.python_patterns)
        self.users = self.users_class(definitions, config.loopback_users, patterns)
        rules = config.credentials
        self.users.passwords = PasswordPolicy(
            rules.hashing,
            (rules.min_length or 0) if rules.validator == "min_length" else 0,
            patterns.compile(rules.regexp) if rules.validator == "regexp" else None,
        )
        self.backends = self._make_backends()
        self.directory = Directory(
            loop,
            definitions,
            self.users,
            patterns,
            limits.default_limits,
            self._make_vhost,
            config.default_queue_type,
            config.cluster_tags,
        )
        self.directory.on_add = self._open_events
        self.vhosts = self.directory.vhosts
        self.object_limits = ObjectLimits(
            self.vhosts,
            queues=limits.cluster_queue_limit,
            exchanges=limits.cluster_exchange_limit,
            bindings_of=limits.vhost_bindings,
            argument_octets=limits.argument_octets,
        )
        self.parameters = Parameters(self.users, self.vhosts)
        # the process
        self.collector = Collector()
        self.resource_monitor = self.monitor_class(
            self,
            disk,
            memory_limit(config.memory_absolute, config.memory_relative),
            disk_limit(config.disk_free_absolute, config.disk_free_relative),
        )
        self.listeners = []
        self.gate: Gate = Gate(
            config, loop, self, lambda: self.driver_class(self.gate), self.resource_monitor.memory.limit
        )
        self.clients = ConnectionTracking(
            self.turn,
            self.context,
            self.users,
            self.vhosts,
            node_name=config.node_name,
            connection_max=limits.connection_max,
            channel_max=limits.channel_max_per_node,
            most_sockets=self.gate.most_sockets,
        )
        self.sessions = Sessions(self.users, config.management.session_seconds)
        self.delegation = Delegation(
            "" if config.shovel.certificate_dir is None else str(config.shovel.certificate_dir.absolute()),
            config.shovel.local_rights == "setter",
            config.rerouting == "policymaker",
        )
        self.node_name = config.node_name
        self.shovels = ShovelLoader(self, is_enabled=config.shovel.enabled)
        self.goes_on = False  # True if the process goes on, as a node that waits, once the server is stopped
        self.process = self.cluster = None
        self._overdue = PeriodicSweep(lambda: self.clients.connections, Connection.close_overdue)
        self._queue_checks = PeriodicSweep(
            lambda: itertools.chain.from_iterable(vhost.queues.values() for vhost in self.vhosts.values()),
            self._check_queue,
        )
        loop.on_tick += [self._collect, self._queue_checks.run, self.resource_monitor.check_memory]
        if disk is not None:
            disk.attach(loop, self.vhosts)
        loop.on_tick.append(self._log_repeated)
        self.administration: Administration = Administration(self)
        self._recovered = self.load_definitions(self._stored_rows())

    def _make_journal(self) -> "tuple[MetadataJournal, Callable[[], int]]":
        if self.disk is None:
            return NullJournal(), itertools.count(1).__next__
        return self.disk.journal, self.disk.next_id

    def _stored_rows(self) -> Iterable[tuple[bytes, bytes]]:
        return () if self.disk is None else self.disk.environment.rows("defs")

    def load_definitions(self, rows: Iterable[tuple[bytes, bytes]]) -> list[Queue]:
        """Create what an earlier run has stored or, if this is the first one, what the configuration defines.

        Users, vhosts, permissions and limits of the configuration apply to an empty store only, as in RabbitMQ: later
        they would restore what an administrator has changed or deleted. Nor do they apply if a definitions file is to
        be imported, which `start` does. Returns the durable queues of the earlier run, without their messages.

        Raises DamagedError and UnknownFormatError as `restore.restore`, and InvalidPatternError or WeakPasswordError
        for a pattern or a password of the configuration.
        """
        config = self.config
        if stored := list(rows):
            return self.directory.restore(stored)
        if config.definitions is None:
            seed(self.directory, config)
        elif config.users != Config().users:
            names = ", ".join([f"'{user.name}'" for user in config.users])
            text = (
                "definitions: %s has to define the users, so those of the configuration (%s) are not created"
            )
            log.warning(text, config.definitions, names)
        return []

    def _make_vhost(self, name: str) -> VHost:
        vhost = self.vhost_class(
            name,
            self.turn,
            self.context,
            limits=lambda: self.users.vhost_limits(name),
            make_backing=partial(
                make_in_memory if self.disk is None else self.disk.make_backing,
                strict=self.config.compatibility.queues.priorities == "strict",
            ),
            delay_disk=self.disk,
            confirm_mode=self.config.confirm_mode,
            holds_promises=self.config.confirm_hold == "at-commit",
            most_deaths=self.config.limits.most_deaths,
            patterns=self.directory.patterns,
            object_limits=self.object_limits,
            compatibility=self.config.compatibility.queues,
        )
        vhost.router.hop_limit = self.config.limits.exchange_hops
        if self.config.compatibility.header_numbers == "exact":
            vhost.router.compare_exactly()
        interceptors = self.config.interceptors
        if interceptors != Interceptors():
            vhost.intercept = partial(interceptors.intercepted, self.node_name, self.context.clock)
        vhost.parameters.on_change = self.shovels.parameter_changed
        return vhost

    def _open_events(self, vhost: VHost) -> None:
        """Declare the exchange of events again in its vhost, which was deleted with everything in it."""
        if self._event_exchange is not None and vhost.name == self._event_exchange.vhost:
            self._event_exchange.open(vhost)

    def _make_backends(self) -> "AccessControl | None":
        """Create the backends that decide about logins, unless the internal database alone does."""
        settings = self.config.backends
        if settings.is_internal:
            return None
        from leveret.broker.auth.backends.access_control import access_control  # noqa: PLC0415 - only if it is used

        return access_control(
            settings, self.users, now=self.time_source.now, wall=self.time_source.wall, in_step=self._answered
        )

    def _answered(self, work: Callable[[], object]) -> None:
        def step() -> None:
            work()
            self.loop.run_and_finish_turn()

        self.loop.run_step("answer of a backend", step)

    def _make_export(self) -> "Export | None":
        if self.config.export.dir is None and not self.config.export.stream_vhost:
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
            self._event_exchange.open(self.vhosts.get(name) or self.directory.add_vhost(name))

    # -- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bind the listeners; clients may connect when this returns. Raises OSError for a port that is in use.

        If it fails the data are left as after a clean stop: nothing was delivered, so nothing is marked as redelivered
        later, and no recovery is needed.
        """
        loop = asyncio.get_running_loop()
        self.loop.attach(loop)
        self.loop.began = self.loop.now()
        while self.turn.slices:  # left by the restoration of metadata; turns begin after the disk
            self.loop.run_step("job", self.turn.slices.run)
            await asyncio.sleep(0)
        self.turn.slices.on_waiting = self.loop.schedule_jobs
        parameters = self.directory.global_parameters
        if CLUSTER_ID not in parameters:
            new = secrets.token_urlsafe(CLUSTER_ID_OCTETS)
            parameters.set(CLUSTER_ID, f"rabbitmq-cluster-id-{new}")
        try:
            await self.gate.bind()
            clients = 0
            for protocol, addresses in self.gate.addresses.items():
                facts = [ListenerFacts(protocol, *address) for address in addresses]
                self.listeners[clients:clients] = facts  # before those for HTTP
                clients += len(facts)
            if self.disk is not None:
                await self._start_disk(self.disk)
            if self.config.definitions is not None:
                self.import_definitions(self.config.definitions)
                await self.stored()
            self._open_event_exchange()
            self.resource_monitor.start(loop)
            if self.disk is not None:
                self.disk.environment.begin_use()
            self.gate.listeners.open(self.config.backlog)
        except BaseException:
            await self._abandon()
            raise
        self.loop.start()
        self.is_open = True
        self.gate.certificates.watch(self.config.tls.reload_interval)
        if self.export is not None:
            self.export.start(loop)
        if any(vhost.parameters for vhost in self.vhosts.values()):
            self.shovels.start()

    async def _abandon(self) -> None:
        self.gate.close()
        self.resource_monitor.stop()
        if self.disk is None:
            return
        if self.disk.is_recovered:
            await self.disk.stop(
                store
                for vhost in self.vhosts.values()
                for queue in vhost.queues.values()
                for store in queue.stores
            )
        else:
            self.disk.close()

    async def _start_disk(self, disk: "DataStore") -> None:
        began = self.now()
        monitor = self.resource_monitor
        disk.start(
            self.loop, asyncio.get_running_loop(), monitor.report_full, self.time_source, monitor.disk.limit
        )
        self.loop.commit = disk.commits.wake
        slices = self.turn.slices
        disk.pager.release = lambda run: slices.add(freeing(run), "release of dropped messages")
        owners = {queue.store: queue for queue in self._recovered}
        stores = [store for queue in self._recovered for store in queue.stores]
        total = disk.recover(stores, lambda store, levels: owners[store].use_levels(levels))
        if self._recovered:
            seconds = self.now() - began
            log.info("recovered queues: %d, messages: %d, in %.2f s", len(self._recovered), total, seconds)
        for queue in self._recovered:
            queue.recovered()
        self._recovered = []
        disk.is_recovered = True
        delayed = disk.recover_delayed(self.vhosts.values())
        if delayed:
            log.info("recovered delayed and held messages: %d", delayed)
        await self.stored()

    async def stored(self, *, files: bool = False) -> bool:
        """Wait until everything journaled so far is on disk; False if the disk is full.

        `files`: also wait for bodies that are being written to files of their own.
        """
        self.loop.run_turn()
        await self.loop.finish_jobs()
        stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        wait = self.journal.when_all_safe if files else self.journal.when_safe
        wait(partial(resolve, stored))
        self.loop.finish_turn()
        return await self.result_of(stored)

    async def result_of(self, future: "asyncio.Future[T]") -> T:
        """Wait for a future that the server resolves."""
        return await future

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

    async def stop(self, reason: str = "shutdown", seconds: float = STOP_SECONDS) -> int:
        """Stop accepting, close every connection with 320, write to disk what only memory has, and close the store.

        `seconds`: time for clients to answer; the sockets of those that did not are closed then. Returns the number of
        entries, messages and definitions, that are lost because the disk is full; none of them was confirmed.
        """
        self.is_stopping = True
        await self.gate.certificates.forget()
        slices = self.turn.slices
        slices.watch(on=False)
        loop_log.info(
            "longest step of the event loop: %.1f ms, %s", slices.longest / 1e6, slices.longest_step or "none"
        )
        await self.shovels.stop()
        await disconnect(self, reason, seconds)
        self.stop_timers()
        self.administration.stop()
        for vhost in self.vhosts.values():
            for line in (*vhost.delay_lines(), *vhost.holds()):
                line.stop()
        lost = 0
        if self.disk is not None:
            lost = await close_store(self, self.disk, self.stored)
            self.disk.log_damage()
        if self.export is not None:  # last, as its folder may be on a disk that does not respond
            await self.export.stop(reason)
        done = self.context.totals.channels
        log.info(
            "totals: published=%d delivered=%d acked=%d cpu_seconds=%.2f",
            done.published,
            done.delivered,
            done.acked,
            time.process_time(),
        )
        if self.backends is not None:
            await self.backends.close()
        return lost

    def stop_timers(self) -> None:
        """Stop the ticks, the wall-clock timers and the checks of memory and disk, and what is left of shovels."""
        self.shovels.abandon()
        self.loop.stop()
        self.resource_monitor.stop()

    # -- the disk ---------------------------------------------------------------------------------------------------

    def storage_failed(self, error: BaseException) -> None:
        """Handle a failed disk: its contents are unknown, so nothing may be confirmed or retried."""
        storage_log.critical("storage failed, stopping immediately: %s", error, exc_info=error)
        logging.shutdown()
        os._exit(exit_codes.IO)

    def _is_full(self) -> bool:
        """Return whether the disk is full, and no commit waits for deferred queues."""
        return self.disk is not None and self.disk.commits.is_full and not self.disk.commits.is_held

    def wait_for_disk(
        self,
        callback: Callable[[], object],
        *,
        publishes: bool = True,
        declares: bool = False,
        is_light: bool = False,
    ) -> bool:
        """Return whether a connection must wait because of the backlog of the disk; if so it is called back."""
        if self.disk is None:
            return False
        commits = self.disk.commits
        if not commits.backlogged or (is_light and not commits.overloaded):
            return False
        if not (publishes or commits.is_held or (declares and not commits.is_full)):
            return False
        self.loop.when_disk_caught_up(callback)
        return True

    @property
    def is_metadata_full(self) -> bool:
        """True if the disk is full and as many changes of metadata wait for it as may (`MOST_ROWS`)."""
        disk = self.disk
        return disk is not None and disk.journal.row_count >= MOST_ROWS and disk.commits.is_full

    # -- how it is --------------------------------------------------------------------------------------------------

    @property
    def cluster_name(self) -> str:
        """The name of the cluster, which clients see: one that an administrator has set, or the configured one."""
        name = self.directory.cluster_name
        return self.config.cluster_name if name is None else name

    def effective_settings(self) -> Iterator[str]:
        """Return the effective configuration in lines; passwords are masked."""
        return effective(self.config)

    # -- time -------------------------------------------------------------------------------------------------------

    def run_timeouts(self, now: float) -> None:
        """Carry out due deadlines, heartbeats and timeouts, every tick; `now` is seconds of the time source."""
        self.loop.ticks.run(now)
        self._overdue.run(now)

    def _collect(self, now: float) -> None:
        self.collector.collect_due(now, self.resource_monitor.memory.used, self.turn.reads)
        if self.collector.is_loaded:
            for part in range(1, COLLECTIONS):
                seconds = TICK_SECONDS * part / COLLECTIONS
                self.loop.call_later(seconds, self.collector.collect_new, "collection", "")

    def _log_repeated(self, _now: float) -> None:
        now = self.time_source.now()
        self.audit.report_repeated(now)
        for client, count in self.error_log.take_suppressed(now):
            log.error("%d more errors of %s within a second", count, client)

    def _check_queue(self, queue: Queue, now: float) -> None:
        queue.sample_capacity()
        if queue.awaiting is None:
            return
        if is_trapped(queue, now):
            queue_log.warning(TRAP, queue, queue.awaiting.open_count, TRAP_SECONDS)
            self.context.note("trap", queue.vhost, queue.name)
        if is_forsaken(queue, now):
            queue_log.warning(FORSAKEN, queue, queue.awaiting.open_count, TRAP_SECONDS)
