"""The work of one turn: each touched thing once, in order, until nothing is touched."""

from broker.turn import Outbox, Turn


class Work:
    """A queue that runs so many times before it is done, and touches others."""

    def __init__(self, turn: Turn, runs: int = 1, touches: "Work | None" = None) -> None:
        self.turn = turn
        self.touched = False
        self.left = runs
        self.ran = 0
        self.touches = touches

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

    def flush_confirms(self) -> None:
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
    """What a budget left undone waits for `resume_unfinished`, and runs once a turn also if touched again."""
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
    """A queue with a bug."""

    gave_up = False

    def run(self) -> bool:
        raise ZeroDivisionError

    def give_up(self) -> None:
        self.gave_up = True


def test_a_bug_in_one_queue_does_not_stop_the_others():
    """A queue that fails gives up what it was to do; the others run, and so do the confirms."""
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
