"""The command `leveret`, `leveret serve` and `leveret config` (driver: the process, its signals, its event loop)."""

import asyncio
import contextlib
import errno
import gc
import logging
import os
import resource
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from leveret import __version__
from leveret.broker import exit_codes
from leveret.broker.cli import entry
from leveret.broker.cli.entry import examples
from leveret.broker.cli.options import PROGRAM, config_options, data_errors, fail, load_or_exit
from leveret.broker.cli.startup import (
    StartupError,
    configure_logs,
    handle_hang_up,
    keep_sessions,
    open_audit_log,
    open_listeners,
    remove_pid_file,
    restore_sessions,
    write_pid_file,
)
from leveret.broker.config.config import Config, Listener, judge_settings, written_settings
from leveret.broker.config.placement import FOLDER
from leveret.broker.config.values import DEFAULT_PORT, Setting
from leveret.broker.http.running_brokers import announced
from leveret.broker.persistence.data_lock import locked
from leveret.broker.persistence.data_store import DataStore
from leveret.broker.process import logs
from leveret.broker.process.logs import RECENT
from leveret.broker.process.sd_notify import Notifier
from leveret.broker.scheduling.loop import log_loop_error, loop_factory
from leveret.broker.tls.options import TLSFileError

_fail = partial(fail, code=exit_codes.USAGE, command="leveret config")


@click.command("config")
@config_options
@click.option(
    "--ignored", is_flag=True, help="Print only the keys of RabbitMQ that have no effect, with the reason."
)
@click.option("--all", "is_whole", is_flag=True, help="With files, too, list the keys that are not set.")
@click.argument("key", required=False)
@examples(
    "config",
    "config --config /etc/rabbitmq/rabbitmq.conf",
    "config heartbeat",
    "config encrypt < password",
)
def show_config(
    config_paths: Sequence[Path],
    data_dir: Path | None,
    settings: Sequence[str],
    key: str | None,
    *,
    ignored: bool,
    is_whole: bool,
) -> None:
    """Show the configuration keys, their values and meanings; explain one KEY; or `encrypt` a value.

    First come the keys that are set by files, variables and options, with their origin (passwords are masked), and
    what of them has no effect; with files nothing else, unless `--all` is given. Then come the keys that are used
    most, all others by topic, and the keys of RabbitMQ that have no effect. An invalid configuration is reported as at
    the start of the broker.
    """
    from leveret.broker.config.reference import Overview  # noqa: PLC0415 - only for this command

    if key == "encrypt":
        _encrypt(written_settings(config_paths, data_dir, settings, os.environ, [], []))
        return
    config = load_or_exit(config_paths, data_dir, settings)
    obeyed = judge_settings(config_paths, data_dir, settings, os.environ).obeyed
    is_terminal = sys.stdout.isatty()
    size = shutil.get_terminal_size()
    overview = Overview(obeyed, config.warnings, size.columns if is_terminal else None)
    if key is None:
        if config_paths and not (is_whole or ignored):
            lines = [*overview.given(), overview.verdict()]
        else:
            lines = list(overview.ignored() if ignored else overview.lines())
    elif (explained := overview.explained(key)) is not None:
        lines = list(explained)
    else:
        near = overview.near(key)
        _fail(f"there is no key {key}" + (f"; did you mean {', '.join(near)}?" if near else ""))
    if is_terminal and len(lines) >= size.lines:
        click.echo_via_pager("\n".join(lines) + "\n")
    else:
        click.echo("\n".join(lines))


def _encrypt(written: Sequence[Setting]) -> None:
    from leveret.broker.config.encrypted import PASSPHRASE, encrypt, passphrase_of  # noqa: PLC0415 - only for this

    problems: list[str] = []
    passphrase = passphrase_of({setting.key: setting for setting in written}, problems)
    if problems:
        _fail(problems[0])
    is_terminal = sys.stdin.isatty()
    if not passphrase and is_terminal:
        passphrase = click.prompt("Passphrase", hide_input=True, confirmation_prompt=True, err=True)
    if not passphrase:
        _fail(f"{PASSPHRASE} is not set; set it as the broker will have it")
    if is_terminal:
        value = click.prompt("Value", hide_input=True, confirmation_prompt=True, err=True)
    else:
        value = sys.stdin.readline().rstrip("\r\n")
    if not value:
        _fail("there is no value: it is read from the standard input")
    click.echo(encrypt(value, passphrase))


# Time that the writer's thread waits for the interpreter, a few dozen times per commit, while the loop is busy.
SWITCH_SECONDS: Final = 0.0003
SESSIONS: Final = "sessions.json"
# Logs and exports are readable for the group, which ships or analyses them; the data only for the owner.
UMASK: Final = 0o027

# The most file descriptors that macOS allows a process by default, although its hard limit is unlimited (OPEN_MAX).
MACOS_FILES: Final = 10_240

_logger = logging.getLogger(logs.LOGGER_NAME)


class _Commands(entry.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *entry.LATE])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return entry.load(cmd_name) if cmd_name in entry.LATE else super().get_command(ctx, cmd_name)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
@entry.examples(
    "serve                  start a broker, with its data in ./var",
    "ctl list_queues        ask a running broker",
    "config heartbeat       explain a setting",
    "COMMAND --help         tell more of a command",
)
def main() -> None:
    """Leveret, an AMQP 0-9-1 broker."""


main.add_command(show_config)


@main.command()
@config_options
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port for AMQP (default: 5672); the page has it plus 10000, metrics plus 10020.",
)
@click.option("--listen", metavar="ADDRESS", help="IP address for AMQP (default: 127.0.0.1).")
@click.option(
    "--pid-file", metavar="FILE", help="File with the process id, present while clients can connect."
)
@click.option(
    "--log-file", metavar="FILE", help="Log to this file instead of the console; SIGHUP reopens it."
)
@click.option("--vhosts-process", type=(int, int), hidden=True)
@entry.examples(
    "serve",
    "serve --port 5673 --data-dir /tmp/second",
    "serve --config rabbitmq.conf --data-dir /var/lib/leveret --set heartbeat=30",
)
def serve(
    config_paths: Sequence[Path],
    data_dir: Path | None,
    settings: Sequence[str],
    pid_file: str | None,
    log_file: str | None,
    port: int | None,
    listen: str | None,
    vhosts_process: tuple[int, int] | None,
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
    config = load_or_exit(config_paths, data_dir, flags, amqp_port=port)
    make_server = _make_server
    if vhosts_process is not None:  # an option of the front, for its own
        from leveret.broker.config.vhost_processes import config_of_process  # noqa: PLC0415 - most brokers have no front

        number, descriptor = vhosts_process
        config = config_of_process(config, number)
        make_server = partial(_make_vhost_server, descriptor)
    try:
        _raise_file_limit()
        os.umask(os.umask(UMASK) | UMASK)
        with (
            data_errors(advice="; stop it, or choose another directory with --data-dir"),
            locked(config.data_dir),
            contextlib.closing(configure_logs(config)) as outputs,
            contextlib.nullcontext()
            if vhosts_process is not None
            else announced(config.data_dir, os.environ, _logger.debug),
        ):
            code = _run(config, outputs, make_server)
    except StartupError as error:
        fail(str(error), error.code)
    sys.exit(code)


def _raise_file_limit() -> None:
    """Raise the limit of file descriptors, one per connection, to the maximum that the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (hard, MACOS_FILES):
        if limit == hard or soft < limit < hard:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
                return


def _run(config: Config, outputs: logs.Logs, make_server: "_MakeServer") -> int:
    from leveret.broker.process import memory  # noqa: PLC0415 - as below

    gc.disable()  # while it starts: `Collector.start` takes over
    if config.replication.engine_url:
        memory.keep_large_blocks(memory.KEPT_ENTRY, memory.KEPT_ENTRIES)
    else:
        memory.keep_large_blocks()
    RECENT.begin()
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_serve(config, outputs, make_server))
    finally:
        RECENT.end()
        gc.freeze()  # or the interpreter looks at all that is left once more: 0.1 s for 50,000 messages
        gc.enable()


async def _serve(config: Config, outputs: logs.Logs, make_server: "_MakeServer") -> int:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(log_loop_error)
    stopping = asyncio.Event()
    _handle_signals(loop, stopping, config, outputs)
    for warning in config.warnings:
        _logger.warning("%s", warning)
    if config.replication.engine_url:
        from leveret.broker.cli.replicated import serve_replicated  # noqa: PLC0415 - most brokers are one machine

        return await serve_replicated(config, stopping, partial(_serve_alone, config, outputs), outputs)
    return await _serve_alone(config, outputs, stopping, partial(make_server, config, stopping))


_MakeServer = Callable[[Config, asyncio.Event], Any]


def _make_server(config: Config, _stopping: asyncio.Event) -> Any:
    # Imported here and below, because `leveret --version` does not need it.
    from leveret.broker.server.server import Server  # noqa: PLC0415
    from leveret.broker.server.startup import open_data_store  # noqa: PLC0415

    if config.placement.processes or (config.data_dir / FOLDER).is_dir():
        from leveret.broker.placement.front import FrontServer  # noqa: PLC0415 - few have one
        from leveret.broker.placement.processes import check_directory  # noqa: PLC0415

        if not config.placement.processes:
            check_directory(config.data_dir, 0, is_new=False)
        return FrontServer(config, open_data_store(config, DataStore))
    if config.placement.elsewhere or config.placement.directory:
        from leveret.broker.placement.forwarding import ForwardingServer  # noqa: PLC0415 - few have one

        return ForwardingServer(config, open_data_store(config, DataStore))
    return Server(config, open_data_store(config, DataStore))


def _make_vhost_server(descriptor: int, config: Config, stopping: asyncio.Event) -> Any:
    from leveret.broker.placement.vhost_process import VHostServer  # noqa: PLC0415
    from leveret.broker.server.startup import open_data_store  # noqa: PLC0415

    front = socket.socket(fileno=descriptor)
    return VHostServer(config, open_data_store(config, DataStore), front, stopping.set)


async def _serve_alone(
    config: Config, outputs: logs.Logs, stopping: asyncio.Event, make_server: Callable[[], Any]
) -> int:
    async with contextlib.AsyncExitStack() as ending:
        try:
            server = await _start(config, outputs, stopping, make_server, ending)
        except StartupError:
            raise
        except Exception:
            _logger.exception("the broker failed to start")
            return exit_codes.SOFTWARE
        write_pid_file(config.pid_file)
        try:
            server.collector.start()
            sys.setswitchinterval(SWITCH_SECONDS)
            restore_sessions(server, config.data_dir / SESSIONS)
            addresses = _log_listeners(server)
            if server.place != "process":  # clients connect to the front
                _logger.info("Server startup complete")
            _log_page(server, config.management.path_prefix)
            server.audit.record(
                "broker.start", name=server.node_name, version=__version__, files=config.files
            )
            notifier = Notifier(os.environ, os.getpid())
            notifier.ready(f"listening on {', '.join(addresses)}", asyncio.get_running_loop())
            await stopping.wait()
            if not server.goes_on:
                notifier.stopping()
            server.collector.stop()
            _logger.info("stopping: closing connections")
            server.audit.record("broker.stop", name=server.node_name)
            keep_sessions(server, config.data_dir / SESSIONS)
            await server.stop("shutdown")
        finally:
            remove_pid_file(config.pid_file)
        _logger.info("stopped")
        return 0


async def _start(
    config: Config,
    outputs: logs.Logs,
    stopping: asyncio.Event,
    make_server: Callable[[], Any],
    ending: contextlib.AsyncExitStack,
) -> Any:
    """Return the broker once clients can connect. StartupError if a cause is known for which it cannot start."""
    from leveret.broker.administration import DefinitionsError  # noqa: PLC0415
    from leveret.broker.auth.passwords import WeakPasswordError  # noqa: PLC0415
    from leveret.broker.placement.placement import PlacementError  # noqa: PLC0415
    from leveret.broker.server.startup import port_problem  # noqa: PLC0415
    from leveret.storage.errors import StorageError  # noqa: PLC0415

    try:
        server = make_server()
        outputs.add(open_audit_log(config, server.audit, ending))
        server.process = _Process(stopping, outputs)
        handle_hang_up(outputs, server.gate.certificates.reload)
        await open_listeners(server, config, ending)
        await server.start()
    except DefinitionsError as error:
        raise StartupError(str(error), exit_codes.DATA) from None
    except StorageError as error:
        raise StartupError(str(error), exit_codes.of_storage(error)) from None
    except (TLSFileError, WeakPasswordError, PlacementError) as error:
        raise StartupError(str(error), exit_codes.CONFIG) from None
    except OSError as error:
        problem = port_problem(error, config.listeners + config.tls_listeners)
        if error.errno == errno.EADDRINUSE:
            problem += " (by RabbitMQ or another broker? `leveret serve --port` takes another port)"
        raise StartupError(problem, exit_codes.UNAVAILABLE) from None
    return server


class _Process:
    def __init__(self, stopping: asyncio.Event, outputs: logs.Logs) -> None:
        self._stopping = stopping
        self.reopen_logs = outputs.reopen

    def stop(self) -> None:
        _logger.info("stopping: an administrator asked for it")
        self._stopping.set()


def _log_listeners(server: Any) -> list[str]:
    """Log the bound addresses, and a warning if any client may log in there; returns them."""
    from leveret.broker.auth.users import default_credentials  # noqa: PLC0415

    addresses = [str(Listener(host, port)) for host, port in server.gate.listeners.addresses]
    if (addresses or server.gate.listeners.tls_addresses) and (warning := default_credentials(server.users)):
        logging.getLogger("leveret.connection").warning("%s", warning)
    for address in addresses:
        _logger.info("started TCP listener on %s", address)
    with_tls = [str(Listener(host, port)) for host, port in server.gate.listeners.tls_addresses]
    for address in with_tls:
        _logger.info("started TLS (SSL) listener on %s", address)
    return addresses + with_tls


def _log_page(server: Any, prefix: str) -> None:
    """Log the address of the web page, and its login while that is the default one."""
    from leveret.broker.auth.users import default_credentials  # noqa: PLC0415

    listener = next((each for each in server.listeners if each.protocol in {"http", "https"}), None)
    if listener is not None:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listener.address, listener.address)  # noqa: S104 - no listener
        login = (
            "user guest, password guest"
            if default_credentials(server.users)
            else "with a user of this broker"
        )
        address = Listener(host, listener.port)
        _logger.info("page: %s://%s%s/ (%s)", listener.protocol, address, prefix, login)


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
    loop.add_signal_handler(signal.SIGHUP, outputs.reopen)  # `handle_hang_up` adds more
