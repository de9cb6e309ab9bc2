"""Flow control: decides when the connection of a publisher is not read, and balances publishers and consumers.

A publisher without limits can keep the broker reading so much that consumers' acks wait in their sockets while the
backlog grows. So a connection that has just published to a queue with a backlog and *brisk* consumers is not read for a
moment: until the queue has drained, or `PAUSE_SECONDS` at most. Slow consumers do not throttle publishers: a pause that
has not helped is not repeated on that queue for a while, which doubles each time it happens again, so a queue whose
only consumer has prefetch 1 and never acks takes publishes at full speed. A connection that also consumes is never
paused, because its acks could then not be read.

A queue that had no time yet to discard excess or expired messages pauses all its publishers: it delivers nothing until
then, so this delays no acks.

A connection that has published more than its limits allow is not read until that is made up for
(`broker.connection.publish_limits`), whether it consumes or not.

Publishers, and connections that declare or delete, also wait for the disk while its backlog is large; on a full disk
those that only declare or delete do not, because they may have consumers, which free space. Any connection whose input
was left unprocessed waits for deferred queues (`FlowControl`).
"""

from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from leveret.broker.connection.connection import Connection
from leveret.broker.connection.node import Node
from leveret.broker.connection.pending_reply import ConnectionDriver
from leveret.broker.connection.publish_limits import BREAK_SECONDS, LOOK_SECONDS, PublishPace
from leveret.broker.connection.state import OPEN
from leveret.broker.queue.queue import Queue, RunListener
from leveret.broker.vhost.copies import AT_ONCE

HIGH = 1000  # ready messages from which a publisher is paused
LOW = 250  # ready messages at which it resumes
PAUSE_SECONDS = 0.01
BACKOFF_SECONDS = 0.02  # time without further pauses on a queue after the first pause that did not help
BACKOFF_LIMIT = 1.0  # maximum of that time after further ineffective pauses
PACED_READ_LIMIT = 16 * 1024  # bytes per read from a publisher that is being paced
LIGHT_OCTETS = 32 * 1024  # bytes per read of a light publisher: 1 MB/s, if it is read every 30 ms
DRAIN_SECONDS = 0.2
NEGLIGIBLE_SECONDS = 0.001  # remainder of a wait for which no further timer is worth while
_LOOK_AT = 16  # consumers
_BRISK_SHARE = 12
_BRISK_MESSAGES = 2500  # messages that a publisher at full speed could have sent during a pause
_BRISK_OCTETS = 5_000_000


class FlowDriver(ConnectionDriver, Protocol):
    """The driver of a connection."""

    connection: Connection
    read_limit: int


class FlowControl:
    """The flow control of one connection. The `read_limit` of the driver is at its largest when it is created."""

    __slots__ = ("_driver", "_is_behind", "_is_looking", "_largest_read", "_loop", "_node", "_whole_read")

    def __init__(self, node: Node, driver: FlowDriver) -> None:
        self._node = node
        self._loop = node.loop
        self._driver = driver
        self._largest_read = self._whole_read = driver.read_limit
        self._is_looking = False  # True while a timer waits for the time in which the client is too fast
        self._is_behind = False  # True while it waits for the disk with an unprocessed part of a read

    def after_read(self, size: int) -> None:
        """Pause reading if the connection has to wait after a read of that many bytes.

        Briefly, if its latest publishes go to a queue with a backlog that is being drained.
        """
        loop, driver = self._loop, self._driver
        connection = driver.connection
        if connection.stalled:
            driver.pause_reading()
            self._wait()
            return
        if not connection.published:
            return
        if self._node.wait_for_disk(self.disk_caught_up, is_light=0 < size <= LIGHT_OCTETS):
            self._waits_for_disk()
            driver.pause_reading()
            return
        now = loop.now()
        if connection.pace is not None and self._exceeds(connection.pace, now):
            return
        queue = congested(connection.published_to, now)
        if queue is not None and (queue.is_behind or not connection.consumes):
            connection.paused_at = queue.publishers_paused_at = now
            loop.context.totals.pauses_queue += 1
            pause = Pause(queue, driver, connection.message_size)
            loop.call_later(PAUSE_SECONDS, lambda: pause.expire(loop.now()))
        elif size == driver.read_limit:
            driver.read_limit = min(2 * size, self._largest_read)

    def after_rest(self) -> None:
        """Resume reading after the rest of a read was processed, unless the connection has to wait again."""
        connection = self._driver.connection
        if connection.stalled:
            self._wait()
            return
        self._driver.resume_reading()
        self.after_read(0)

    def disk_caught_up(self) -> None:
        """Resume after a wait for the disk."""
        driver = self._driver
        driver.connection.paused_at = self._loop.now()
        if self._is_behind:
            self._is_behind = False
            driver.process_buffered()
        else:
            driver.resume_reading()

    def _wait(self) -> None:
        """Have the rest of a read processed after the deferred queues have run and the disk has caught up."""
        driver = self._driver
        connection = driver.connection
        declares, connection.has_declared = connection.has_declared, False
        if self._node.wait_for_disk(self.disk_caught_up, publishes=connection.published, declares=declares):
            self._is_behind = True
            self._waits_for_disk()
        else:
            self._loop.turn.when_caught_up(driver.process_buffered)

    def _waits_for_disk(self) -> None:
        self._loop.context.totals.pauses_disk += 1
        self._driver.connection.paused_at = float("inf")

    # -- publish limits -----------------------------------------------------------------------------------------------

    def limit_reads(self, pace: PublishPace) -> None:
        """Read no more at once than a limit of publishes allows."""
        self._largest_read = pace.read_limit(self._whole_read)
        self._driver.read_limit = min(self._driver.read_limit, self._largest_read)

    def _exceeds(self, pace: PublishPace, now: float) -> bool:
        """Return whether the connection has exceeded its limits; if so, it is not read until that is made up for."""
        connection = self._driver.connection
        seconds = pace.read(connection.published_count, connection.octets_in, now)
        self.limit_reads(pace)
        if seconds <= 0:
            return False
        self._driver.pause_reading()
        self._wait_for_pace(pace, now)
        return True

    def _wait_for_pace(self, pace: PublishPace, now: float) -> None:
        connection = self._driver.connection
        connection.paused_at = now
        if pace.must_tell(now):
            connection.tell_pace()
            if not self._is_looking:
                self._is_looking = True
                self._loop.call_later(BREAK_SECONDS, self._look_for_break)
        self._loop.call_later(min(pace.until - now, LOOK_SECONDS), self._pace_made_up)

    def _pace_made_up(self) -> None:
        connection, now = self._driver.connection, self._loop.now()
        connection.refresh_limits()
        pace = connection.pace
        if pace is not None and pace.until - now > NEGLIGIBLE_SECONDS and connection.state == OPEN:
            self._wait_for_pace(pace, now)
        else:
            self._driver.resume_reading()

    def _look_for_break(self) -> None:
        """Tell the client when it has not been slowed down for a while."""
        connection = self._driver.connection
        pace = connection.pace
        if pace is None or connection.state != OPEN or pace.has_ended(self._loop.now()):
            self._is_looking = False
            connection.tell_pace()
        else:
            self._loop.call_later(BREAK_SECONDS, self._look_for_break)


class Pause(RunListener):
    """The pause of one publisher for one queue."""

    __slots__ = ("_delivered", "_driver", "_message_size", "_queue", "over")

    def __init__(self, queue: Queue, driver: FlowDriver, message_size: int) -> None:
        self._queue = queue
        self._driver = driver
        self._message_size = max(1, message_size)
        self._delivered = queue.delivered
        self.over = False
        queue.add_listener(self)
        driver.read_limit = min(driver.read_limit, PACED_READ_LIMIT)
        driver.pause_reading()

    def queue_ran(self, queue: Queue) -> None:
        """Resume if there is no backlog, or no consumer is left to drain it."""
        if queue.is_behind:
            return
        if queue.backing.ready_count <= LOW or not queue.consumers:
            self._finish()

    def expire(self, now: float) -> None:
        """Resume after `PAUSE_SECONDS`, and judge whether the pause has helped."""
        if self.over:
            return
        queue = self._queue
        if queue.is_behind:
            self._finish()
            return
        if self._was_ineffective(now):
            queue.ineffective_pauses += 1
            backoff = BACKOFF_SECONDS * 2 ** min(queue.ineffective_pauses, 10)
            queue.no_pause_until = now + min(backoff, BACKOFF_LIMIT)
        else:
            queue.ineffective_pauses = 0
        self._finish()

    def _was_ineffective(self, now: float) -> bool:
        """Return whether the consumers are too slow to wait for."""
        # A consumer whose socket is full takes nothing for a while and then much at once, however fast it reads: it
        # is judged by what it took in `DRAIN_SECONDS`.
        queue = self._queue
        possible = min(_BRISK_MESSAGES, _BRISK_OCTETS // self._message_size)
        if (queue.delivered - self._delivered) * _BRISK_SHARE >= possible:
            return False
        if not any(consumer.outbox.full for consumer in islice(queue.consumers, _LOOK_AT)):
            return True
        since, delivered = queue.drain_began
        if now - since > 2 * DRAIN_SECONDS:  # the window is stale: start a new one
            queue.drain_began = now, queue.delivered
            return False
        if now - since < DRAIN_SECONDS:
            return False
        queue.drain_began = now, queue.delivered
        return (queue.delivered - delivered) * _BRISK_SHARE < possible * (now - since) / PAUSE_SECONDS

    def _finish(self) -> None:
        self.over = True
        self._queue.remove_listener(self)
        self._driver.resume_reading()


def congested(queues: Sequence[Queue], now: float) -> Queue | None:
    """Return the first of the queues that a publisher should wait for, as far as there is time to check them."""
    for queue in islice(queues, AT_ONCE):
        if queue.is_behind:
            return queue
        if queue.backing.ready_count > HIGH and queue.consumers and now >= queue.no_pause_until:
            return queue
    return None
