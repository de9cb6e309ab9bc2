"""The command ``leveret`` (driver: the process, its signals, its event loop). Exit codes: `broker.exit_codes`."""

import asyncio
import contextlib
import errno
import logging
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from leveret import __version__
from leveret.broker import exit_codes
from leveret.broker.cli.analyze import analyze
from leveret.broker.cli.ctl.main import ctl
from leveret.broker.cli.definitions import definitions
from leveret.broker.cli.event_loop import loop_factory
from leveret.broker.cli.perf import perf
from leveret.broker.cli.process_files import StartupError, configure_logs, remove_pid_file, write_pid_file
from leveret.broker.cli.store import store
from leveret.broker.config.config import Config, ConfigError, Listener, effective, load
from leveret.broker.config.sources import DEFAULT_PORT
from leveret.broker.persistence.data_lock import DataDirError, locked
from leveret.broker.persistence.data_store import DataStore
from leveret.broker.process import logs
from leveret.broker.process.sd_notify import Notifier

if TYPE_CHECKING:
    from leveret.broker.http.server import ManagementServer

DISTRIBUTION: Final = "leveret"
# Time that the writer's thread waits for the interpreter, a few dozen times per commit, while the loop is busy.
SWITCH_SECONDS: Final = 0.0003
# Logs and exports are readable for the group, which ships or analyses them; the data only for the owner.
UMASK: Final = 0o027

# The most file descriptors that macOS allows a process by default, although its hard limit is unlimited (OPEN_MAX).
MACOS_FILES: Final = 10_240

_logger = logging.getLogger(logs.LOGGER_NAME)


def _config_options(command: Callable[..., None]) -> Callable[..., None]:
    path = click.Path(path_type=Path)
    for option in (
        click.option(
            "--set",
            "settings",
            metavar="KEY=VALUE",
            multiple=True,
            help="Set a configuration key; may be repeated.",
        ),
        click.option("--data-dir", metavar="DIR", type=path, help="Data directory."),
        click.option(
            "--config",
            "config_paths",
            metavar="FILE",
            multiple=True,
            type=path,
            help="Configuration file, directory of *.conf files, or pattern; may be repeated, later files override "
            "earlier.",
        ),
    ):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name=DISTRIBUTION, message="%(prog)s %(version)s")
def main() -> None:
    """Leveret, an AMQP 0-9-1 broker."""


main.add_command(store)
main.add_command(definitions)
main.add_command(analyze)
main.add_command(perf)
main.add_command(ctl)


@main.command()
@_config_options
@click.option("--port", type=click.IntRange(0, 65535), help="Port for AMQP (default: 5672).")
@click.option("--listen", metavar="ADDRESS", help="IP address for AMQP (default: 127.0.0.1).")
@click.option(
    "--pid-file", metavar="FILE", help="File with the process id, present while clients can connect."
)
@click.option(
    "--log-file", metavar="FILE", help="Log to this file instead of the console; SIGHUP reopens it."
)
def serve(
    config_paths: Sequence[Path],
    data_dir: Path | None,
    settings: Sequence[str],
    pid_file: str | None,
    log_file: str | None,
    port: int | None,
    listen: str | None,
) -> None:
    """Start the broker in the foreground; SIGTERM or SIGINT stops it."""
    flags = list(settings)
    if port is not None or listen:
        address = Listener(listen or "127.0.0.1", DEFAULT_PORT if port is None else port)
        flags += ["listeners.tcp=none", f"listeners.tcp.default={address}"]
    if pid_file:
        flags.append(f"pid_file={Path(pid_file).absolute()}")
    if log_file:
        flags += [f"log.file={Path(log_file).absolute()}", "log.console=false"]
    config = _load_or_exit(config_paths, data_dir, flags)
    try:
        _raise_file_limit()
        os.umask(os.umask(UMASK) | UMASK)
        with locked(config.data_dir), contextlib.closing(configure_logs(config)) as outputs:
            code = _run(config, outputs)
    except StartupError as error:
        _fail(str(error), error.code)
    except DataDirError as error:
        _fail(str(error), exit_codes.CANNOT_CREATE)
    sys.exit(code)


@main.command("config")
@_config_options
@click.option("--markdown", is_flag=True, help="Print the reference of all keys (docs/configuration.md).")
def show_config(
    config_paths: Sequence[Path], data_dir: Path | None, settings: Sequence[str], *, markdown: bool
) -> None:
    """Print the effective configuration; passwords are masked."""
    if markdown:
        from leveret.broker.config.reference import render  # noqa: PLC0415 - only for whoever writes the page

        click.echo(render(), nl=False)
        return
    config = _load_or_exit(config_paths, data_dir, settings)
    for line in effective(config):
        click.echo(line)


def _fail(text: str, code: int) -> NoReturn:
    click.echo(f"{DISTRIBUTION}: {text}", err=True)
    sys.exit(code)


def _load_or_exit(config_paths: Sequence[Path], data_dir: Path | None, settings: Sequence[str]) -> Config:
    try:
        return load(config_paths, data_dir, settings, os.environ)
    except ConfigError as error:
        for problem in error.problems:
            click.echo(f"{DISTRIBUTION}: {problem}", err=True)
        sys.exit(exit_codes.CONFIG)


def _raise_file_limit() -> None:
    """Raise the limit of file descriptors, one per connection, to the maximum that the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (hard, MACOS_FILES):
        if limit == hard or soft < limit < hard:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
                return


def _run(config: Config, outputs: logs.Logs) -> int:
    """Run the broker until it is stopped; returns the exit code."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_serve(config, outputs))


async def _serve(config: Config, outputs: logs.Logs) -> int:
    async with contextlib.AsyncExitStack() as ending:
        return await _serve_until_stopped(config, outputs, ending)


async def _serve_until_stopped(config: Config, outputs: logs.Logs, ending: contextlib.AsyncExitStack) -> int:
    # Imported here, because `leveret --version` does not need it.
    from leveret.broker.administration.definitions_document import DefinitionsError  # noqa: PLC0415
    from leveret.broker.auth.name_patterns import InvalidPatternError  # noqa: PLC0415
    from leveret.broker.server.server import Server  # noqa: PLC0415
    from leveret.broker.server.startup import port_problem  # noqa: PLC0415
    from leveret.storage.errors import StorageError  # noqa: PLC0415

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_log_loop_error)
    stopping = asyncio.Event()
    _handle_signals(loop, stopping, config, outputs)
    for warning in config.warnings:
        _logger.warning("%s", warning)
    try:
        server = Server(config, _open_disk(config))
        server.process = _Process(stopping, outputs)
        if config.prometheus.enabled and config.prometheus.port:
            ending.push_async_callback(await _start_monitor(server, config))
        if config.management.enabled and config.management.port:
            ending.push_async_callback(await _start_management(server, config))
        ending.push_async_callback(await _open_control_socket(server, config))
        await server.start()
    except DefinitionsError as error:
        raise StartupError(str(error), exit_codes.DATA) from None
    except InvalidPatternError as error:
        raise StartupError(f"invalid permissions of a default user: {error}", exit_codes.CONFIG) from None
    except StorageError as error:
        raise StartupError(str(error), exit_codes.DATA) from None
    except OSError as error:
        problem = port_problem(error, config.listeners) + _advice(error)
        raise StartupError(problem, exit_codes.UNAVAILABLE) from None
    except StartupError:
        raise
    except Exception:
        _logger.exception("the broker failed to start")
        return exit_codes.SOFTWARE
    write_pid_file(config.pid_file)
    try:
        server.collector.start()
        sys.setswitchinterval(SWITCH_SECONDS)
        addresses = _log_listeners(server)
        _logger.info("Server startup complete")
        notifier = Notifier(os.environ, os.getpid())
        notifier.ready(f"listening on {', '.join(addresses)}", loop)
        await stopping.wait()
        notifier.stopping()
        _logger.info("stopping: closing connections")
        await server.stop("shutdown")
    finally:
        remove_pid_file(config.pid_file)
    _logger.info("stopped")
    return 0


def _advice(error: OSError) -> str:
    """Return what to do about a port for AMQP that could not be had."""
    if error.errno != errno.EADDRINUSE:
        return ""
    return " (by RabbitMQ or another broker? `leveret serve --port` takes another port)"


class _Process:
    """The process, for administrators (`broker.administration.node.ProcessControl`)."""

    def __init__(self, stopping: asyncio.Event, outputs: logs.Logs) -> None:
        self._stopping = stopping
        self._outputs = outputs

    def stop(self) -> None:
        """Begin the shutdown."""
        _logger.info("stopping: an administrator asked for it")
        self._stopping.set()

    def reopen_logs(self) -> None:
        """Reopen the log files."""
        self._outputs.reopen()


def _log_listeners(server: Any) -> list[str]:
    """Log the bound addresses, and a warning if anybody may log in there; returns them."""
    from leveret.broker.auth.users import default_credentials  # noqa: PLC0415

    addresses = [str(Listener(host, port)) for host, port in server.addresses]
    if addresses and (warning := default_credentials(server.users)):
        logging.getLogger("leveret.connection").warning("%s", warning)
    for address in addresses:
        _logger.info("started TCP listener on %s", address)
    return addresses


async def _start_monitor(server: Any, config: Config) -> Callable[[], Awaitable[None]]:
    """Start the HTTP listener for metrics and health; returns its stop function. StartupError if it is required."""
    from leveret.broker.http.call import BoundListener  # noqa: PLC0415
    from leveret.broker.metrics.http import Monitor, cluster_id  # noqa: PLC0415
    from leveret.broker.metrics.node import Identity  # noqa: PLC0415
    from leveret.broker.server.startup import port_problem  # noqa: PLC0415

    wanted = config.prometheus
    seed = f"{config.node_name} {config.data_dir.resolve()}"
    identity = Identity(config.node_name, config.cluster_name, cluster_id(seed))
    monitor = Monitor(server, identity, per_object=wanted.per_object)
    try:
        await monitor.start(wanted.host, wanted.port)
    except OSError as error:
        problem = port_problem(error, (Listener(wanted.host, wanted.port),))
        if wanted.required:
            raise StartupError(problem, exit_codes.UNAVAILABLE) from None
        _logger.warning("metrics and health checks are disabled: %s", problem)
    else:
        server.http_listeners.append(BoundListener("http/prometheus", *monitor.address))
        _logger.info("started HTTP listener on %s for metrics and health", Listener(*monitor.address))
    return monitor.stop


def _management(server: Any) -> "Callable[..., ManagementServer]":
    """Load what serves the management API; returns a function that makes such a server."""
    from leveret.broker.http.server import ManagementServer  # noqa: PLC0415
    from leveret.broker.management.routes import ROUTER  # noqa: PLC0415

    return partial(ManagementServer, server, ROUTER)


async def _open_control_socket(server: Any, config: Config) -> Callable[[], Awaitable[None]]:
    """Open the socket for `leveret ctl`; returns a function that closes it."""
    from leveret.broker.http.control_socket import ControlSocket  # noqa: PLC0415
    from leveret.broker.http.socket_path import NAME  # noqa: PLC0415

    control = ControlSocket(config.data_dir, partial(_management, server))
    try:
        control.open()
    except OSError as error:
        _logger.warning("leveret ctl cannot connect: %s: %s", config.data_dir / NAME, error.strerror)
    return control.close


async def _start_management(server: Any, config: Config) -> Callable[[], Awaitable[None]]:
    """Start the HTTP listener of the management API; returns its stop function. StartupError if it is required."""
    from leveret.broker.server.startup import port_problem  # noqa: PLC0415

    wanted = config.management
    management = _management(server)(wanted.path_prefix)
    try:
        await management.start(wanted.host, wanted.port)
    except OSError as error:
        problem = port_problem(error, (Listener(wanted.host, wanted.port),))
        if wanted.required:
            raise StartupError(problem, exit_codes.UNAVAILABLE) from None
        _logger.warning("the management API is disabled: %s", problem)
    else:
        _logger.info("started HTTP listener on %s for the management API", Listener(*management.address))
    return management.stop


def _open_disk(config: Config) -> Any:
    """Open the data; raises StartupError if that is impossible."""
    from leveret.broker.server.startup import open_data_store  # noqa: PLC0415
    from leveret.storage.errors import StorageError, UnknownFormatError  # noqa: PLC0415

    try:
        return open_data_store(config, DataStore)
    except UnknownFormatError as error:
        raise StartupError(str(error), exit_codes.DATA) from None
    except StorageError as error:
        raise StartupError(str(error), exit_codes.CANNOT_CREATE) from None


def _handle_signals(
    loop: asyncio.AbstractEventLoop, stopping: asyncio.Event, config: Config, outputs: logs.Logs
) -> None:
    def stop(number: int) -> None:
        name = signal.Signals(number).name
        if stopping.is_set():
            _logger.warning("received %s again: exiting immediately", name)
            remove_pid_file(config.pid_file)
            outputs.close()
            os._exit(128 + number)
        _logger.info("received %s", name)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    loop.add_signal_handler(signal.SIGHUP, outputs.reopen)


def _log_loop_error(_loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    error = context.get("exception")
    _logger.error(
        "unexpected error in the event loop: %s",
        context.get("message"),
        exc_info=error if isinstance(error, BaseException) else None,
    )
