"""The engine in memory: it passes the conformance suite, and loses what its standby never had."""

import pytest
from replicated.conformance import *  # noqa: F403 - the suite
from replicated.conformance import HOLDER, OTHER, follow
from replicated.memory import MemoryDriver, MemoryEngine

from leveret.broker.replication import engine as protocol


class MemorySetup:
    def __init__(self):
        self.engine = MemoryEngine()

    async def connect(self):
        return MemoryDriver(self.engine)

    async def save(self):
        return self.engine.visible

    async def restore(self, backup):
        self.engine.visible = self.engine.standby = backup

    async def lose_answer(self, engine, request):
        engine.fault = lambda _: "after"
        with pytest.raises(protocol.NoAnswerError):
            await engine.perform(request)
        engine.fault = None


@pytest.fixture
def setup():
    return MemorySetup()


def taken(engine, holder=HOLDER):
    return engine.perform(protocol.Take(engine.visible.lease, holder, "a", "")).lease


def test_a_change_is_not_seen_before_it_is_replicated():
    """While a change waits for the standby, reads show what was before, and nothing else is changed."""
    engine = MemoryEngine()
    lease = taken(engine)
    engine.begin(protocol.Append(follow(protocol.ORIGIN, lease)))

    assert engine.is_locked
    assert 0 == engine.look(protocol.Read(0, 0)).lease.last
    engine.finish()
    assert 1 == engine.look(protocol.Read(0, 0)).lease.last


def test_a_restart_shows_what_a_promotion_loses():
    """An entry that a restarted server shows is lost with it, unless a later change has reached the standby."""
    engine = MemoryEngine()
    lease = taken(engine)
    entry = follow(protocol.ORIGIN, lease)
    engine.begin(protocol.Append(entry))
    engine.restart()

    assert isinstance(engine.perform(protocol.Append(entry)), protocol.Refused)
    assert 1 == engine.visible.lease.last
    engine.promote()
    assert (0, 2) == (engine.visible.lease.last, engine.timeline)

    engine.begin(protocol.Append(entry))
    engine.restart()
    engine.perform(protocol.Renew(lease.epoch, HOLDER, 0))
    engine.promote()
    assert 1 == engine.visible.lease.last


async def test_a_fault_before_a_request_changes_nothing():
    """A connection can break before a request is performed."""
    driver = MemoryDriver(MemoryEngine())
    driver.fault = lambda _: "before"

    with pytest.raises(protocol.NoAnswerError):
        await driver.perform(protocol.Take(driver.engine.visible.lease, OTHER, "a", ""))
    assert protocol.FREE == driver.engine.visible.lease
