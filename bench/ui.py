"""Open pages beside traffic: `make bench NAME=ui`.

A cheap client replays what ten open pages ask for: the files of the page once, a stream of events for each, and a list
that is read again every five seconds. Measured are the processor time that they cost the broker, and the latency of
5,000 messages a second with and without them, in pairs. A real browser opens the page of a broker with 10,000 queues
and 1,000 connections (`bench.browser`). The load of the machine is printed with each part.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from multiprocessing.synchronize import Event

import aiohttp
import uvloop

from bench import brokers
from bench.browser import beside, browser
from bench.latency import measure, percentile
from bench.management import LOGIN, Managed, loaded, managed, used
from bench.results import Report
from bench.scale import declare_durable
from leveret.broker.page.assets import assets

PAGES = 10
QUEUES = 10_000
RATE = 5000
PAIRS = 6
SECONDS = 5.0
WATCHED_SECONDS = 20.0
SHARE = 0.03
RATIO = 1.10
POLL_SECONDS = 5.0
POLL = "/api/connections?columns=name,user,vhost,state,channels"
EVENTS = "/api/leveret/events?topics=overview,queues"
OCTETS = 270_000
PARTS = ("files", "browser", "cost", "latency")


def cost(at: Managed, report: Report, name: str) -> None:
    """Measure the processor time of the broker with and without open pages."""
    before = share_of(at)
    with beside(watch, at.port):
        time.sleep(3.0)
        meanwhile = share_of(at)
    report.line(f"broker {name} without pages", 100.0 * before, "% of a core")
    report.line(
        f"{PAGES} open pages {name} cost", 100.0 * (meanwhile - before), "% of a core", most=100.0 * SHARE
    )


def share_of(at: Managed) -> float:
    """Return the share of a processor that the broker uses."""
    began, cpu = time.perf_counter(), used(at.broker.pid)
    time.sleep(WATCHED_SECONDS)
    return (used(at.broker.pid) - cpu) / 1000.0 / (time.perf_counter() - began)


def latency(at: Managed, report: Report) -> None:
    """Measure the p99 of messages in pairs with and without open pages."""
    ratios, quiet, beside = [], [], []
    for _ in range(PAIRS):
        quiet.append(p99(at))
        with beside(watch, at.port):
            beside.append(p99(at))
        ratios.append(beside[-1] / quiet[-1])
    report.line(f"p99 at {RATE:,} messages/s without pages, median", statistics.median(quiet), "ms")
    report.line(f"p99 beside {PAGES} pages, median", statistics.median(beside), "ms")
    report.line(f"median ratio of {PAIRS} pairs", statistics.median(ratios), "x", most=RATIO)


def p99(at: Managed) -> float:
    """Return the p99 of the latency in milliseconds."""
    return 1000.0 * percentile(uvloop.run(measure(at.broker.port, rate=RATE, seconds=SECONDS)), 99.0)


def watch(port: int, ready: Event) -> None:
    """Be the pages until the process is ended."""
    uvloop.run(_watch(f"http://127.0.0.1:{port}", ready))


async def _watch(base: str, ready: Event) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        base, headers={"authorization": LOGIN}, connector=connector, timeout=aiohttp.ClientTimeout(None)
    ) as client:
        began = [asyncio.Event() for _ in range(PAGES)]
        async with asyncio.TaskGroup() as group:
            for event in began:
                group.create_task(_page(client, event))
            for event in began:
                await event.wait()
            ready.set()


async def _page(client: aiohttp.ClientSession, began: asyncio.Event) -> None:
    """Open a page, and keep it open."""
    async with client.get("/") as answer:
        await answer.read()
    for name in filter(None, assets()):
        async with client.get(f"/{name}") as answer:
            await answer.read()
    async with client.get(EVENTS) as stream, asyncio.TaskGroup() as group:
        group.create_task(_poll(client))
        async for _ in stream.content.iter_any():
            began.set()


async def _poll(client: aiohttp.ClientSession) -> None:
    while True:
        async with client.get(POLL) as answer:
            await answer.read()
        await asyncio.sleep(POLL_SECONDS)


async def files(base: str) -> tuple[float, int]:
    """Return the milliseconds in which all files of the page are fetched by six connections, and their octets."""
    async with aiohttp.ClientSession(base, connector=aiohttp.TCPConnector(limit=6)) as client:
        began = time.perf_counter()
        async with client.get("/") as answer:
            document = await answer.read()
        bodies = await asyncio.gather(*(_body(client, f"/{name}") for name in assets() if name))
        return 1000.0 * (time.perf_counter() - began), len(document) + sum(map(len, bodies))


async def _body(client: aiohttp.ClientSession, path: str) -> bytes:
    async with client.get(path) as answer:
        return await answer.read()


def run(parts: Sequence[str], minutes: float, report: Report) -> None:
    """Measure parts; `minutes` is the time for which the browser shows live figures."""
    if "browser" in parts:
        with managed() as at:
            print(f"browser, {loaded()}")
            browser(at, report, minutes)
    with managed() as at:
        at.get("/api/whoami")
        if "files" in parts:
            times = [uvloop.run(files(f"http://127.0.0.1:{at.port}")) for _ in range(5)]
            report.line("all files of the page, median", statistics.median(taken for taken, _ in times), "ms")
            report.line("all files of the page, unpacked", times[0][1] / 1000.0, "KB", most=OCTETS / 1000.0)
        if "cost" in parts:
            print(f"processor time, {loaded()}")
            cost(at, report, "with no queues")
            uvloop.run(declare_durable(at.broker.port, QUEUES))
            cost(at, report, f"with {QUEUES:,} queues")
        if "latency" in parts:
            print(f"latency, {loaded()}")
            latency(at, report)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; returns 0 if all bars are cleared, 1 if not, 2 if a broker did not run."""
    parser = argparse.ArgumentParser(prog="python -m bench.ui", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="minutes live before the heap is measured"
    )
    options = parser.parse_args(arguments)
    report = Report("ui")
    try:
        run(options.parts, options.minutes, report)
    except (brokers.BrokerError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    print(f"end, {loaded()}")
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
