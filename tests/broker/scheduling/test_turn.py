"""A turn: each touched queue or outbox once, in order, until none is touched."""

from collections.abc import Callable, Iterator

from leveret.broker.scheduling.outbox import Outbox
from leveret.broker.scheduling.time_slices import SLICE, TimeSlices
from leveret.broker.scheduling.turn import GATHER_NS, GATHER_OCTETS, INPUT_PRIORITY_NS, Turn


class Work:
    """A queue that needs so many runs, and touches others."""

    durable = stores_input = True

    def __init__(self, turn: Turn, runs: int = 1, touches: "Work | None" = None) -> None:
        self.turn = turn
        self.touched = False
        self.left = runs
        self.ran = 0
        self.touches = touches
        self.has_input = False

    def touch(self) -> None:
        if not self.touched:
            self.touched = True
            self.turn.queues.append(self)

    def run(self) -> bool:
        self.ran += 1
        self.left -= 1
        if self.touches is not None:
            self.touches.touch()
        return self.left > 0


class Publisher:
    def __init__(self, queue: Work) -> None:
        self.queue = queue
        self.flushed_after: list[int] = []

    def may_wait(self) -> bool:
        return False

    def flush_confirms(self, since: int = 0) -> None:
        self.flushed_after.append(self.queue.ran)


def test_each_touched_queue_runs_once():
    """A queue touched several times runs once, and one touched by another in the same turn runs in it."""
    turn = Turn()
    second = Work(turn)
    first = Work(turn, touches=second)
    first.touch()
    first.touch()
    turn.run()
    turn.run()

    assert (1, 1) == (first.ran, second.ran)
    assert ([], [], False) == (turn.queues, turn.unfinished, second.touched)


def test_confirms_come_after_the_queues():
    """Confirms are written when all queues have run, once."""
    turn = Turn()
    queue = Work(turn)
    publisher = Publisher(queue)
    turn.channels.append(publisher)
    queue.touch()
    turn.run()
    turn.run()

    assert [1] == publisher.flushed_after


def test_a_queue_that_is_not_done_gets_another_turn():
    """A queue with work left waits for `resume_unfinished`, and runs once a turn also if touched again."""
    turn = Turn()
    queue = Work(turn, runs=3)
    queue.touch()
    turn.run()

    assert (1, [queue]) == (queue.ran, turn.unfinished)
    turn.run()
    assert 1 == queue.ran
    queue.touch()
    turn.resume_unfinished()
    turn.run()
    assert (2, [queue]) == (queue.ran, turn.unfinished)
    turn.resume_unfinished()
    turn.run()
    assert (3, []) == (queue.ran, turn.unfinished)


class Broken(Work):
    gave_up = False

    def run(self) -> bool:
        raise ZeroDivisionError

    def give_up(self) -> None:
        self.gave_up = True


def test_a_bug_in_one_queue_does_not_stop_the_others():
    """A queue that fails is abandoned; the others run, and so do the confirms."""
    turn = Turn()
    broken, sound = Broken(turn), Work(turn)
    publisher = Publisher(sound)
    broken.touch()
    sound.touch()
    turn.channels.append(publisher)
    turn.run()

    assert (True, 1, [1]) == (broken.gave_up, sound.ran, publisher.flushed_after)
    assert ([], []) == (turn.queues, turn.unfinished)


class Sink:
    def __init__(self) -> None:
        self.flushes = 0

    def flush(self) -> None:
        self.flushes += 1


class Waiting:
    def __init__(self) -> None:
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1


def test_an_outbox_is_listed_once_until_flushed():
    """Frames queued in one turn lead to one flush."""
    turn, sink = Turn(), Sink()
    outbox = Outbox(turn, sink)
    outbox.send(b"a")
    outbox.send(b"b")
    outbox.schedule()

    assert ([b"a", b"b"], [outbox]) == (outbox.frames, turn.outboxes)
    turn.outboxes.clear()
    outbox.flush()
    outbox.schedule()
    assert (1, [outbox]) == (sink.flushes, turn.outboxes)


def test_a_drained_outbox_wakes_who_waits():
    """Consumers are woken when the outbox stops being full, and only then."""
    outbox = Outbox(Turn(), Sink())
    waiting = Waiting()
    outbox.parked[waiting] = None
    outbox.drained()

    assert 0 == waiting.woken
    outbox.full = outbox.transport_full = True
    outbox.pending = 7
    outbox.drained()
    assert (0, True, 0) == (waiting.woken, outbox.full, outbox.pending)
    outbox.transport_full = False
    outbox.drained()
    outbox.drained()
    assert (1, False, {}) == (waiting.woken, outbox.full, outbox.parked)


class ShortSteps:
    """A turn whose steps end when a queue has run, and a driver that gives it more of them."""

    def __init__(self) -> None:
        self.now = 0
        self.turn = Turn(slices=TimeSlices(lambda: self.now))
        self.slices = self.turn.slices

    def queue(self) -> "SlowWork":
        """Return a touched queue that uses up a step."""
        queue = SlowWork(self)
        queue.touch()
        return queue

    def step(self) -> None:
        self.slices.begin()
        self.slices.run()


class SlowWork(Work):
    """A queue whose run uses up the step."""

    def __init__(self, short_steps: ShortSteps) -> None:
        super().__init__(short_steps.turn)
        self.short_steps = short_steps
        self.when_run: Callable[[], object] = lambda: None

    def run(self) -> bool:
        self.when_run()
        self.short_steps.now += SLICE
        return super().run()


def test_queues_that_a_step_has_no_time_for_are_deferred():
    """A step that ends leaves the other queues to later steps, one each, and returns that."""
    short_steps = ShortSteps()
    queues = [short_steps.queue() for _ in range(3)]
    was_deferred = short_steps.turn.run()
    ran = [[queue.ran for queue in queues]]
    for _ in range(2):
        short_steps.step()
        ran.append([queue.ran for queue in queues])

    assert (True, [[1, 0, 0], [1, 1, 0], [1, 1, 1]]) == (was_deferred, ran)
    assert ([], [False, False, False]) == (short_steps.turn.queues, [queue.touched for queue in queues])


def test_a_step_that_is_over_with_its_last_queue_defers_nothing():
    """A step that ends with its last queue defers nothing."""
    short_steps = ShortSteps()
    short_steps.queue()

    assert (False, 0) == (short_steps.turn.run(), len(short_steps.slices))


def test_a_queue_with_arrivals_that_is_deferred_is_touched_once():
    """Arrivals for a queue that waits do not make it run twice."""
    short_steps = ShortSteps()
    short_steps.queue()
    second = short_steps.queue()
    second.has_input = True
    short_steps.turn.run()
    second.touch()
    for _ in range(3):
        short_steps.step()
        short_steps.turn.run()

    assert 1 == second.ran


def test_whoever_waits_goes_on_behind_arrivals_that_were_deferred():
    """`when_caught_up` calls back when deferred queues with arrivals have run, before others and later ones."""
    short_steps = ShortSteps()
    queues = [short_steps.queue() for _ in range(4)]
    for queue in queues[:3]:
        queue.has_input = True
    short_steps.turn.run()
    seen: list[list[int]] = []
    short_steps.turn.when_caught_up(lambda: seen.append([queue.ran for queue in queues]))
    queues += [short_steps.queue(), short_steps.queue()]
    short_steps.turn.run()
    for _ in range(6):
        short_steps.step()

    assert [[1, 1, 1, 0, 1, 0]] == seen
    assert [1, 1] == [queues[3].ran, queues[-1].ran]


def test_arrivals_for_a_queue_that_is_deferred_do_not_wait_for_what_others_have_to_do():
    """A queue deferred without arrivals that then has some runs before all others that were deferred."""
    short_steps = ShortSteps()
    short_steps.queue()
    others = [short_steps.queue() for _ in range(3)]
    taker = short_steps.queue()
    short_steps.turn.run()
    first = short_steps.queue()
    taker.has_input = True
    taker.touch()
    short_steps.turn.run()
    was_split = short_steps.turn.is_split
    short_steps.step()

    assert (1, True, False) == (first.ran, was_split, short_steps.turn.is_split)
    assert (1, [0, 0, 0]) == (taker.ran, [each.ran for each in others])


def test_arrivals_without_end_keep_no_queue_waiting_for_ever():
    """Queues deferred behind arrivals without end have a step now and then, and may discard in it."""
    short_steps = ShortSteps()
    turn = short_steps.turn
    takers = [short_steps.queue() for _ in range(3)]
    for taker in takers:
        taker.has_input = True
    turn.run()
    others = [SlowWork(short_steps) for _ in range(2)]
    waited = [turn.wait_for_arrivals(other) for other in others]
    may_discard: list[bool] = []
    others[0].when_run = lambda: may_discard.append(not turn.wait_for_arrivals(others[0]))
    steps = 4 * INPUT_PRIORITY_NS // SLICE
    ran_before = 0
    for number in range(steps):
        for taker in takers:
            if not taker.touched:
                taker.touch()
        turn.run()
        short_steps.step()
        if number < INPUT_PRIORITY_NS // SLICE // 2 - 1:
            ran_before += others[0].ran

    assert [True, True] == waited
    assert 0 == ran_before
    assert [1, 1] == [each.ran for each in others]
    assert [True] == may_discard
    assert min(taker.ran for taker in takers) > steps // 3


def test_queues_that_have_waited_for_the_disk_do_not_keep_arrivals_waiting():
    """Queues delayed by the disk run after the arrivals of others, in later steps."""
    short_steps = ShortSteps()
    turn = short_steps.turn
    turn.is_backlogged = lambda: True
    waiting = [SlowWork(short_steps) for _ in range(3)]
    for queue in waiting:
        turn.wait_for_disk(queue)
    short_steps.now += SLICE  # the step is over
    turn.disk_caught_up()
    taker = short_steps.queue()
    turn.run()

    assert (1, [0, 0, 0]) == (taker.ran, [each.ran for each in waiting])
    for _ in waiting:
        short_steps.step()
    assert [1, 1, 1] == [each.ran for each in waiting]


def test_with_nothing_deferred_whoever_waits_goes_on_in_the_next_step():
    """`when_caught_up` never calls back at once."""
    short_steps = ShortSteps()
    seen: list[str] = []
    short_steps.turn.when_caught_up(lambda: seen.append("called"))
    at_once = list(seen)
    short_steps.step()

    assert ([], ["called"]) == (at_once, seen)


def test_an_error_in_a_queue_that_was_deferred_is_its_own(caplog):
    """A queue that fails in a later step is abandoned, and the others run."""
    short_steps = ShortSteps()
    short_steps.queue()
    broken, fine = short_steps.queue(), short_steps.queue()
    given_up: list[str] = []
    broken.run = lambda: 1 // 0  # type: ignore[method-assign]
    broken.give_up = lambda: given_up.append("yes")
    short_steps.turn.run()
    short_steps.step()
    short_steps.step()

    assert (["yes"], 1) == (given_up, fine.ran)
    assert ["internal error in"] == [record.message[:17] for record in caplog.records]


def test_queues_with_arrivals_run_before_others_that_were_deferred():
    """Queues with arrivals run before others that were deferred, so that commits wait for no other."""
    short_steps = ShortSteps()
    short_steps.queue()
    others = [short_steps.queue() for _ in range(3)]
    taker = short_steps.queue()
    taker.has_input = True
    short_steps.turn.run()
    was_deferred = short_steps.turn.has_deferred_input
    short_steps.step()

    assert (True, False) == (was_deferred, short_steps.turn.has_deferred_input)
    assert (1, [0, 0, 0]) == (taker.ran, [each.ran for each in others])
    for _ in others:
        short_steps.step()
    assert [1, 1, 1] == [each.ran for each in others]


def test_queues_without_stored_input_keep_no_commit_waiting():
    """A turn is split by deferred acks or arrivals that are stored, not by deliveries or transient messages."""
    clock = iter(range(0, 1000 * SLICE, SLICE))
    turn = Turn(slices=TimeSlices(clock.__next__))
    seen = []
    for has_input, stores_input in ((False, True), (True, False), (True, True)):
        works = [Work(turn) for _ in range(3)]
        works[-1].has_input, works[-1].stores_input = has_input, stores_input
        for work in works:
            work.touch()
        turn.run()
        seen.append(turn.is_split)

    assert [False, False, True] == seen


def test_a_stored_message_for_a_deferred_queue_keeps_commits_waiting():
    """A queue deferred with transient arrivals keeps commits waiting once it has one that is stored, until it ran."""
    short_steps = ShortSteps()
    short_steps.queue()
    taker = short_steps.queue()
    taker.has_input, taker.stores_input = True, False
    short_steps.turn.run()
    short_steps.queue()
    before = short_steps.turn.is_split
    taker.stores_input = True
    taker.touch()
    short_steps.turn.run()
    after = short_steps.turn.is_split
    for _ in range(4):
        short_steps.step()

    assert (False, True, False) == (before, after, short_steps.turn.is_split)
    assert taker.ran


def test_a_job_that_writes_is_paused_while_the_disk_has_a_backlog():
    """A job that writes stops after the step that finds too many writes pending, and continues when they are done."""
    turn = Turn()
    done: list[int] = []

    def steps() -> Iterator[None]:
        for number in range(4):
            done.append(number)
            yield

    turn.is_backlogged = lambda: len(done) == 2
    turn.add_writing_job(steps(), "a job")

    assert ([0, 1], True) == (done, turn.has_paused_jobs)
    turn.is_backlogged = lambda: False
    turn.disk_caught_up()
    assert ([0, 1, 2, 3], False) == (done, turn.has_paused_jobs)


def test_no_job_waits_for_a_full_disk():
    """A job goes on while the disk is full, however much waits for it: what it deletes frees space."""
    turn = Turn()
    done: list[int] = []
    turn.is_backlogged = turn.is_full = lambda: True
    turn.add_writing_job((done.append(number) for number in range(3)), "a job")

    assert ([0, 1, 2], False) == (done, turn.has_paused_jobs)


def test_a_paused_job_can_be_finished_without_the_disk():
    """At the end of the broker paused jobs run without further pauses."""
    turn = Turn()
    done: list[int] = []
    turn.is_backlogged = lambda: True
    turn.add_writing_job((done.append(number) for number in range(3)), "a job")
    before = list(done)
    turn.resume_paused_jobs()

    assert ([0], [0, 1, 2], False) == (before, done, turn.has_paused_jobs)


def test_a_queue_is_deferred_once():
    """A queue that gets transient messages from many connections while it is deferred waits for one run."""
    short_steps = ShortSteps()
    short_steps.queue()
    taker = short_steps.queue()
    taker.has_input, taker.stores_input = True, False
    for _ in range(5):
        short_steps.turn.run()
        taker.touch()
        short_steps.queue()
    short_steps.turn.run()

    assert 1 == list(short_steps.turn._deferred_input).count(taker)


class Beyond(SlowWork):
    """A queue with a bug that leaves it in an inconsistent state."""

    def run(self) -> bool:
        super().run()
        raise ZeroDivisionError

    def give_up(self) -> None:
        raise ZeroDivisionError


def test_a_queue_that_cannot_even_give_up_stops_no_other():
    """A broken queue stops neither others that were deferred, before and behind it, nor those of later turns."""
    short_steps = ShortSteps()
    first, second, last = Beyond(short_steps), Beyond(short_steps), SlowWork(short_steps)
    for queue in (first, second, last):
        queue.touch()
    short_steps.turn.run()
    for _ in range(2):
        short_steps.step()
    later = [short_steps.queue(), short_steps.queue()]
    short_steps.turn.run()
    short_steps.step()

    assert ([1, 1, 1], [1, 1]) == (
        [each.ran for each in (first, second, last)],
        [each.ran for each in later],
    )


class Read:
    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.told: list[bool] = []

    def turn_ran(self, *, is_deferred: bool) -> None:
        self.told.append(is_deferred)


def test_gathered_reads_are_told_once():
    """Each read is told by the next run, after the queues have run, and not again."""
    turn = Turn()
    reads = [Read(turn), Read(turn)]
    for read in reads:
        assert not turn.gather(read, 100, 0)
    turn.run()
    turn.run()

    assert [[False], [False]] == [read.told for read in reads]


def test_gathered_reads_are_told_that_queues_are_deferred():
    """All reads of a run that had no time for each queue must wait."""
    turn = Turn(TimeSlices(iter(range(0, 100 * SLICE, SLICE)).__next__))
    read = Read(turn)
    for _ in range(3):
        work = Work(turn)
        work.has_input = True
        work.touch()
    turn.gather(read, 100, 0)
    turn.slices.begin()
    turn.run()

    assert [True] == read.told


def test_reads_are_gathered_up_to_a_size_and_a_time():
    """The read that makes too many octets together, or begins too late, asks for a run; the next one begins anew."""
    turn = Turn()
    assert not turn.gather(Read(turn), GATHER_OCTETS - 1, 5)
    assert turn.gather(Read(turn), 1, 5)
    turn.run()
    assert not turn.gather(Read(turn), 1, 6)
    assert not turn.gather(Read(turn), 1, 6 + GATHER_NS - 1)
    assert turn.gather(Read(turn), 1, 6 + GATHER_NS)
