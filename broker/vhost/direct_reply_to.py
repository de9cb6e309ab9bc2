"""Direct reply-to: replies to `amq.rabbitmq.reply-to` reach the requesting client, without a declared queue.

Theory. A channel that consumes from `REPLY_TO` gets a queue of its own, in memory and under an unguessable name. Its
requests, whose property `reply_to` is `REPLY_TO`, leave with that name instead (`Channel.publish`). A publish to the
default exchange with the name as the routing key reaches the queue. For everything else it does not exist: it has no
binding, no listing shows it, and it ends with its consumer.
"""

import re
import secrets
from base64 import b64encode
from collections.abc import Callable
from typing import Final

from leveret.broker.amqp.properties import REPLY_TO
from leveret.broker.queue.queue import Queue
from leveret.exchanges.router import Router

REPLY_PREFIX = REPLY_TO + "."
_PROCESS_ID = b"\x83Xv\x00\x0freply@000000000%b\x00\x00\x00\x00\x00\x00\x00\x01"
"""A process id in Erlang's external term format: NEW_PID_EXT with a node name, a number, serial 0 and creation 1."""


_ADDRESS: Final = re.compile(re.escape(REPLY_PREFIX) + r"g1h[A-Za-z0-9+/]+=*\.[A-Za-z0-9+/]+=*")


def is_reply_name(name: str) -> bool:
    """Return whether a name of a queue is `REPLY_TO`, or can be that of a queue of replies."""
    return name == REPLY_TO or name.startswith(REPLY_PREFIX)


def is_reply_address(name: str) -> bool:
    """Return whether a name has the form of `reply_address`, whether it was given out or not."""
    return _ADDRESS.fullmatch(name) is not None


def reply_address(number: int, key: bytes) -> str:
    """Return the name of a direct reply-to queue in RabbitMQ's form: a process id and a key, both as base64.

    The number, 1 to 2**32 - 1, is for readability only, not a secret; the key is 16 unguessable bytes.
    """
    process_id = _PROCESS_ID % number.to_bytes(4, "big")
    return f"{REPLY_PREFIX}{b64encode(process_id).decode()}.{b64encode(key).decode()}"


class ReplyQueues(dict[str, Queue]):
    """The queues of the direct reply-to consumers of one vhost, by name; `make` creates the queue of a name."""

    def __init__(self, make: Callable[[str], Queue], router: Router) -> None:
        super().__init__()
        self._make = make
        self._router = router
        self._number = 0

    def create(self) -> Queue:
        """Create the queue of one consumer."""
        self._number = self._number % 0xFFFFFFFF + 1
        name = reply_address(self._number, secrets.token_bytes(16))
        self[name] = queue = self._make(name)
        self._router.generation += 1
        return queue

    def delete(self, queue: Queue) -> None:
        """Delete the queue of a consumer that was cancelled."""
        del self[queue.name]
        queue.delete()
        self._router.generation += 1

    def reached_by(self, routing_key: str) -> tuple[Queue, ...]:
        """Return the queue that a key of the default exchange names, if it is one of these."""
        queue = self.get(routing_key)
        return () if queue is None else (queue,)
