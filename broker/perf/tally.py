"""Counters and latencies that the producers and consumers of a run share."""

from leveret.broker.counters.histogram import Histogram, Latency


class Tally:
    """Counts of messages, and latencies in microseconds.

    Attributes:
        sent, received, confirmed, nacked, returned: number of messages.
        own: messages received that this run published, without redeliveries.
        latency: from the time at which a message was due to its arrival at a consumer.
        confirm_latency: from the time at which a message was due to its confirm.
        send_delay: from the time at which a message was due to its being written to the socket.

    """

    __slots__ = (
        "confirm_latency",
        "confirmed",
        "latency",
        "nacked",
        "own",
        "received",
        "returned",
        "send_delay",
        "sent",
    )

    def __init__(self) -> None:
        self.sent = self.received = self.confirmed = self.nacked = self.returned = self.own = 0
        self.latency = Latency()
        self.confirm_latency = Latency()
        self.send_delay = Histogram()
