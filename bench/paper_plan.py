"""The lines that a sweep compares, and its random order of runs, which can be resumed.

Pure: no clock, file or process is used here.
"""

import random
from collections.abc import Collection, Iterable, Sequence

import msgspec

QUEUES = (1, 2, 3, 5, 8, 10, 15, 20, 25, 30)
SHORT_QUEUES = (1, 2, 15, 30)
WINDOWS = (50, 200, 1000)
"""The publisher windows of a full report; the paper does not state its own."""
PREFETCH = 200
SIZE = 1500
PRODUCERS, PRODUCER_CHANNELS = 2, 2
CONSUMERS, CONSUMER_CHANNELS = 3, 3


class Line(msgspec.Struct, frozen=True):
    """One of the compared brokers or configurations of Leveret.

    `sync` is the event that a confirm waits for; with `broker` and `mode` it identifies the line in the records.
    """

    name: str
    broker: str
    mode: str
    sync: str
    settings: tuple[str, ...]
    description: str


LINES = {
    line.name: line
    for line in (
        Line(
            "default",
            "leveret",
            "standard",
            "commit",
            (),
            "Leveret as it comes: it commits as soon as the commit before is done (2 ms apart at least) and "
            "confirms early what a consumer acknowledged",
        ),
        Line(
            "paper-standard",
            "leveret",
            "standard",
            "200ms",
            ("storage.commit_interval=200ms", "storage.early_confirm=false"),
            "Leveret doing what the paper's RabbitMQ 3.6 did: a commit every 200 ms, at once when idle, and "
            "no early confirms",
        ),
        Line(
            "consumer-ack",
            "leveret",
            "consumer-ack",
            "none",
            ("confirm.mode=consumer-ack",),
            "the paper's first optimisation",
        ),
        Line(
            "consumer-ack-light",
            "leveret",
            "consumer-ack-light",
            "none",
            ("confirm.mode=consumer-ack-light",),
            "the paper's second optimisation",
        ),
        Line("rabbitmq", "rabbitmq", "standard", "200ms", (), "the machine's RabbitMQ with default settings"),
    )
}


class Trial(msgspec.Struct, frozen=True):
    """One run of a line with a number of queues and a publisher window. `number` counts from 1 through the plan."""

    number: int
    block: int
    order: int
    line: str
    queues: int
    window: int


class Plan(msgspec.Struct, frozen=True):
    """All runs of a sweep, in order, and its fixed settings."""

    sweep: str
    seed: int
    seconds: int
    cut_start: float
    cut_end: float
    perf_test: str
    git: str
    blocks: int
    trials: tuple[Trial, ...]

    def run_id(self, trial: Trial) -> str:
        """Return the name of a run, unique among all sweeps."""
        return f"{self.sweep}-{trial.number:05d}"

    def cells(self) -> list[tuple[int, int]]:
        """Return the measured (window, queues), in order."""
        return sorted({(trial.window, trial.queues) for trial in self.trials})

    def lines(self) -> list[str]:
        """Return the names of the compared lines, in the order of `LINES`."""
        there = {trial.line for trial in self.trials}
        return [name for name in LINES if name in there]


def shuffled(
    seed: int, lines: Sequence[str], queues: Iterable[int], windows: Iterable[int], blocks: int
) -> tuple[Trial, ...]:
    """Return all trials: blocks in sequence, in each the cells in random order, in each cell its lines.

    The lines of one cell are run in sequence, so that a slow hour of the machine affects all values of a ratio; their
    order is random in each cell.

    Args:
        seed: the same seed gives the same order.
        lines: names of `LINES`.
        queues: queue counts.
        windows: publisher windows, messages a channel may have unconfirmed.
        blocks: number of repetitions.
    """
    chance = random.Random(seed)
    cells = [(count, window) for window in windows for count in queues]
    trials = []
    for block in range(1, blocks + 1):
        order = 0
        for count, window in chance.sample(cells, len(cells)):
            for line in chance.sample(list(lines), len(lines)):
                order += 1
                trials.append(Trial(len(trials) + 1, block, order, line, count, window))
    return tuple(trials)


def remaining(plan: Plan, done: Collection[str]) -> list[Trial]:
    """Return the trials whose runs are not recorded, in the order of the plan."""
    return [trial for trial in plan.trials if plan.run_id(trial) not in done]
