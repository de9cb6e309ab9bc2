"""Queues of direct reply-to consumers."""

import pytest

from leveret.broker.amqp.properties import REPLY_TO
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.scheduling.turn import Turn
from leveret.broker.vhost.direct_reply_to import REPLY_PREFIX, is_reply_name
from leveret.broker.vhost.vhost import VHost


@pytest.fixture
def vhost():
    return VHost("/", Turn(), NodeContext())


def test_reply_queues_are_known_to_the_default_exchange_only(vhost):
    """Reply queues are not among the queues; their routes end with them, and caches are invalidated."""
    generation = vhost.router.generation
    queue = vhost.reply_queues.create()

    assert queue.name.startswith(REPLY_PREFIX)
    assert (queue,) == vhost.reply_queues.reached_by(queue.name)
    assert {} == vhost.queues
    assert generation < vhost.router.generation
    generation = vhost.router.generation
    vhost.delete_reply_queue(queue)
    assert () == vhost.reply_queues.reached_by(queue.name)
    assert generation < vhost.router.generation


def test_a_message_reaches_queues_and_reply_queues_by_the_default_exchange_once_each(vhost):
    """A message reaches each queue once, however often its keys name it; other exchanges know no reply queue."""
    queue = vhost.create_queue("q", durable=False, exclusive_owner=None, auto_delete=False, arguments={})
    reply = vhost.reply_queues.create()
    vhost.router.bind("amq.direct", queue, "q")
    keys = (reply.name, "q", "nothing", reply.name, "q")

    assert (queue, reply) == vhost.route(vhost.exchange(""), keys, {})
    assert (queue,) == vhost.route(vhost.exchange("amq.direct"), keys, {})


@pytest.mark.parametrize(
    ("name", "expected"),
    [(REPLY_TO, True), (f"{REPLY_PREFIX}x", True), ("", False), ("q", False), (f"{REPLY_TO}x", False)],
)
def test_names_of_replies(name, expected):
    """The address itself, and all names that begin with it and a dot, belong to direct reply-to."""
    assert expected is is_reply_name(name)
