"""Server-sent events with what changes: `/api/leveret/events`."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from leveret.broker.administration.access import (
    AdministeredBroker,
    Right,
    authorize,
    sees_all,
    visible_vhosts,
)
from leveret.broker.administration.definitions_document import json_text
from leveret.broker.auth.users import BackendUser, User
from leveret.broker.counters.histogram import Histogram
from leveret.broker.http.call import Answer, Call, Events
from leveret.broker.http.errors import bad_request
from leveret.broker.http.feeds import Reading, Topic
from leveret.broker.http.login import token_of
from leveret.broker.http.route import Key, Routes
from leveret.broker.management.overview import levels
from leveret.broker.queue.queue import Queue
from leveret.broker.queue.settings import COUNTED, QueueSettings
from leveret.broker.scheduling.time_slices import portions
from leveret.broker.statistics import families
from leveret.broker.statistics.node_figures import latencies, node_counts, node_facts
from leveret.broker.statistics.queue_health import health, queue_state
from leveret.broker.statistics.statistics import named, summed
from leveret.broker.vhost.vhost import VHost

ROUTES = Routes("overview")
STEP = 50  # queues that are read in one step
MOST_TOPICS = 8
_COLUMNS = """
    vhost name type features state policy consumers capacity
    messages_ready messages_unacknowledged publish deliver_get redeliver ack confirm_mode health
"""
QUEUE_COLUMNS = tuple(_COLUMNS.split())
_NODE = """
    name uptime mem_used mem_limit mem_alarm disk_free disk_free_limit disk_free_alarm
    fd_used fd_total sockets_used sockets_total
"""
_LATENCIES = (0.5, 0.99)

Vhosts = tuple[str, ...] | None  # names of the vhosts that are shown; None for all, and the node


@ROUTES.get(
    "leveret/events",
    query=(
        Key("topics", is_required=True, doc="`overview`, `queues`, or both with a comma between them"),
        Key("vhost", doc="of this virtual host only"),
    ),
    kind="events",
)
def get_events(call: Call) -> Answer:
    """Server-sent events whenever something has changed. `overview`: an object with counts since the
    start, from which the client computes rates. `queues`: first all rows, in pieces, with the names of
    their `columns`; then the rows that have changed and the keys of those that are `gone`, and with the
    last piece its time (`at`, milliseconds). Those who may see the same get the same. At most 50
    clients.
    """
    names = tuple(dict.fromkeys(filter(None, call.query.text("topics").split(","))))
    if not names or len(names) > MOST_TOPICS or not _TOPICS.keys() >= set(names):
        raise bad_request(f"topics must be some of {', '.join(_TOPICS)}, with commas between them")
    broker, actor, token = call.broker, call.actor, token_of(call.headers)
    has_session = bool(token) and "authorization" not in call.headers
    vhost = call.query.get("vhost")

    def topics(user: User | None) -> tuple[Topic, ...]:
        if vhost is not None:
            authorize(broker.users, user, Right.MANAGEMENT, vhost)
        seen = _visible(broker, user, vhost)
        return tuple([_TOPICS[name](broker, seen) for name in names])

    def renewed() -> tuple[Topic, ...]:
        now = broker.users.current(actor) if actor is not None else None
        if isinstance(now, BackendUser) and now.is_over(broker.wall_clock()):
            now = None
        if now != actor or (has_session and broker.sessions.find(token, broker.now(), is_used=False) is None):
            return ()
        return topics(actor)

    return Events(topics(actor), renewed)


def _visible(broker: AdministeredBroker, user: User | None, vhost: str | None) -> Vhosts:
    if vhost is not None:
        return (vhost,)
    if sees_all(user):
        return None
    return tuple(sorted([each.name for each in visible_vhosts(broker, user)]))


def _vhosts(broker: AdministeredBroker, names: Vhosts) -> list[VHost]:
    if names is None:
        return list(broker.vhosts.values())
    return [broker.vhosts[name] for name in names if name in broker.vhosts]


# -- queues -----------------------------------------------------------------------------------------------------------


def _read_queues(broker: AdministeredBroker, names: Vhosts) -> Reading:
    now = broker.now()
    for vhost in _vhosts(broker, names):
        queues = list(vhost.queues.values())
        has_policies = bool(vhost.policies)
        for some in portions(queues, STEP):
            for queue in some:
                if not queue.deleted:
                    policy = vhost.queue_policies(queue).policy if has_policies else None
                    row = (
                        *_queue_row(queue, None if policy is None else json_text(policy.name), now),
                        health(queue, broker.statistics, now),
                    )
                    yield (row[0], row[1]), row
            yield None


def _queue_row(queue: Queue, policy: str | None, now: float) -> tuple[Any, ...]:
    backing = queue.backing
    sampled = families.QUEUES.read(queue)
    return (
        json_text(queue.vhost),
        json_text(queue.name),
        queue.type,
        _features(queue),
        queue_state(queue, now),
        policy,
        queue.consumer_count,
        round(queue.consumer_capacity, 2),
        backing.ready_count,
        backing.unacked_count,
        sampled[0],
        sampled[1] + sampled[2] + sampled[3] + sampled[4],
        sampled[6],
        sampled[7],
        queue.settings.confirm_mode,
    )


def _features(queue: Queue) -> tuple[str, ...]:
    """Return what is special about a queue, in the abbreviations of RabbitMQ's page and some like them."""
    own = (
        ("D", queue.durable),
        ("AD", queue.auto_delete),
        ("Excl", queue.exclusive_owner is not None),
        ("Pri", "x-max-priority" in queue.arguments),
        ("SAC", "x-single-active-consumer" in queue.arguments),
    )
    return (*[name for name, has_it in own if has_it], *_features_of(queue.settings))


@lru_cache(maxsize=1000)
def _features_of(settings: QueueSettings) -> tuple[str, ...]:
    found = (
        ("TTL", settings.message_ttl is not None),
        ("Exp", settings.expires is not None),
        ("Lim", settings.max_length is not None),
        ("Lim B", settings.max_octets is not None),
        ("Ovfl", settings.rejects),
        ("DLX", settings.dead_letter_exchange is not None),
        ("DLK", settings.dead_letter_routing_key is not None),
        ("DL", settings.delivery_limit not in {None, COUNTED}),
        ("Hold", settings.holds),
        ("Retry", settings.retry is not None),
        ("Ret", settings.retains),
    )
    return tuple([name for name, has_it in found if has_it])


# -- the overview -----------------------------------------------------------------------------------------------------


def _read_overview(broker: AdministeredBroker, names: Vhosts, recent: "_Recent") -> Reading:
    statistics, vhosts = broker.statistics, _vhosts(broker, names)
    queues = [queue for vhost in vhosts for queue in vhost.queues.values()]
    ready, unacked, consumers = yield from summed(queues, levels, (0, 0, 0))
    counts = yield from statistics.channel_totals(None if names is None else vhosts)
    connections = list(broker.clients.connections)
    if names is not None:
        connections = [each for each in connections if each.vhost.name in names]
    gone = (
        [broker.context.totals.connections] if names is None else [each.connections_gone for each in vhosts]
    )
    octets = yield from summed(connections, families.connection_row, *map(families.connection_row, gone))
    shown: dict[str, Any] = {
        "at": broker.wall_clock(),
        "messages_ready": ready,
        "messages_unacknowledged": unacked,
        "counts": {
            **named(families.BROKER, families.BROKER.stats, counts),
            **dict(zip(families.OCTETS, octets, strict=False)),
        },
        "objects": {
            "queues": len(queues),
            "consumers": consumers,
            "connections": len(connections),
            "channels": sum([len(each.channels) for each in connections]),
            "exchanges": sum([len(vhost.router.exchanges) for vhost in vhosts]),
        },
    }
    if names is None:
        shown |= _node(broker, recent)
    yield "", shown


def _node(broker: AdministeredBroker, recent: "_Recent") -> dict[str, Any]:
    facts = {"name": broker.node_name, **node_counts(broker), **node_facts(broker)}
    if broker.resource_monitor.disk.free is None:
        facts["disk_free"] = None
    return {
        "churn": broker.statistics.churn(),
        "node": {name: facts[name] for name in _NODE.split()},
        "latencies": {name: recent(name, whole) for name, whole in latencies(broker).items()},
    }


class _Recent:
    """The durations since the pass before."""

    def __init__(self) -> None:
        self._before: dict[str, Histogram] = {}

    def __call__(self, name: str, whole: Histogram) -> dict[str, int] | None:
        """Return how many there were, their median and 99th percentile (microseconds); None if there were none."""
        before = self._before.get(name)
        self._before[name] = whole
        if before is None or whole.count <= before.count:
            return None
        since = Histogram()
        since.counts = {
            bucket: count - before.counts.get(bucket, 0)
            for bucket, count in whole.counts.items()
            if count > before.counts.get(bucket, 0)
        }
        since.count, since.greatest = whole.count - before.count, whole.greatest
        return {
            "count": since.count,
            **{f"p{share:.0%}"[:-1]: since.percentile(share) for share in _LATENCIES},
        }


_TOPICS: dict[str, Callable[[AdministeredBroker, Vhosts], Topic]] = {
    "overview": lambda broker, names: Topic(
        "overview", names, partial(_read_overview, broker, names, _Recent())
    ),
    "queues": lambda broker, names: Topic(
        "queues", names, partial(_read_queues, broker, names), QUEUE_COLUMNS
    ),
}
