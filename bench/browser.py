"""The web page in a browser: a part of `make bench NAME=ui`.

Debian's Chromium, driven by Playwright, opens the page of a broker with many queues and connections: the first paint,
the first rows, a key typed in the filter, and the heap after minutes with live figures. Each figure is the median of
several runs, of which each has a browser without history; the first run is not counted, as the broker reads the files
of the page from disk then.
"""

import asyncio
import http.client
import multiprocessing
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from typing import Any

import uvloop

from bench import brokers
from bench.latency import measure
from bench.management import Managed
from bench.results import Report
from bench.scale import connect, declare_durable

RUNS = 5
QUEUES = 10_000
CONNECTIONS = 1000
LIVE_RATE = 500
"""Messages a second while the heap grows."""
FIRST_PAINT_MS = 300.0
FIRST_ROWS_MS = 500.0
KEY_MS = 100.0
HEAP_MB = 80.0
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
WAIT_MS = 60_000
MARKS = """
new MutationObserver(() => {
    for (const [name, selector] of [['heading', 'main h1'], ['row', 'tr[data-key]']])
        if (!performance.getEntriesByName(name).length && document.querySelector(selector)) performance.mark(name);
}).observe(document, {childList: true, subtree: true});
"""
"""Runs before the page: notes when its heading and its first row are there."""
TYPED = """(text) => new Promise((resolve) => {
    const filter = document.querySelector('[data-filter]'), began = performance.now();
    filter.value = text;
    filter.dispatchEvent(new Event('input'));
    requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - began)));
})"""


_TIME = "performance.getEntriesByName('%s')[0]?.startTime"


def browser(at: Managed, report: Report, minutes: float) -> None:
    """Measure the page; prints a line instead if there is no browser."""
    try:
        from playwright.sync_api import sync_playwright  # noqa: PLC0415 - not for the other parts
    except ImportError:
        print("  not measured: the package playwright is not installed")
        return
    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        print("  not measured: there is no Chromium")
        return
    with sync_playwright() as started:
        launched = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        window = Window(launched, at.port)
        paints = window.medians("overview", ("first-contentful-paint", "heading"))
        report.line("first paint, median", paints[0], "ms", most=FIRST_PAINT_MS)
        report.line("overview is there, median", paints[1], "ms")
        with ThreadPoolExecutor(1) as apart:  # the thread of the browser has a loop already
            apart.submit(uvloop.run, declare_durable(at.broker.port, QUEUES)).result()
        with connected(at.broker.port, CONNECTIONS):
            (rows,) = window.medians("queues", ("row",))
            report.line(f"first rows of {QUEUES:,} queues, page opened", rows, "ms", most=FIRST_ROWS_MS)
            for route, number in (("queues", QUEUES), ("connections", CONNECTIONS)):
                rows = window.change(route)
                report.line(f"first rows of {number:,} {route}, by a link", rows, "ms", most=FIRST_ROWS_MS)
            report.line("key typed in the filter, longest of three", window.key(), "ms", most=KEY_MS)
            heap = window.heap(at.broker.port, 60.0 * minutes)
            report.line(f"heap after {minutes:g} minutes live", heap, "MB", most=HEAP_MB)
        launched.close()


class Window:
    """A browser for the page.

    Args:
        browser: the browser.
        port: port of the management listener.

    """

    def __init__(self, browser: Any, port: int) -> None:
        self._browser = browser
        self._port = port
        self._base = f"http://127.0.0.1:{port}"

    @contextmanager
    def opened(self, route: str) -> Iterator[Any]:
        """Open a page in a browser without history during a `with` block."""
        context = self._browser.new_context(viewport={"width": 1440, "height": 900})
        context.set_default_timeout(WAIT_MS)
        context.add_init_script(MARKS)
        context.add_cookies([{"name": "leveret_session", "value": self._session(), "url": self._base}])
        try:
            tab = context.new_page()
            tab.goto(f"{self._base}/#/{route}")
            tab.wait_for_selector("main:not([aria-busy]) h1")
            yield tab
        finally:
            context.close()

    def _session(self) -> str:
        client = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30.0)
        try:
            client.request("POST", "/api/login", "username=guest&password=guest")
            answer = client.getresponse()
            answer.read()
            return (answer.getheader("set-cookie") or "").partition(";")[0].partition("=")[2]
        finally:
            client.close()

    def medians(self, route: str, marks: tuple[str, ...]) -> list[float]:
        """Return the milliseconds from the begin of the navigation to these marks."""
        found: list[list[float]] = []
        for _ in range(RUNS + 1):
            with self.opened(route) as tab:
                if "row" in marks:
                    tab.wait_for_selector("tr[data-key]")
                found.append([_until(tab, _TIME % mark) for mark in marks])
        return [statistics.median(times) for times in zip(*found[1:], strict=True)]

    def change(self, route: str) -> float:
        """Return the milliseconds from a click on another page to the first row."""
        times = []
        for _ in range(RUNS):
            with self.opened("about") as tab:
                tab.wait_for_timeout(1000)
                tab.evaluate(f"performance.mark('click'); location.hash = '#/{route}'")
                tab.wait_for_selector("tr[data-key]")
                times.append(_until(tab, f"{_TIME % 'row'} - {_TIME % 'click'}"))
        return statistics.median(times)

    def key(self) -> float:
        """Return the milliseconds until the list shows what a key in the filter leaves, the longest of three."""
        with self.opened("queues") as tab:
            tab.wait_for_selector("tr[data-key]")
            return max(tab.evaluate(TYPED, text) for text in ("1", "19", "199"))

    def heap(self, port: int, seconds: float) -> float:
        """Return the megabytes of the heap after some time beside traffic."""
        with self.opened("queues") as tab:
            tab.wait_for_selector("tr[data-key]")
            with beside(traffic, port):
                tab.wait_for_timeout(1000.0 * seconds)
            client = tab.context.new_cdp_session(tab)
            client.send("HeapProfiler.collectGarbage")
            return float(client.send("Runtime.getHeapUsage")["usedSize"]) / 1e6


def _until(tab: Any, expression: str) -> float:
    """Return the value of an expression as soon as it has one."""
    until = time.monotonic() + WAIT_MS / 1000
    while (value := tab.evaluate(expression)) is None:
        if time.monotonic() > until:
            message = f"the page has no {expression}"
            raise brokers.BrokerError(message)
        tab.wait_for_timeout(20)
    return float(value)


# -- beside the browser -----------------------------------------------------------------------------------------------


@contextmanager
def beside(work: Callable[..., None], *given: int) -> Iterator[None]:
    """Run a function in a process of its own during a `with` block, once it says that it is ready."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=work, args=(*given, ready), daemon=True)
    process.start()
    try:
        if not ready.wait(60.0):
            message = "the clients did not connect"
            raise brokers.BrokerError(message)
        yield
    finally:
        process.terminate()
        process.join()


@contextmanager
def connected(port: int, count: int) -> Iterator[None]:
    """Hold connections during a `with` block."""
    with beside(hold, port, count):
        yield


def hold(port: int, count: int, ready: Event) -> None:
    """Hold connections until the process is ended."""

    async def held() -> None:
        idlers, _ = await connect(port, count, 1)
        ready.set()
        while idlers:
            await asyncio.sleep(3600.0)

    uvloop.run(held())


def traffic(port: int, ready: Event) -> None:
    """Publish and consume until the process is ended."""
    ready.set()
    while True:
        uvloop.run(measure(port, rate=LIVE_RATE, seconds=10.0))
