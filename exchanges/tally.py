"""How many messages an exchange has passed on, counted where they pass."""


class Tally:
    """Messages that went the same way: to so many queues and, where keys are told apart, with the same routing key.

    Whoever publishes adds to `published`. A route remembers its tally, so that counting costs no more than an addition,
    and all that is said of an exchange is added up from its tallies when somebody asks.

    Attributes:
        width: how many queues each of the messages reached.
        routing_key: the key of all of them; None if they had any.
        published: how many they are.

    """

    __slots__ = ("published", "routing_key", "width")

    def __init__(self, width: int = 0, routing_key: str | None = None) -> None:
        self.width = width
        self.routing_key = routing_key
        self.published = 0
