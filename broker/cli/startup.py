"""Logs, process id, HTTP listeners and control socket that a broker's process opens beside its data (driver)."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leveret.broker import exit_codes
from leveret.broker.config.config import Config, Listener, LogConfig
from leveret.broker.config.sections import AuditConfig, HTTPTLSConfig, ManagementConfig, PrometheusConfig
from leveret.broker.http.running_brokers import METRICS
from leveret.broker.process import logs
from leveret.broker.process.audit_log import AuditLog
from leveret.broker.process.logs import Rotation
from leveret.broker.process.named_files import write_private
from leveret.broker.tls.options import TLSFileError

if TYPE_CHECKING:
    from collections.abc import Collection

    from leveret.broker.http.late_server import Load
    from leveret.broker.process.audit_writer import AuditWriter
    from leveret.broker.tls.credentials import Credentials

_logger = logging.getLogger(logs.LOGGER_NAME)


class StartupError(Exception):
    """Raised if the broker cannot start; the text is one line for the administrator."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@contextlib.contextmanager
def _file_errors(what: str, path: Path | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StartupError(f"cannot {what} {path}: {error.strerror}", exit_codes.CANNOT_CREATE) from None


def _rotation(wanted: LogConfig | AuditConfig) -> Rotation:
    return Rotation(
        wanted.rotation_size, wanted.rotation_date, wanted.rotation_count, wanted.rotation_compress
    )


def configure_logs(config: Config) -> logs.Logs:
    """Open the outputs of the log; raises StartupError."""
    log = config.log
    outputs = []
    if log.console:
        stream = sys.stderr if log.console_stream == "stderr" else sys.stdout
        outputs.append(logs.Output(log.console_level, log.console_formatter, stream=stream))
    if log.file is not None:
        rotation = _rotation(log)
        outputs.append(logs.Output(log.file_level, log.file_formatter, file=log.file, rotation=rotation))
    with _file_errors("open log file", log.file):
        return logs.configure(outputs, log.levels)


def open_audit_log(
    config: Config, audit: AuditLog, ending: contextlib.AsyncExitStack
) -> "AuditWriter | None":
    """Open the file of the audit log, if one is wanted, until the end of `ending`; raises StartupError."""
    wanted = config.audit
    if wanted.file is None:
        return None
    from leveret.broker.process.audit_writer import AuditWriter  # noqa: PLC0415 - most brokers have none

    with _file_errors("open audit log", wanted.file):
        writer = AuditWriter(audit, wanted.file, _rotation(wanted))
    ending.callback(writer.close)
    return writer


def handle_hang_up(outputs: logs.Logs, reload_tls: Callable[[], object]) -> None:
    """Have SIGHUP reopen the log files, and read the certificates again."""

    def hang_up() -> None:
        outputs.reopen()
        reload_tls()

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hang_up)


def write_pid_file(path: Path | None) -> None:
    """Write the process id to a file, if one is wanted; raises StartupError."""
    if path is None:
        return
    with _file_errors("write pid file", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{os.getpid()}\n", encoding="ascii")


def remove_pid_file(path: Path | None) -> None:
    """Remove that file."""
    if path is not None:
        with contextlib.suppress(OSError):
            path.unlink()


# -- sessions of the web page ---------------------------------------------------------------------------------------


def restore_sessions(server: Any, path: Path) -> None:
    """Go on with the sessions of the web page that the last run has kept; what cannot be read is only logged."""
    try:
        rows = json.loads(path.read_bytes())
        path.unlink()
        server.sessions.restore(rows, server.now(), server.wall_clock())
    except FileNotFoundError:
        pass  # nobody was logged in, or the last run was killed
    except (OSError, ValueError, TypeError) as error:
        _logger.warning("users of the web page have to log in again: %s: %s", path, error)


def keep_sessions(server: Any, path: Path) -> None:
    """Keep the sessions of the web page for the next run; a failure is only logged."""
    if rows := server.sessions.kept(server.now(), server.wall_clock()):
        try:
            write_private(path, json.dumps(rows).encode())
        except OSError as error:
            _logger.warning("users of the web page have to log in again: %s: %s", path, error.strerror)


# -- HTTP -------------------------------------------------------------------------------------------------------


def _monitor(server: Any, per_object: bool) -> Callable[[], Any]:
    """Load what serves metrics and health; returns a function that makes such a server."""
    with server.collector.loading():
        from leveret.broker.metrics.http import Monitor  # noqa: PLC0415

        if server.place == "front":
            from leveret.broker.placement.metrics import FrontMonitor  # noqa: PLC0415

            return partial(FrontMonitor, server, per_object=per_object)
    return partial(Monitor, server, per_object=per_object)


def management(server: Any, prefix: str = "", host_names: "Collection[str]" = ()) -> Callable[[], Any]:
    """Load what serves the management API; returns a function that makes such a server."""
    with server.collector.loading():
        from leveret.broker.http.server import ManagementServer  # noqa: PLC0415
        from leveret.broker.management.routes import ROUTER  # noqa: PLC0415

        if server.place == "front":
            from leveret.broker.placement.view import FrontManagement  # noqa: PLC0415

            return partial(FrontManagement, server, prefix, host_names)
    return partial(ManagementServer, server, ROUTER, prefix, host_names)


async def open_listeners(server: Any, config: Config, ending: contextlib.AsyncExitStack) -> None:
    """Open all of them for a broker, and begin with the samples of the API. StartupError if a required one fails."""
    load_monitor = partial(_monitor, server, config.prometheus.per_object)
    is_process = server.place == "process"  # of a front, which asks it
    if await listen(server, config, ending, load_monitor, partial(management, server)) or is_process:
        from leveret.broker.statistics.sampling import Sampling  # noqa: PLC0415

        sampling = Sampling(server, server.statistics)
        ending.push_async_callback(sampling.stop)
        sampling.start()
    if is_process and config.prometheus.enabled:
        from leveret.broker.http.late_server import control_socket  # noqa: PLC0415

        await ending.enter_async_context(control_socket(config.data_dir, load_monitor, METRICS))


async def listen(
    server: Any,
    config: Config,
    ending: contextlib.AsyncExitStack,
    load_monitor: "Load",
    load_management: Callable[..., Callable[[], Any]],
) -> bool:
    """Open the HTTP listeners and the socket for `leveret ctl`; returns whether there is a listener for the API.

    `ending` closes them. What serves metrics and health, and the API, with the prefix of its paths and its names, is
    loaded by functions that return one that makes such a server. StartupError if a listener is required and cannot be
    had.
    """
    from leveret.broker.http.late_server import control_socket  # noqa: PLC0415

    monitoring, managing = config.prometheus, config.management
    if monitoring.enabled:
        _listen_for(server, "metrics and health", monitoring, load_monitor, config, ending)
    load = partial(load_management, managing.path_prefix, managing.further_names)
    found = managing.enabled and _listen_for(server, "the management API", managing, load, config, ending)
    await ending.enter_async_context(control_socket(config.data_dir, load_management))
    return found


def _listen_for(
    server: Any,
    use: str,
    wanted: PrometheusConfig | ManagementConfig,
    load: "Load",
    config: Config,
    ending: contextlib.AsyncExitStack,
) -> bool:
    """Open the listeners for one use, whose server is loaded at the first client; returns whether there is one."""
    from leveret.broker.tls.credentials import Credentials  # noqa: PLC0415

    found = False
    # RabbitMQ's name of the protocol
    protocol = "http/prometheus" if isinstance(wanted, PrometheusConfig) else "http"
    if wanted.tls is not None:
        try:
            tls = Credentials(wanted.tls.options, config.tls_handshake_timeout)
        except TLSFileError as error:
            raise StartupError(str(error), exit_codes.CONFIG) from None
        server.gate.certificates.credentials.append(tls)
        found = _listen(server, protocol.replace("http", "https", 1), use, wanted.tls, load, ending, tls)
    if wanted.has_plain and wanted.port:
        found = _listen(server, protocol, use, wanted, load, ending) or found
    return found


def _listen(
    server: Any,
    protocol: str,
    use: str,
    wanted: PrometheusConfig | ManagementConfig | HTTPTLSConfig,
    load: "Load",
    ending: contextlib.AsyncExitStack,
    tls: "Credentials | None" = None,
) -> bool:
    from leveret.broker.http.late_server import LateServer, listening  # noqa: PLC0415
    from leveret.broker.server.startup import port_problem  # noqa: PLC0415
    from leveret.broker.statistics.node_figures import ListenerFacts  # noqa: PLC0415

    try:
        sock = listening(wanted.host, wanted.port)
    except OSError as error:
        problem = port_problem(error, (Listener(wanted.host, wanted.port),))
        if wanted.required:
            raise StartupError(f"{problem} (for {use})", exit_codes.UNAVAILABLE) from None
        _logger.warning("no listener for %s: %s", use, problem)
        return False
    ending.push_async_callback(LateServer(sock, load, tls).close)
    address = sock.getsockname()[:2]
    server.listeners.append(ListenerFacts(protocol, *address))
    kind = "HTTP" if tls is None else "HTTPS"
    _logger.info("started %s listener on %s for %s", kind, Listener(*address), use)
    return True
