"""The PerfTest workloads for comparing Leveret with RabbitMQ, and the bars to clear."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Workload:
    """One set of PerfTest flags and its bars.

    `copies` is the number of queues each message goes to; `bar` and `aim` are multiples of RabbitMQ's rate in the same
    run. With `fair` sent and received must end within `FAIR` of each other. With `kept` the queues are durable and the
    messages persistent, so that writes to the disk are counted and reported. `queues` durable queues are declared
    beforehand (see `bench.loads`); for `drained` workloads so many messages are stored beforehand, and PerfTest only
    consumes them. The relay is left out where it would have to store.
    """

    name: str
    flags: str
    bar: float
    aim: float
    copies: int = 1
    named_queue: bool = True
    kept: bool = False
    fair: bool = False
    queues: int = 0
    drained: int = 0
    relayed: bool = True
    title: str = ""
    """A description for readers who do not know its name."""
    seconds: int = 0
    """Minimum length of a run in seconds, if not 0: many connections take time to start."""
    bindings: int = 0
    """Number of bindings of its queue to a topic exchange of its own, which are declared beforehand."""

    @property
    def sends(self) -> bool:
        """True if messages are published during the run."""
        return not self.drained

    @property
    def receives(self) -> bool:
        """True if messages are consumed during the run."""
        return "-y0" not in self.flags


FAIR = 1.10
RELAY_BAR = 0.7
PERSISTENT = "-q200 -c200 -s1500 -f persistent -ad false"
PAPER = "-X2 -Y3 -q200 -c200 -s1500 -f persistent"
"""Per queue 2 producers of 2 channels and 3 consumers of 3 channels; -x and -y are added per process."""
STORED = 300_000

WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("autoack-12", "-x1 -y1 -a -s12", 1.6, 2.3, title="12 bytes, automatic acks"),
        Workload(
            "fan-1x5",
            "-x1 -y5 -a -s12 -t fanout",
            1.6,
            3.0,
            copies=5,
            named_queue=False,
            title="12 bytes, to 5 queues each",
        ),
        Workload("ack-12-capped", "-x1 -y1 -q200 -s12 -r100000", 1.6, 2.3),
        Workload("ack-12-uncapped", "-x1 -y1 -q200 -s12", 1.3, 2.0, fair=True, title="12 bytes, acks"),
        Workload(
            "ack-batch", "-x1 -y1 -q1000 -A100 -s12", 1.3, 2.3, fair=True, title="12 bytes, an ack for 100"
        ),
        Workload("confirm-ack-12", "-x1 -y1 -q200 -c200 -s12", 2.0, 2.5, title="12 bytes, confirms and acks"),
        Workload(
            "persist-1500",
            f"-x1 -y1 {PERSISTENT}",
            3.0,
            4.5,
            kept=True,
            title="1,500 bytes, persistent, confirms and acks",
        ),
        Workload(
            "paper-1q",
            f"-x2 -X2 -y3 -Y3 {PERSISTENT}",
            2.5,
            4.5,
            kept=True,
            title="the same, 4 channels publish, 9 consume",
        ),
        Workload(
            "store-1500",
            "-x1 -y0 -c200 -s1500 -f persistent -ad false",
            2.0,
            2.0,
            kept=True,
            relayed=False,
        ),
        Workload("drain-1500", "-x0 -y1 -q200", 2.0, 2.0, kept=True, relayed=False, drained=STORED),
        Workload("paper-2q", PAPER, 2.5, 4.5, kept=True, relayed=False, queues=2),
        Workload(
            "paper-15q",
            PAPER,
            2.5,
            4.5,
            kept=True,
            relayed=False,
            queues=15,
            seconds=10,
            title="the same on each of 15 queues",
        ),
        Workload("paper-30q", PAPER, 2.5, 4.5, kept=True, relayed=False, queues=30, seconds=12),
    )
}

SPREAD = "--queue-pattern bench-%d --queue-pattern-from 1 --queue-pattern-to"
FIELD = WORKLOADS | {
    workload.name: workload
    for workload in (
        Workload(
            "window-5",
            f"-x50 -y50 {SPREAD} 50 -q200 -c5 -s500 -f persistent",
            1.0,
            1.0,
            named_queue=False,
            seconds=12,
            title="500 bytes, persistent, 50 queues, 5 unconfirmed",
        ),
        Workload(
            "awaited",
            "-x1 -y0 -c1 -s1500 -f persistent -ad false",
            1.0,
            1.0,
            kept=True,
            title="1,500 bytes, persistent, each confirm awaited",
        ),
        Workload(
            "store-1000",
            "-x1 -y0 -c1000 -s1000 -f persistent -ad false",
            1.0,
            1.0,
            kept=True,
            title="1,000 bytes, persistent, nobody consumes",
        ),
        Workload("ten-10", "-x10 -y10 -q200 -s12", 1.0, 1.0, title="12 bytes, 10 + 10 connections, acks"),
        Workload(
            "many-200",
            f"-x100 -y100 {SPREAD} 100 -q200 -s1000 -r100",
            1.0,
            1.0,
            named_queue=False,
            seconds=15,
            title="1,000 bytes, 200 connections, 100/s each",
        ),
        Workload(
            "big-100k", "-x1 -y1 -q50 -c50 -s100000 -f persistent", 1.0, 1.0, title="100 kB, persistent"
        ),
        Workload("big-1m", "-x1 -y1 -q10 -c10 -s1000000 -f persistent", 1.0, 1.0, title="1 MB, persistent"),
        Workload(
            "topic-200",
            "-x1 -y1 -q200 -c200 -s200",
            1.0,
            1.0,
            bindings=1,
            title="200 bytes, a topic exchange",
        ),
        Workload(
            "topic-1000",
            "-x1 -y1 -q200 -c200 -s200",
            1.0,
            1.0,
            bindings=1000,
            title="the same with 1,000 bindings",
        ),
    )
}
"""Those that are measured beside other brokers (`bench.field`)."""
