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
    tables: bool = False
    """True if each message has RabbitMQ's tables (`bench.paper_baseline`)."""
    plugins: tuple[str, ...] = ()
    """RabbitMQ's."""


TIMER = "storage.commit_interval=200ms"
LATE = "storage.early_confirm=false"
FACTORS = ("timer", "late", "tables")
"""Three things that the paper's RabbitMQ did and Leveret does not; each is on or off in the lines of `DESIGN`."""

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
            (TIMER, LATE),
            "Leveret doing what the paper's RabbitMQ 3.6 did: a commit every 200 ms, at once when idle, and "
            "no early confirms",
        ),
        Line(
            "paper-baseline",
            "leveret",
            "standard",
            "200ms+tables",
            (TIMER, LATE),
            "the same with RabbitMQ's tables of each message (bench.paper_baseline): the paper's baseline",
            tables=True,
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
        Line(
            "rabbitmq-plugins",
            "rabbitmq",
            "standard",
            "200ms+plugins",
            (),
            "the same with the plugins management and top, as in the paper",
            plugins=("rabbitmq_management", "rabbitmq_top"),
        ),
        Line("timer", "leveret", "standard", "200ms-early", (TIMER,), "default with a commit every 200 ms"),
        Line("late", "leveret", "standard", "commit-late", (LATE,), "default without early confirms"),
        Line(
            "tables",
            "leveret",
            "standard",
            "commit+tables",
            (),
            "default with RabbitMQ's tables",
            tables=True,
        ),
        Line(
            "timer-tables",
            "leveret",
            "standard",
            "200ms-early+tables",
            (TIMER,),
            "timer and tables",
            tables=True,
        ),
        Line(
            "late-tables",
            "leveret",
            "standard",
            "commit-late+tables",
            (LATE,),
            "late and tables",
            tables=True,
        ),
    )
}
PAPER_LINES = tuple(LINES)[:7]
"""The paper's comparison."""
DESIGN = {
    "default": (),
    "timer": ("timer",),
    "late": ("late",),
    "tables": ("tables",),
    "paper-standard": ("timer", "late"),
    "timer-tables": ("timer", "tables"),
    "late-tables": ("late", "tables"),
    "paper-baseline": ("timer", "late", "tables"),
}
"""The factors that are on in each line of the 2^3 design."""
DESIGN_QUEUES = (1, 5, 15, 30)


class Trial(msgspec.Struct, frozen=True):
    """One run of a line with a number of queues and a publisher window. `number` counts from 1 through the plan."""

    number: int
    block: int
    order: int
    line: str
    queues: int
    window: int


class Done(msgspec.Struct, frozen=True):
    """A recorded run: its place in the plan, the attempt (from 1) and whether it was disturbed."""

    number: int
    attempt: int
    disturbed: bool


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

    def run_id(self, trial: Trial, attempt: int = 1) -> str:
        """Return the name of a run, unique among all sweeps; `attempt` counts from 1."""
        return f"{self.sweep}-{trial.number:05d}" + (f"-{attempt}" if attempt > 1 else "")

    def done(self, run_id: str, attempt: int, *, disturbed: bool) -> Done:
        """Return a recorded run by its name."""
        number = int(run_id.removeprefix(self.sweep + "-").partition("-")[0])
        return Done(number, attempt, disturbed)

    def cells(self) -> list[tuple[int, int]]:
        """Return the measured (window, queues), in order."""
        return sorted({(trial.window, trial.queues) for trial in self.trials})

    def lines(self) -> list[str]:
        """Return the names of the compared lines, in the order of `LINES`."""
        there = {trial.line for trial in self.trials}
        return [name for name in LINES if name in there]


def shuffled(
    seed: int,
    lines: Sequence[str],
    queues: Iterable[int],
    windows: Iterable[int],
    blocks: int,
    *,
    design: Collection[int] = (),
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
        design: the queue counts at which the other lines of `DESIGN` are measured, too.
    """
    chance = random.Random(seed)
    cells = [(count, window) for window in windows for count in queues]
    trials = []
    for block in range(1, blocks + 1):
        order = 0
        for count, window in chance.sample(cells, len(cells)):
            here = [*lines, *(line for line in DESIGN if count in design and line not in lines)]
            for line in chance.sample(here, len(here)):
                order += 1
                trials.append(Trial(len(trials) + 1, block, order, line, count, window))
    return tuple(trials)


REPEATS = 2
"""Greatest number of repetitions of a cell that other programs disturbed."""
BUSY = 0.10
"""Share of the machine's processor time, used by other programs, from which a run is disturbed."""


def remaining(plan: Plan, done: Collection[Done]) -> list[tuple[Trial, int]]:
    """Return the trials to be run next, in the order of the plan, with the attempt of each.

    A disturbed run spoils its cell of the block, because all its lines are compared with each other. So cells in which
    some runs were disturbed are measured again, `REPEATS` times at most, when the whole plan has been measured: the
    machine may have become quiet by then.
    """
    runs = {(each.number, each.attempt): each for each in done}
    waiting: list[tuple[Trial, int]] = []
    cells = cells_of(plan)
    for attempt in range(1, REPEATS + 2):
        spoiled = []
        for cell in cells:
            waiting += [(trial, attempt) for trial in cell if (trial.number, attempt) not in runs]
            there = [runs.get((trial.number, attempt)) for trial in cell]
            if all(there) and any(run is not None and run.disturbed for run in there):
                spoiled.append(cell)
        cells = spoiled
    return waiting


def cells_of(plan: Plan) -> list[list[Trial]]:
    """Return the trials of each cell in each block, which are compared with each other, in the order of the plan."""
    grouped: dict[tuple[int, int, int], list[Trial]] = {}
    for trial in plan.trials:
        grouped.setdefault((trial.block, trial.window, trial.queues), []).append(trial)
    return list(grouped.values())
