"""Preparation of a workload before PerfTest, PerfTest's flags for it, and the cleanup afterwards.

The queues of the paper's workload and those that are drained are declared here, durable, and PerfTest is told that they
exist. Up to `QUEUES_PER_EXCHANGE` queues share one durable direct exchange and one PerfTest; more are divided.
"""

import asyncio
from collections.abc import Sequence

import uvloop
from pamqp import commands

from bench.client import Client, ClosedError, publish_frames
from bench.endpoint import Endpoint
from bench.workloads import Workload

QUEUES_PER_EXCHANGE = 15
WINDOW = 4000
"""Maximum number of unconfirmed messages while a queue is filled."""


def prepare(port: int | Endpoint, workload: Workload, tag: str) -> list[list[str]]:
    """Declare and fill the queues of a workload.

    Args:
        port: the broker's port, or its endpoint.
        workload: the workload.
        tag: a unique name for this run's queues.

    Returns:
        the flags of every PerfTest to be started.
    """
    flags = workload.flags.split()
    if workload.drained:
        uvloop.run(fill(port, tag, workload.drained, 1500))
        return [[*flags, "-p", "-u", tag, "-D", str(workload.drained)]]
    if workload.bindings:
        uvloop.run(bind(port, tag, workload.bindings))
        return [[*flags, "-p", "-e", f"{tag}-x0", "-t", "topic", "-k", "bench.0.key", "-u", tag]]
    if workload.queues:
        uvloop.run(declare(port, tag, workload.queues))
        return [
            [
                *flags,
                *("-p", "-e", f"{tag}-x{at}", "--queue-pattern", f"{tag}-%d"),
                *("--queue-pattern-from", str(first), "--queue-pattern-to", str(last)),
                *(f"-x{2 * (last - first + 1)}", f"-y{3 * (last - first + 1)}"),
            ]
            for at, (first, last) in enumerate(groups(workload.queues))
        ]
    return [[*flags, "-u", tag] if workload.named_queue else flags]


def groups(queues: int) -> list[tuple[int, int]]:
    """Return the first and last queue of every exchange, counted from 1."""
    exchanges = -(-queues // QUEUES_PER_EXCHANGE)
    share = -(-queues // exchanges)
    return [(first, min(first + share - 1, queues)) for first in range(1, queues + 1, share)]


async def declare(port: int | Endpoint, tag: str, queues: int) -> None:
    """Declare the durable exchanges and queues of the paper's workload and bind each queue by its name."""
    client = await Client.connect(port)
    for at, (first, last) in enumerate(groups(queues)):
        exchange = f"{tag}-x{at}"
        await client.call(commands.Exchange.Declare(exchange=exchange, exchange_type="direct", durable=True))
        for number in range(first, last + 1):
            queue = f"{tag}-{number}"
            await client.declare(queue, durable=True)
            await client.call(commands.Queue.Bind(queue=queue, exchange=exchange, routing_key=queue))
    client.close()


async def bind(port: int | Endpoint, tag: str, count: int) -> None:
    """Declare a topic exchange and a queue with so many bindings, the first of which matches `bench.0.key`."""
    client = await Client.connect(port)
    await client.call(commands.Exchange.Declare(exchange=f"{tag}-x0", exchange_type="topic", durable=True))
    await client.declare(tag, durable=True)
    for number in range(count):
        key = f"bench.{number}.*"
        await client.call(commands.Queue.Bind(queue=tag, exchange=f"{tag}-x0", routing_key=key))
    client.close()


async def fill(port: int | Endpoint, queue: str, count: int, size: int) -> None:
    """Declare a durable queue and store `count` persistent messages in it, all confirmed.

    Raises:
        ClosedError: the broker closed the connection, or did not confirm for a minute.
    """
    client = await Client.connect(port)
    await client.declare(queue, durable=True)
    await client.call(commands.Confirm.Select())
    chunk = 100
    octets = publish_frames(queue, b"x" * size, persistent=True) * chunk
    while client.published < count:
        many = min(chunk, count - client.published)
        await client.publish(octets if many == chunk else octets[: len(octets) // chunk * many], many)
        await confirmed(client, client.published - WINDOW)
    await confirmed(client, count)
    client.close()


async def confirmed(client: Client, count: int, patience: float = 60.0) -> None:
    """Wait until `count` messages were confirmed or nacked.

    Raises:
        ClosedError: no confirm came for `patience` seconds, or messages were nacked.
    """
    loop = asyncio.get_running_loop()
    seen, since = client.confirmed, loop.time()
    while client.confirmed < count:
        await asyncio.sleep(0.001)
        if client.confirmed != seen:
            seen, since = client.confirmed, loop.time()
        elif loop.time() - since > patience or client.nacked:
            message = f"{client.confirmed} of {count} messages confirmed, {client.nacked} refused"
            raise ClosedError(message)


async def clean(port: int | Endpoint, workload: Workload, tag: str) -> int | None:
    """Delete the objects of `prepare` and PerfTest; return the ready messages found, None if they had gone."""
    if not workload.named_queue and not workload.queues:
        return None
    queues = [f"{tag}-{number}" for number in range(1, workload.queues + 1)] or [tag]
    left = await leftover(port, queues)
    if workload.queues or workload.bindings:
        client = await Client.connect(port)
        for at in range(len(groups(workload.queues or 1))):
            await client.call(commands.Exchange.Delete(exchange=f"{tag}-x{at}"))
        client.close()
    return left


async def leftover(port: int | Endpoint, queues: Sequence[str]) -> int | None:
    """Delete queues; return the ready messages in them, None if one had deleted itself."""
    total = 0
    for queue in queues:
        client = await Client.connect(port)
        try:
            await client.ready_messages(queue)
            total += await client.delete(queue)
        except ClosedError:
            return None
        finally:
            client.close()
    return total
