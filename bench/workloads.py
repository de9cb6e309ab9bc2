"""The eight PerfTest workloads that decide whether Leveret is fast, and the bars it has to clear."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Workload:
    """One set of PerfTest flags and what is asked of it.

    `copies` is how many queues each message goes to; `bar` and `aim` are multiples of RabbitMQ's rate in the
    same run. `fair` says that sent and received must end within `FAIR` of each other.
    """

    name: str
    flags: str
    bar: float
    aim: float
    copies: int = 1
    named_queue: bool = True
    kept: bool = False
    fair: bool = False


FAIR = 1.10
RELAY_BAR = 0.7
PERSISTENT = "-q200 -c200 -s1500 -f persistent -ad false"

WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("autoack-12", "-x1 -y1 -a -s12", 1.6, 2.3),
        Workload("fan-1x5", "-x1 -y5 -a -s12 -t fanout", 1.6, 3.0, copies=5, named_queue=False),
        Workload("ack-12-capped", "-x1 -y1 -q200 -s12 -r100000", 1.6, 2.3),
        Workload("ack-12-uncapped", "-x1 -y1 -q200 -s12", 1.3, 2.0, fair=True),
        Workload("ack-batch", "-x1 -y1 -q1000 -A100 -s12", 1.3, 2.3, fair=True),
        Workload("confirm-ack-12", "-x1 -y1 -q200 -c200 -s12", 2.0, 2.5),
        Workload("persist-1500", f"-x1 -y1 {PERSISTENT}", 3.0, 4.5, kept=True),
        Workload("paper-1q", f"-x2 -X2 -y3 -Y3 {PERSISTENT}", 2.5, 4.5, kept=True),
    )
}
