"""The HTTP listeners of `leveret serve`: the management API and metrics, with and without TLS (driver)."""

import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveret.broker import exit_codes
from leveret.broker.cli.process_files import StartupError
from leveret.broker.config.config import Config, Listener
from leveret.broker.config.sections import HTTPTLSConfig, ManagementConfig, PrometheusConfig
from leveret.broker.process import logs
from leveret.broker.tls.options import TLSFileError

if TYPE_CHECKING:
    from collections.abc import Collection

    from leveret.broker.http.late_server import SocketServer
    from leveret.broker.http.server import ManagementServer
    from leveret.broker.metrics.http import Monitor
    from leveret.broker.tls.credentials import Credentials

_logger = logging.getLogger(logs.LOGGER_NAME)


def _monitor(server: Any, per_object: bool) -> "Callable[[], Monitor]":
    """Load what serves metrics and health; returns a function that makes such a server."""
    with server.collector.loading():
        from leveret.broker.metrics.http import Monitor  # noqa: PLC0415
        from leveret.broker.metrics.sampler import Identity  # noqa: PLC0415

    def identity() -> Identity:
        return Identity(server.node_name, server.cluster_name, server.cluster_id)

    return partial(Monitor, server, identity, per_object=per_object)


def management(
    server: Any, prefix: str = "", host_names: "Collection[str]" = ()
) -> "Callable[[], ManagementServer]":
    """Load what serves the management API; returns a function that makes such a server."""
    with server.collector.loading():
        from leveret.broker.http.server import ManagementServer  # noqa: PLC0415
        from leveret.broker.management.routes import ROUTER  # noqa: PLC0415

    return partial(ManagementServer, server, ROUTER, prefix, host_names)


def open_listeners(server: Any, config: Config, ending: contextlib.AsyncExitStack) -> None:
    """Open the HTTP listeners, and begin with the samples of the management API. StartupError if one is required."""
    load_monitor = partial(_monitor, server, config.prometheus.per_object)
    if listen(server, config, ending, load_monitor, partial(management, server)):
        from leveret.broker.statistics.sampling import Sampling  # noqa: PLC0415

        sampling = Sampling(server)
        ending.push_async_callback(sampling.stop)
        sampling.start()


def listen(
    server: Any,
    config: Config,
    ending: contextlib.AsyncExitStack,
    load_monitor: "Callable[[], Callable[[], SocketServer]]",
    load_management: "Callable[..., Callable[[], SocketServer]]",
) -> bool:
    """Open the HTTP listeners. StartupError if one is required and cannot be had.

    Args:
        server: the broker.
        config: the configuration.
        ending: closes them.
        load_monitor: loads what serves metrics and health; returns a function that makes such a server.
        load_management: the same for the management API; called with the prefix of its paths and its names.

    Returns:
        Whether there is one for the management API.

    """
    monitoring, managing = config.prometheus, config.management
    if monitoring.enabled:
        _listen_for(server, _METRICS, monitoring, load_monitor, config, ending)
    if not managing.enabled:
        return False
    load = partial(load_management, managing.path_prefix, managing.further_names)
    return _listen_for(server, _API, managing, load, config, ending)


class _Use(NamedTuple):
    """The use of an HTTP listener: RabbitMQ's names of its protocol without and with TLS, and one for the log."""

    protocol: str
    secure_protocol: str
    text: str


_METRICS: Final = _Use("http/prometheus", "https/prometheus", "metrics and health")
_API: Final = _Use("http", "https", "the management API")


def _listen_for(
    server: Any,
    use: _Use,
    wanted: PrometheusConfig | ManagementConfig,
    load: "Callable[[], Callable[[], SocketServer]]",
    config: Config,
    ending: contextlib.AsyncExitStack,
) -> bool:
    """Open the listeners for one use, whose server is loaded at the first client; returns whether there is one."""
    from leveret.broker.tls.credentials import Credentials  # noqa: PLC0415

    found = False
    if wanted.tls is not None:
        try:
            tls = Credentials(wanted.tls.options, config.tls_handshake_timeout)
        except TLSFileError as error:
            raise StartupError(str(error), exit_codes.CONFIG) from None
        server.credentials.append(tls)
        found = _listen(server, use, wanted.tls, load, ending, tls)
    if wanted.has_plain and wanted.port:
        found = _listen(server, use, wanted, load, ending) or found
    return found


def _listen(
    server: Any,
    use: _Use,
    wanted: PrometheusConfig | ManagementConfig | HTTPTLSConfig,
    load: "Callable[[], Callable[[], SocketServer]]",
    ending: contextlib.AsyncExitStack,
    tls: "Credentials | None" = None,
) -> bool:
    """Open a listener; returns whether it could be had."""
    from leveret.broker.http.late_server import LateServer, listening  # noqa: PLC0415
    from leveret.broker.server.startup import port_problem  # noqa: PLC0415
    from leveret.broker.statistics.node_figures import ListenerFacts  # noqa: PLC0415

    try:
        sock = listening(wanted.host, wanted.port)
    except OSError as error:
        problem = port_problem(error, (Listener(wanted.host, wanted.port),))
        if wanted.required:
            raise StartupError(f"{problem} (for {use.text})", exit_codes.UNAVAILABLE) from None
        _logger.warning("no listener for %s: %s", use.text, problem)
        return False
    ending.push_async_callback(LateServer(sock, load, tls).close)
    address = sock.getsockname()[:2]
    server.http_listeners.append(
        ListenerFacts(use.protocol if tls is None else use.secure_protocol, *address)
    )
    kind = "HTTP" if tls is None else "HTTPS"
    _logger.info("started %s listener on %s for %s", kind, Listener(*address), use.text)
    return True
