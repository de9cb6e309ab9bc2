"""A broker in the process of the test, for what no client can ask of one: it has no sockets, and its steps are measured."""

import gc
import time
from collections.abc import Callable, Iterable

from doubles.fakes import Node
from loop.harness import Step

from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.time_slices import TimeSlices


class Inside:
    """The broker, with the clocks of a real one."""

    def __init__(self) -> None:
        self.node = Node()
        self.vhost = self.node.vhosts["/"]
        self.slices = self.node.turn.slices = TimeSlices(time.monotonic_ns, time.thread_time_ns)
        self.slices.on_waiting = self.node.loop.schedule_jobs

    def queues(self, count: int) -> list[Queue]:
        return [
            self.vhost.create_queue(
                f"q{number}", durable=False, exclusive_owner=None, auto_delete=False, arguments={}
            )
            for number in range(count)
        ]

    def step(self, work: Callable[[], object]) -> Step:
        """The longest step of this work and of all jobs that come of it."""
        gc.collect()
        gc.disable()
        try:
            self.slices.longest = 0
            self.slices.watch()
            self.slices.begin()
            work()
            self.node.run_turn()
            self.slices.end("call", "")
            self.node.clock.run()
        finally:
            gc.enable()
        return Step(self.slices.longest / 1e6, self.slices.longest_step)

    def job(self, steps: Iterable[object]) -> Step:
        """Run a job that is done piece by piece, and return its longest step."""
        return self.step(lambda: self.slices.add((None for _ in steps), "test"))
