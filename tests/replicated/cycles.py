"""Cycles of real failures of replicated brokers (`make campaign NAME=replication-cycles`); see docs/adr/0044.

Each cycle does one thing to three brokers, or to the PostgreSQL below them, while a client publishes; then everything is
consumed and compared with what was confirmed. Exit code 1: something was lost, repeated or out of order.
"""

import argparse
import contextlib
import logging
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from replicated.cluster import Database, Nodes, Publisher, cluster  # noqa: E402

CYCLES = 10
"""Cycles with one database, which has lost its primary at most once."""
PAUSES = (0.5, 8.0)
"""Shortest and longest time for which a leader is stopped, in seconds."""


def kill(nodes: Nodes, _database: Database, random: Random) -> None:
    """Kill the leader, perhaps with its disk."""
    leader = nodes.leader()
    nodes.kill(leader, wiped=random.random() < 0.5)
    nodes.connect()[1].close()
    nodes.start(leader)


def pause(nodes: Nodes, _database: Database, random: Random) -> None:
    """Stop the leader for a while, perhaps beyond its lease."""
    leader = nodes.leader()
    nodes.signal(leader, signal.SIGSTOP)
    time.sleep(random.uniform(*PAUSES))
    nodes.signal(leader, signal.SIGCONT)


def hand_over(nodes: Nodes, _database: Database, _random: Random) -> None:
    """End the leader by SIGTERM."""
    leader = nodes.leader()
    if (code := nodes.end(leader)) not in {0, -signal.SIGTERM}:
        raise AssertionError(f"{leader} ended with {code}")
    nodes.start(leader)


def wipe_all(nodes: Nodes, _database: Database, _random: Random) -> None:
    """Kill all nodes, with their disks."""
    nodes.kill_all(wiped=True)
    for name in nodes.ports:
        nodes.start(name)


def promote(_nodes: Nodes, database: Database, _random: Random) -> None:
    """Kill the primary of the database, and promote a standby."""
    database.lose_primary()


def main() -> int:
    """Run the cycles."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)  # pika's, of each address that cannot be reached
    random = Random(arguments.seed)
    done: Counter[str] = Counter()
    wrong: list[str] = []
    left = arguments.cycles
    while left > 0:
        is_promoted = False
        with cluster() as (database, nodes):
            publisher = Publisher(nodes)
            with contextlib.ExitStack() as ending:
                ending.callback(publisher.end)
                publisher.goes_on()
                for _ in range(min(CYCLES, left)):
                    left -= 1
                    choices = [kill, kill, pause, pause, hand_over, wipe_all]
                    nemesis = random.choice(choices if is_promoted else [*choices, promote])
                    is_promoted |= nemesis is promote
                    began = time.monotonic()
                    publisher.longest_gap = 0.0
                    nemesis(nodes, database, random)
                    publisher.goes_on()
                    done[nemesis.__name__] += 1
                    told = f"{nemesis.__name__}: {time.monotonic() - began:.1f} s, gap {publisher.longest_gap:.1f} s"
                    print(f"{sum(done.values())} {told}, {len(publisher.confirmed)} confirmed", flush=True)
            wrong += publisher.judge()
    print(f"{dict(done)}: {wrong or 'nothing lost, nothing repeated, all in order'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
