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
from leveret.broker.cli.ctl.errors import CtlError
from leveret.broker.cli.options import fail, loop_factory
from leveret.broker.client.errors import ClientError, RefusedError
from leveret.broker.client.options import TLS
from leveret.broker.client.uri import Address, UriError, parse
from leveret.broker.perf.load import STAMP_SIZE, Load, LoadError
from leveret.broker.perf.measurement import Interval, Result
from leveret.broker.perf.report import Report
from leveret.broker.perf.run import Run

SELECT_CONNECTIONS = 900  # connections that select() supports, besides the other files of the process
LOCAL = "amqp://guest:guest@127.0.0.1:5672/%2F"
_COUNT = click.IntRange(min=0)


@click.command()
@click.option(
    "--uri",
    help="Broker, login and vhost; special characters percent-encoded. amqps:// uses TLS, by default on port 5671. "
    f"Without it guest at the only broker of this user, or {LOCAL}.",
)
@click.option(
    "--cacert",
    metavar="FILE",
    help="PEM file with the CAs that are trusted with amqps; those of the system if not given.",
)
@click.option("--cert", metavar="FILE", help="PEM file with the certificate of the client.")
@click.option("--key", metavar="FILE", help="PEM file with its key, if that is not in the same file.")
@click.option("--insecure", is_flag=True, help="Do not check the certificate of the broker.")
@click.option("-x", "--producers", type=_COUNT, default=1, show_default=True, help="Number of producers.")
@click.option("-y", "--consumers", type=_COUNT, default=1, show_default=True, help="Number of consumers.")
@click.option(
    "-s",
    "--size",
    type=click.IntRange(min=STAMP_SIZE),
    default=STAMP_SIZE,
    show_default=True,
    help="Bytes of each body.",
)
@click.option("--persistent", is_flag=True, help="Publish persistent messages (as -f persistent).")
@click.option(
    "-f",
    "--flag",
    "flags",
    type=click.Choice(["persistent", "mandatory"]),
    multiple=True,
    help="Publish persistent or mandatory messages; may be repeated.",
)
@click.option(
    "-c",
    "--confirm",
    type=_COUNT,
    default=0,
    metavar="N",
    help="Use confirms, with at most N unconfirmed messages of each producer.",
)
@click.option(
    "-q",
    "--qos",
    "prefetch",
    type=click.IntRange(0, 65535),
    default=0,
    help="Prefetch count of each consumer.",
)
@click.option("-a", "--autoack", is_flag=True, help="Consume without acks.")
@click.option(
    "-A",
    "--multi-ack-every",
    "ack_every",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Acknowledge every N messages with one ack.",
)
@click.option("--queues", type=_COUNT, default=1, show_default=True, help="Number of queues.")
@click.option(
    "-u",
    "--queue",
    metavar="NAME",
    help="Queue; with --queues, beginning of their names. Existing queues are used and kept, their messages consumed.",
)
@click.option(
    "-e", "--exchange", default="", metavar="NAME", help="Exchange; the default exchange if not given."
)
@click.option(
    "-t", "--type", "exchange_type", default="direct", show_default=True, help="Type of a new exchange."
)
@click.option("-k", "--routing-key", metavar="KEY", help="Routing key; the name of each queue if not given.")
@click.option(
    "-r",
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    metavar="N",
    help="Messages a second of each producer; as many as possible if not given.",
)
@click.option(
    "-z",
    "--seconds",
    "--time",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="Duration; 0: until interrupted.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document at the end.")
def perf(
    uri: str | None,
    *,
    as_json: bool,
    cacert: str | None,
    cert: str | None,
    key: str | None,
    insecure: bool,
    autoack: bool,
    persistent: bool,
    flags: tuple[str, ...],
    rate: float | None,
    ack_every: int,
    **options: Any,
) -> None:
    """Publish and consume at a broker, and measure rates and latencies.

    Short options are those of RabbitMQ's PerfTest. Queues and exchanges that do not exist are created, and
    deleted at the end. With --rate latencies count from the time at which each message was due. Interrupt it to end
    early with the summary.

    \b
    Examples:
      leveret perf
      leveret perf --persistent --confirm 200 --size 1000 --seconds 30
      leveret perf --uri amqp://ann:secret@broker.example/shop --rate 2000 --json
      leveret perf --uri amqps://broker.example --cacert ca.pem
    """  # noqa: D301 - click's mark for lines that stay as they are
    try:
        address = parse(uri or _found())
    except UriError as error:
        raise click.BadParameter(str(error), param_hint="--uri") from None
    tls = _tls(address, cacert=cacert, cert=cert, key=key, insecure=insecure)
    load = Load(
        persistent=persistent or "persistent" in flags,
        mandatory="mandatory" in flags,
        rate=rate or 0.0,
        ack_every=0 if autoack else ack_every,
        **options,
    )
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
    """Return a factory of event loops: fast ones, or for a load with a rate those with exact timers.

    Timers of uvloop and of epoll have milliseconds, and a message that is sent a millisecond late has that in its
    latency. Those of select() have microseconds; it supports less than 1,024 files.
    """
    if not load.rate:
        return loop_factory()
    if load.producers + load.consumers > SELECT_CONNECTIONS:
        return None
    return lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())


async def _run(
    load: Load, address: Address, report: Report | None, tls: TLS | None
) -> tuple[Result, ClientError | None]:
    """Run the load; returns the result and the error that ended it, if any."""
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
