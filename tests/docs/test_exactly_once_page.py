"""The page about exactly once: its programs are killed in the middle, and each order has one invoice."""

import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from checks.how_to import BLOCK
from processes.commands import execute
from processes.running import ROOT, Running, channel_to, environment, serving, write_command

PAGE = ROOT / "docs" / "howto" / "exactly-once.md"
ORDERS = 300
KILLED = -9
ACKS = {"channel.basic_ack(": 120, "await order.ack(": 60}
"""Call that acks in each worker, and the number of acks before the worker is killed."""
SECONDS = 60


class Shop:
    """The page's programs and commands, beside a broker that may be killed.

    Args:
        folder: of the broker.
        stack: ends what was started.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack
        write_command(folder / "bin")
        self.broker = self.started()

    def started(self) -> Running:
        """A broker with the data of the one before."""
        return self.stack.enter_context(serving(self.folder))

    def begun(self, program: str) -> "subprocess.Popen[bytes]":
        """A program of the page, which runs from now on."""
        text = program.replace("5672", str(self.broker.address[1]))
        process = subprocess.Popen([sys.executable, "-c", text], env=environment(), stderr=subprocess.DEVNULL)
        self.stack.callback(killed, process)
        return process

    def printed(self, text: str) -> list[list[str]]:
        """Words of what commands of the page print."""
        environ = {**environment(), "LEVERET_DATA_DIR": str(self.broker.data_dir)}
        environ["PATH"] = f"{self.folder / 'bin'}:{environ['PATH']}"
        done = execute(["sh", "-ec", text], env=environ, timeout=SECONDS)
        assert 0 == done.returncode, done.stderr
        return words(done.stdout)

    def ready(self) -> tuple[int, int]:
        """Numbers of ready orders and invoices."""
        with channel_to(self.broker.address) as channel:
            found = [channel.queue_declare(name, durable=True) for name in ("orders", "invoices")]
        orders, invoices = (each.method.message_count for each in found)
        return orders, invoices

    def wait(self, holds: Callable[[int, int], bool]) -> None:
        """Wait until something holds of the numbers of orders and invoices."""
        end = time.monotonic() + SECONDS
        while not holds(*(found := self.ready())):
            assert time.monotonic() < end, found
            time.sleep(0.02)

    def repeated_invoices(self) -> int:
        """Return the number of invoices that were dropped as repeats since the start of the broker."""
        rows = self.printed("leveret dedup list")
        return next(int(row[-1]) for row in rows if row[0] == "invoices")


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def killed(process: "subprocess.Popen[bytes]") -> None:
    """End a program by SIGKILL."""
    process.kill()
    process.wait(SECONDS)


def dying(program: str, before: str, count: int) -> str:
    """Have a program kill itself before the line that begins so, once that line was run so many times."""
    line = "next(left, None) is None and os.kill(os.getpid(), 9)"
    text, changed = re.subn(rf"^( +)(?={re.escape(before)})", rf"\1{line}\n\1", program, flags=re.MULTILINE)
    assert 1 == changed
    return f"import os\nleft = iter(range({count}))\n{text}"


@pytest.mark.timeout(240)
def test_each_order_has_one_invoice(tmp_path):
    """Publisher, both workers and the broker are killed: each order has one invoice, and no worker committed one twice."""
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    orders, *workers = [text for language, text in blocks if language == "python"]
    policy, listing = [text for language, text in blocks if language == "sh"]
    with ExitStack() as stack:
        shop = Shop(tmp_path, stack)
        shop.printed(policy)
        assert KILLED == shop.begun(dying(orders, "channel.basic_publish(", 200)).wait(SECONDS)
        for worker, (ack, count) in zip(workers, ACKS.items(), strict=True):
            assert KILLED == shop.begun(dying(worker, ack, count)).wait(SECONDS)
        before = shop.ready()[1]
        running = shop.begun(orders), shop.begun(workers[0])
        shop.wait(lambda _, invoices: invoices > before)
        repeated = shop.repeated_invoices()
        shop.broker.process.kill()
        shop.broker.process.wait(SECONDS)
        assert [each.wait(SECONDS) for each in running][1]
        shop.broker = shop.started()
        assert 0 == shop.begun(orders).wait(SECONDS)
        shop.begun(workers[1])
        shop.wait(lambda left, invoices: not left and invoices >= ORDERS)
        repeated += shop.repeated_invoices()
        shown = shop.printed(listing)
        with channel_to(shop.broker.address) as channel:
            found = [channel.basic_get("invoices", auto_ack=True)[1] for _ in range(ORDERS)]
            assert channel.basic_get("invoices")[0] is None

    (page,) = [text for language, text in blocks if language == "text"]
    assert {str(number): 1 for number in range(1, ORDERS + 1)} == Counter(each.message_id for each in found)
    assert 0 == repeated
    assert sorted(words(page)) == sorted(shown)
