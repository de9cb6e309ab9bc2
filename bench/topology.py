"""Memory of exchanges, queues and bindings: 100,000 of each, in bytes allocated per item (tracemalloc).

The names and keys count too, as new strings like those that come from the wire. A queue costs the default exchange
one entry in a dict, which is in the queue's figure. The book of seed 004 counts 1,872 bytes in RabbitMQ's database
for one durable queue bound to one durable exchange; the last line is the same thing here.
Run: python bench/topology.py [--count N]
"""

import argparse
import gc
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from broker.turn import Turn
from broker.vhost import VHost
from exchanges.base import Table
from exchanges.router import Router

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


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100_000)
    count: int = parser.parse_args().count
    tracemalloc.start()

    for type_name in ("direct", "fanout", "topic", "headers"):
        router = Router()
        measure(
            f"{type_name} exchange, unbound",
            count,
            lambda number, kind=type_name, to=router: to.declare(f"exchange {number}", kind, durable=True),
        )
    vhost = VHost("/", Turn())
    queue = measure(
        "queue, durable, empty, with its default binding",
        count,
        lambda number: vhost.create_queue(
            f"queue {number}", durable=True, exclusive_owner=None, auto_delete=False, arguments={}
        ),
    )

    direct = bound("direct", count, lambda number: f"key {number}", lambda _: None)
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

    ours = queue + direct
    print(f"durable queue bound to a durable exchange: {ours:.0f} bytes, RabbitMQ's {RABBITMQ_DURABLE_PAIR}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
