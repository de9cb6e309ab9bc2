"""Message counters of an exchange, incremented on its routes."""


class Tally:
    """Counter of messages that reached the same number of queues and, if keys are tracked, had the same routing key.

    Publishing increments `published`. A route remembers its tally, so that counting costs no more than an addition, and
    the statistics of an exchange are summed up from its tallies on demand.

    Attributes:
        width: number of queues that each of the messages reached.
        routing_key: the key of all of them; None for any key.
        published: number of messages.
    """

    __slots__ = ("published", "routing_key", "width")

    def __init__(self, width: int = 0, routing_key: str | None = None) -> None:
        self.width = width
        self.routing_key = routing_key
        self.published = 0
