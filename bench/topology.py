"""Memory of exchanges, queues and bindings: bytes allocated per item (tracemalloc), and private memory of a broker.

The first lines create 100,000 of each in this process; names and keys are included, as new strings like those
from the wire. A queue takes one entry in a dict of the default exchange, which is in the queue's figure. These
queues have no storage. The last line starts a broker with a data directory and declares durable queues, each bound
to a durable exchange of its own: the growth of its anonymous memory per pair, compared with the 1,872 bytes that a book
counts in RabbitMQ's database for one.
Run: make bench NAME=topology [ARGS="--count N --pairs N"]
"""

import argparse
import asyncio
import gc
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pamqp import commands

from bench import brokers
from bench.client import Client
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.scheduling.turn import Turn
from leveret.broker.vhost.vhost import VHost
from leveret.exchanges.base import Table
from leveret.exchanges.router import Router

RABBITMQ_DURABLE_PAIR = 1872


def measure(name: str, count: int, build: Callable[[int], object]) -> float:
    """Run build(0) ... build(count - 1), print and return the bytes that each left allocated."""
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    start = time.process_time()
    for number in range(count):
        build(number)
    seconds = time.process_time() - start
    gc.collect()
    each = (tracemalloc.get_traced_memory()[0] - before) / count
    print(f"{name:58} {each:8.0f} bytes   {1e6 * seconds / count:6.1f} us (traced)")
    return each


def bound(
    type_name: str, count: int, key: Callable[[int], str], arguments: Callable[[int], Table | None]
) -> float:
    """Measure bindings of `count` queues, one each, to one exchange."""
    router = Router()
    router.declare("x", type_name, durable=True)
    for number in range(count):
        router.add_queue(f"queue {number}", number + 1_000_000)
    queues = list(router.queues.values())
    name = f"{type_name} binding, key {key(7)!r}" + (
        f", {len(arguments(7) or {})} argument" if arguments(7) else ""
    )
    return measure(
        name, count, lambda number: router.bind("x", queues[number], key(number), arguments(number))
    )


async def declare_pairs(port: int, first: int, count: int) -> None:
    """Declare durable queues, each bound to a durable exchange of its own, and wait until they are stored."""
    client = await Client.connect(port)
    for number in range(first, first + count):
        exchange, queue = f"exchange {number}", f"queue {number}"
        client.send(commands.Exchange.Declare(exchange=exchange, durable=True, nowait=True))
        client.send(commands.Queue.Declare(queue=queue, durable=True, nowait=True))
        client.send(
            commands.Queue.Bind(queue=queue, exchange=exchange, routing_key=f"key {number}", nowait=True)
        )
    await client.call(commands.Queue.Declare(queue=f"queue {first}", passive=True))
    client.close()


def live(count: int) -> float:
    """Return the growth in bytes of a broker's anonymous memory per durable pair."""
    with brokers.alone() as broker:
        asyncio.run(declare_pairs(broker.port, 0, 100))  # one-time allocations
        before = broker.anonymous_rss()
        asyncio.run(declare_pairs(broker.port, 100, count))
        return (broker.anonymous_rss() - before) / count


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--pairs", type=int, default=10_000, help="durable pairs in a broker")
    asked = parser.parse_args()
    count: int = asked.count
    pair = live(asked.pairs)
    tracemalloc.start()

    for type_name in ("direct", "fanout", "topic", "headers"):
        router = Router()
        measure(
            f"{type_name} exchange, unbound",
            count,
            lambda number, kind=type_name, to=router: to.declare(f"exchange {number}", kind, durable=True),
        )
    vhost = VHost("/", Turn(), NodeContext())
    measure(
        "queue, durable, empty, with its default binding",
        count,
        lambda number: vhost.create_queue(
            f"queue {number}", durable=True, exclusive_owner=None, auto_delete=False, arguments={}
        ),
    )

    bound("direct", count, lambda number: f"key {number}", lambda _: None)
    bound("direct", count, lambda _: "key", lambda _: None)
    bound("direct", count, lambda number: f"key {number}", lambda number: {"n": ("long", number)})
    bound("fanout", count, lambda _: "", lambda _: None)
    bound("topic", count, lambda number: f"key.{number}", lambda _: None)
    bound("topic", count, lambda number: f"site.{number}.*.temperature", lambda _: None)
    bound("topic", count, lambda _: "site.#", lambda _: None)
    bound("headers", count, lambda _: "", lambda number: {"n": ("long", number)})

    router = Router()
    router.declare("x", "direct", durable=True)
    measure(
        "direct binding, all to the same queue", count, lambda number: router.bind("x", "q", f"key {number}")
    )

    print(
        f"durable queue bound to a durable exchange of its own, in a broker: {pair:.0f} bytes of RssAnon,"
        f" RabbitMQ's {RABBITMQ_DURABLE_PAIR}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
