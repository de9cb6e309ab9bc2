"""Loads: names of queues, and who uses which."""

import pytest

from leveret.broker.perf.load import Load, LoadError, shares


@pytest.mark.parametrize("workers", range(1, 8))
@pytest.mark.parametrize("count", range(1, 8))
def test_no_worker_is_idle_and_no_item_is_left_out(workers, count):
    """Every worker gets an item and every item a worker; with more items than workers each item just one."""
    items = [str(number) for number in range(count)]
    divided = shares(workers, items)

    assert workers == len(divided)
    assert all(divided)
    assert set(items) == {item for share in divided for item in share}
    assert sum(map(len, divided)) == max(workers, count)


@pytest.mark.parametrize(
    ("load", "names"),
    [
        (Load(), ["leveret-perf-ab-1"]),
        (Load(queues=2), ["leveret-perf-ab-1", "leveret-perf-ab-2"]),
        (Load(queue="q"), ["q"]),
        (Load(queue="q", queues=2), ["q-1", "q-2"]),
        (Load(queues=0), []),
    ],
)
def test_queues_have_the_name_that_was_given_or_one_of_the_run(load, names):
    """A single queue has just the given name, several are numbered, and without a name the run names them."""
    assert names == load.queue_names("ab")


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (Load(producers=0, consumers=0), "producer or consumer"),
        (Load(routing_key="k"), "--exchange"),
        (Load(queues=0), "--exchange"),
        (Load(queues=0, exchange="e"), "no consumers"),
        (Load(prefetch=5, ack_every=6), "--qos"),
    ],
)
def test_contradictions_are_refused(load, reason):
    """Options that contradict each other are refused with the option to change."""
    with pytest.raises(LoadError, match=reason):
        load.check()


@pytest.mark.parametrize(
    "load",
    [
        Load(),
        Load(queues=0, exchange="e", consumers=0),
        Load(prefetch=5, ack_every=5),
        Load(prefetch=0, ack_every=9),
    ],
)
def test_other_loads_are_accepted(load):
    """A load without a contradiction is accepted."""
    load.check()
