"""Messages that are read for queues in a thread."""

import itertools
from queue import SimpleQueue
from types import SimpleNamespace

from doubles import fakes

from leveret.broker.persistence.data_store import MessageReader
from leveret.broker.scheduling.time_slices import TimeSlices


def test_what_is_read_slowly_is_logged_with_the_name_of_its_queue(caplog):
    """A slow step that hands a queue the messages read for it is logged with that queue's name and vhost."""
    node = fakes.Node()
    client = fakes.Client(node)
    client.declare("orders")
    queue = node.vhosts["/"].queues["orders"]
    asking = SimpleNamespace(loaded=lambda request, found: queue.touch())
    request = SimpleNamespace(queue=asking, ranges=(), limit=1)
    clock, used = itertools.count(0, 100_000_000), itertools.count(0, 100_000_000)
    node.turn.slices = TimeSlices(clock.__next__, used.__next__, slow=50_000_000)
    node.turn.slices.watch()
    reported = SimpleQueue()
    loop = SimpleNamespace(
        call_soon_threadsafe=lambda callback, *values: reported.put((callback, values)),
        call_soon=node.clock.call_soon,
    )
    reader = MessageReader(SimpleNamespace(read=lambda ranges, limit: object()), node.loop, loop)
    try:
        reader.load(request)
        callback, values = reported.get(timeout=10)
    finally:
        reader.stop()
    callback(*values)
    node.clock.run()

    assert "100.0 ms of processor time for result of a read for queue 'orders' in vhost '/'" in caplog.text
