"""The command `leveret perf` (driver: signals, its event loop)."""

import asyncio
import contextlib
import selectors
import signal
from collections.abc import Callable
from typing import Any

import click
import msgspec

from leveret.broker import exit_codes
from leveret.broker.cli.ctl.command import client_of
from leveret.broker.cli.ctl.output import CtlError
from leveret.broker.cli.entry import examples
from leveret.broker.cli.options import fail
from leveret.broker.client.errors import ClientError, RefusedError
from leveret.broker.client.options import TLS
from leveret.broker.client.uri import Address, UriError, parse
from leveret.broker.perf.load import STAMP_SIZE, Load, LoadError
from leveret.broker.perf.measurement import Interval, Report, Result
from leveret.broker.perf.run import Run
from leveret.broker.scheduling.loop import loop_factory

SELECT_CONNECTIONS = 900  # connections that select() supports, besides the other files of the process
LOCAL = "amqp://guest:guest@127.0.0.1:5672/%2F"
_DEFAULTS = {each.name: each.default for each in msgspec.structs.fields(Load)}


def _option(names: str, text: str, kind: Any = None, **more: Any) -> click.Option:
    """Return an option; its default is that of the field of the load that has its name."""
    option = click.Option(names.split(), type=kind, help=text, **more)
    if "default" not in more:
        option.default = _DEFAULTS.get(option.name, option.default)
    return option


def _at_least(least: int) -> click.IntRange:
    return click.IntRange(min=least)


OPTIONS = [
    _option("--uri", "Broker, login and vhost; special characters percent-encoded. amqps:// uses TLS, by default on "
            f"port 5671. Without it guest at the only broker of this user, or {LOCAL}."),
    _option("--cacert", "PEM file with the CAs that are trusted with amqps; those of the system if not given.",
            metavar="FILE"),
    _option("--cert", "PEM file with the certificate of the client.", metavar="FILE"),
    _option("--key", "PEM file with its key, if that is not in the same file.", metavar="FILE"),
    _option("--insecure", "Do not check the certificate of the broker.", is_flag=True),
    _option("-x --producers", "Number of producers.", _at_least(0), show_default=True),
    _option("-y --consumers", "Number of consumers.", _at_least(0), show_default=True),
    _option("-s --size", "Bytes of each body.", _at_least(STAMP_SIZE), show_default=True),
    _option("--persistent", "Publish persistent messages (as -f persistent).", is_flag=True),
    _option("-f --flag flags", "Publish persistent or mandatory messages; may be repeated.",
            click.Choice(["persistent", "mandatory"]), multiple=True),
    _option("-c --confirm", "Use confirms, with at most N unconfirmed messages of each producer.", _at_least(0),
            metavar="N"),
    _option("-q --qos prefetch", "Prefetch count of each consumer.", click.IntRange(0, 65535)),
    _option("-a --autoack", "Consume without acks.", is_flag=True),
    _option("-A --multi-ack-every ack_every", "Acknowledge every N messages with one ack.", _at_least(1), metavar="N"),
    _option("--queues", "Number of queues.", _at_least(0), show_default=True),
    _option("-u --queue", "Queue; with --queues, beginning of their names. Existing queues are used and kept, their "
            "messages consumed.", metavar="NAME"),
    _option("-e --exchange", "Exchange; the default exchange if not given.", metavar="NAME"),
    _option("-t --type exchange_type", "Type of a new exchange.", show_default=True),
    _option("-k --routing-key", "Routing key; the name of each queue if not given.", metavar="KEY"),
    _option("-r --rate", "Messages a second of each producer; as many as possible if not given.",
            click.FloatRange(min=0, min_open=True), default=None, metavar="N"),
    _option("-z --seconds --time", "Duration; 0: until interrupted.", click.FloatRange(min=0), show_default=True),
    _option("--json as_json", "Print the result as one JSON document at the end.", is_flag=True),
]  # fmt: skip


@click.command(params=OPTIONS)
@examples(
    "perf",
    "perf --persistent --confirm 200 --size 1000 --seconds 30",
    "perf --uri amqp://ann:secret@broker.example/shop --rate 2000 --json",
    "perf --uri amqps://broker.example --cacert ca.pem",
)
def perf(uri: str | None, *, as_json: bool, autoack: bool, flags: tuple[str, ...], **options: Any) -> None:
    """Publish and consume at a broker, and measure rates and latencies.

    Short options are those of RabbitMQ's PerfTest. Queues and exchanges that do not exist are created, and
    deleted at the end. With --rate latencies count from the time at which each message was due. Interrupt it to end
    early with the summary.
    """
    try:
        address = parse(uri or _found())
    except UriError as error:
        raise click.BadParameter(str(error), param_hint="--uri") from None
    tls = _tls(address, **{name: options.pop(name) for name in ("cacert", "cert", "key", "insecure")})
    options["persistent"] |= "persistent" in flags
    options["rate"] = options["rate"] or 0.0
    if autoack:
        options["ack_every"] = 0
    load = Load(mandatory="mandatory" in flags, **options)
    try:
        load.check()
    except LoadError as error:
        raise click.UsageError(str(error)) from None
    report = None if as_json else Report(load)
    try:
        with asyncio.Runner(loop_factory=_loop_factory(load)) as runner:
            result, ended = runner.run(_run(load, address, report, tls))
        if report is None:
            click.echo(msgspec.json.format(msgspec.json.encode(result), indent=2))
        else:
            _print(report.summary(result))
        if ended is not None:
            raise ended
    except ClientError as error:
        fail(
            str(error),
            exit_codes.NO_PERMISSION if isinstance(error, RefusedError) else exit_codes.UNAVAILABLE,
        )


def _found() -> str:
    """Return the URI of the broker that commands find; the usual one if there is none or are several."""
    with contextlib.suppress(CtlError), client_of({"uri": None, "data_dir": None, "timeout": None}) as api:
        for each in api.get("overview", columns="listeners")["listeners"]:
            if each["protocol"] == "amqp":
                host = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}.get(each["ip_address"], each["ip_address"])  # noqa: S104
                return f"amqp://guest:guest@{f'[{host}]' if ':' in host else host}:{each['port']}/%2F"
    return LOCAL


def _tls(address: Address, **options: Any) -> TLS | None:
    """Return the encryption of the connections; None without. Raises UsageError for options that have no effect."""
    given = [name for name, value in options.items() if value]
    if not address.is_tls:
        if given:
            raise click.UsageError(f"--{given[0]} needs a URI that begins with amqps://")
        return None
    if options["key"] and not options["cert"]:
        raise click.UsageError("--key needs --cert")
    return TLS(
        cacertfile=options["cacert"] or "",
        certfile=options["cert"] or "",
        keyfile=options["key"] or "",
        is_verified=not options["insecure"],
    )


def _loop_factory(load: Load) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return a factory of event loops: fast ones, or for a load with a rate those with exact timers."""
    # Timers of uvloop and of epoll have milliseconds, and a message that is sent a millisecond late has that in its
    # latency. Those of select() have microseconds; it supports less than 1,024 files.
    if not load.rate:
        return loop_factory()
    if load.producers + load.consumers > SELECT_CONNECTIONS:
        return None
    return lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())


async def _run(
    load: Load, address: Address, report: Report | None, tls: TLS | None
) -> tuple[Result, ClientError | None]:
    loop = asyncio.get_running_loop()

    def begun(server: Any) -> None:
        """Print what runs; from now on the first signal ends the measurement, and the second the command."""
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, interrupted)
        if report is not None:
            _print(report.begin(server, str(address)))

    def interrupted() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        run.interrupt()

    def ended(interval: Interval) -> None:
        if report is not None:
            _print(report.interval(interval))

    run = Run(load, address, begun, ended, tls)
    return await run.go(), run.error


def _print(lines: list[str]) -> None:
    for line in lines:
        click.echo(line)
