"""A vhost's exchanges and queues, and the rules for changing them."""

from types import SimpleNamespace
from typing import Any

import pytest
from doubles.fakes import set_policy

from leveret.broker.auth.users import VHostLimits
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.scheduling.turn import Turn
from leveret.broker.vhost.vhost import VHost
from leveret.storage.message import Message
from leveret.storage.queues.memory_queue import MemoryQueue

ME: Any = SimpleNamespace(exclusive_queues={})


@pytest.fixture
def vhost() -> VHost:
    return VHost("/v", Turn(), NodeContext(), limits=lambda: VHostLimits(max_queues=2))


def create(vhost: VHost, name: str, owner: object = None) -> Queue:
    return vhost.create_queue(name, durable=False, exclusive_owner=owner, auto_delete=False, arguments={})


def test_the_owner_of_an_exclusive_queue_forgets_it(vhost):
    """A deleted exclusive queue is removed from its connection's list, however it is deleted."""
    queue = create(vhost, "q", ME)
    ME.exclusive_queues["q"] = queue
    vhost.delete_queue(queue)

    assert {} == ME.exclusive_queues


def test_a_queue_can_be_reached_by_its_name_until_it_goes(vhost):
    """The default exchange routes to a queue until it is deleted, which returns its number of messages."""
    queue = create(vhost, "q")
    default = vhost.exchange("")
    queue.inbox += [Message(b"", b"", 1)] * 3

    assert (queue,) == vhost.router.route_key(default, "q")
    assert 3 == vhost.delete_queue(queue)
    assert 0 == vhost.delete_queue(queue)
    assert () == vhost.router.route_key(default, "q")
    totals = vhost.context.totals
    assert ([], 1, 1) == (list(vhost.queues.values()), totals.queues_created, totals.queues_deleted)


def test_each_generated_name_is_new(vhost):
    """Server-named queues are `amq.gen-` with a unique suffix."""
    names = {vhost.generated_name() for _ in range(100)}

    assert 100 == len(names)
    assert all(name.startswith("amq.gen-") for name in names)


def test_a_new_confirm_mode_makes_routes_anew():
    """Routes know which queues wait for consumers; a policy that does not change that keeps them."""
    vhost = VHost("/", Turn(), NodeContext(), confirm_mode="consumer-ack")
    queue = create(vhost, "q")
    assert "consumer-ack" == queue.settings.confirm_mode
    generation = vhost.router.generation
    set_policy(vhost.policies, "p", "", {"confirm-mode": "consumer-ack"})
    assert ("consumer-ack", generation) == (queue.settings.confirm_mode, vhost.router.generation)
    set_policy(vhost.policies, "p", "", {"confirm-mode": "standard"})
    assert "standard" == queue.settings.confirm_mode
    assert generation < vhost.router.generation
    generation = vhost.router.generation
    vhost.policies.clear("p")
    assert "consumer-ack" == queue.settings.confirm_mode
    assert generation < vhost.router.generation


def test_an_auto_delete_queue_goes_when_its_last_consumer_left(vhost):
    """Only auto-delete queues without consumers are deleted, and a second call does nothing."""
    kept = create(vhost, "kept")
    gone = vhost.create_queue("gone", durable=False, exclusive_owner=None, auto_delete=True, arguments={})
    vhost.consumer_left(kept)
    vhost.consumer_left(gone)
    vhost.consumer_left(gone)

    assert [kept] == list(vhost.queues.values())


def test_the_maker_of_backing_queues_is_the_vhosts():
    """Each queue gets its own backing queue from the function given to the vhost."""
    made = []

    def make(qid, arguments) -> MemoryQueue:
        made.append(MemoryQueue())
        return made[-1]

    vhost = VHost("/", Turn(), NodeContext(), make_backing=make)

    assert [create(vhost, "a").backing, create(vhost, "b").backing] == made
