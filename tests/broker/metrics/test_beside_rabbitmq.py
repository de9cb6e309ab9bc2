"""Metrics compared with those of a real RabbitMQ after the same work: names, types, labels and values.

Known differences are listed in `docs/generate/rabbitmq_differences.py`; one that is not listed fails here, and so does one
that is listed and does not exist.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from fnmatch import fnmatchcase

import pytest
from conformance.brokers import rabbitmq_server
from grafana.beside import LEFT, OVERVIEW, SINGLE, DayMetrics, plain, scrape_leveret, scrape_rabbitmq

from docs.generate.rabbitmq_differences import ABSENT, COMPARED, LABELS, LATER, VALUES, Difference

pytestmark = pytest.mark.skipif(rabbitmq_server() is None, reason="needs rabbitmq-server")
MEASURED = ("rabbitmq_channel_", "rabbitmq_consumer_prefetch", "rabbitmq_connection_channels")
"""Prefixes of the metrics that must agree for each channel or connection, whatever its name."""
OF_THE_MOMENT = {"rabbitmq_process_open_tcp_sockets"}
"""Figures that another scrape changes: its own socket may be closed or not."""


@pytest.fixture(scope="module")
def ours() -> DayMetrics:
    return scrape_leveret()


@pytest.fixture(scope="module")
def theirs() -> DayMetrics:
    metrics = scrape_rabbitmq()
    (build,) = metrics.before.values("rabbitmq_build_info")
    version = dict(build)["rabbitmq_version"]
    if version.split(".")[:2] != COMPARED.split(".")[:2]:
        pytest.skip(f"the lists are those of RabbitMQ {COMPARED}, and this is {version}")
    return metrics


def scraped_names(metrics: DayMetrics) -> set[str]:
    return {name for name, _ in metrics.after[OVERVIEW].samples}


def covered(name: str, differences: Iterable[Difference]) -> bool:
    return any(each.covers(name) for each in differences)


def families(metrics: DayMetrics) -> dict[str, str]:
    return {
        plain(name): each.type for answer in metrics.after.values() for name, each in answer.families.items()
    }


def label_names(metrics: DayMetrics) -> dict[tuple[str, str], set[tuple[str, ...]]]:
    found = defaultdict(set)
    for path, name, labels in metrics.samples():
        found[path, name].add(tuple(sorted(labels)))
    return found


def by_channel(metrics: DayMetrics) -> dict[str, Counter[float]]:
    """Return by metric how many channels or connections have each value other than 0, summed over their series."""
    sums: Counter[tuple[str, str]] = Counter()
    for (name, labels), value in metrics.after[SINGLE].samples.items():
        if "channel" in dict(labels) and name.startswith(MEASURED):
            sums[name, dict(labels)["channel"]] += value
    found: dict[str, Counter[float]] = defaultdict(Counter)
    for (name, _), value in sums.items():
        found[name].update([value] if value else [])
    return found


def test_every_name_of_rabbitmq_is_ours_or_explained(ours, theirs):
    """Each metric of RabbitMQ that we lack has a documented reason, and no other metric has one."""
    absent = {name for _, name, _ in theirs.samples()} - {name for _, name, _ in ours.samples()}

    assert set() == {name for name in absent if not covered(name, ABSENT)}
    for difference in ABSENT:
        for pattern in difference.names:
            assert any(fnmatchcase(name, pattern) for name in absent), pattern


def test_what_rabbitmq_lacks_is_in_later_ones(ours, theirs):
    """No metric has a RabbitMQ name that this RabbitMQ lacks, except those listed as added in later releases."""
    own = ("leveret_", "python_")
    new = {name for _, name, _ in ours.samples() if not name.startswith(own)}
    new -= {name for _, name, _ in theirs.samples()}
    used = {pattern for pattern in LATER for name in new if fnmatchcase(name, pattern)}

    assert set() == {name for name in new if not any(fnmatchcase(name, pattern) for pattern in LATER)}
    assert set(LATER) == used


def test_types_are_equal(ours, theirs):
    """Metrics of the same name have the same type."""
    here, there = families(ours), families(theirs)
    both = here.keys() & there.keys()

    assert len(both) > 90
    assert {name: there[name] for name in both} == {name: here[name] for name in both}


def test_labels_are_equal_or_explained(ours, theirs):
    """Metrics of the same name and path have the same labels, unless a reason for fewer or more is documented."""
    here, there = label_names(ours), label_names(theirs)
    different = set()
    for place in here.keys() & there.keys():
        if here[place] != there[place]:
            _, name = place
            different.add(name)
            ((mine,), (other,)) = here[place], there[place]
            assert set(mine) < set(other) or name.endswith("_info"), place

    assert {name for name in different if not covered(name, LABELS)} == set()
    assert all(any(each.covers(name) for name in different) for each in LABELS)


def test_groups_have_the_same_metrics(ours, theirs):
    """A metric that we have is in each group in which RabbitMQ has it."""
    here, there = label_names(ours), label_names(theirs)
    known = {name for _, name in here}

    missing = {place for place in there.keys() - here.keys() if place[1] in known}

    assert {(OVERVIEW, "rabbitmq_queue_consumer_utilisation")} == missing


def test_the_day_changes_the_same_sums(ours, theirs):
    """After the same work the sums have changed by the same amounts, unless a reason is documented."""
    here, there = (metrics.after[OVERVIEW].changed(metrics.before) for metrics in (ours, theirs))
    names = scraped_names(ours) & scraped_names(theirs) - OF_THE_MOMENT
    both = {name for name in names if not covered(name, VALUES)}
    moved = {name: there[name] for name in both if name in there}

    assert moved == {name: here[name] for name in both if name in here}
    assert len(moved) > 40


def test_the_day_leaves_the_same_queues(ours, theirs):
    """Every series of every queue has the same value, unless a reason is documented."""
    here, there = (
        {
            (name, labels): value
            for (name, labels), value in metrics.after[SINGLE].samples.items()
            if {"vhost", "queue"} == dict(labels).keys() and not covered(name, VALUES)
        }
        for metrics in (ours, theirs)
    )
    both = here.keys() & there.keys()

    assert {name for name, _ in both} >= {"rabbitmq_queue_messages_ready", "rabbitmq_queue_consumers"}
    assert {place: there[place] for place in both} == {place: here[place] for place in both}
    assert set(LEFT) <= {dict(labels)["queue"] for _, labels in both}


def test_the_day_leaves_the_same_channels_and_connections(ours, theirs):
    """Every channel has a counterpart with the same values on the other side, whatever its name."""
    here, there = by_channel(ours), by_channel(theirs)
    names = here.keys() & there.keys() - {
        "rabbitmq_channel_messages_published_total"
    }  # a transaction's is not there

    assert {name: there[name] for name in names} == {name: here[name] for name in names}
    assert names >= {"rabbitmq_channel_messages_unacked", "rabbitmq_channel_messages_confirmed_total"}


def test_each_value_that_is_explained_is_there(ours, theirs):
    """No reason is documented for a metric that neither has."""
    both = scraped_names(ours) & scraped_names(theirs)
    both |= {name for _, name, _ in ours.samples()} & {name for _, name, _ in theirs.samples()}

    for difference in VALUES:
        for pattern in difference.names:
            assert any(fnmatchcase(name, pattern) for name in both), pattern
