"""Policies: matching, and their effects on queues and exchanges."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
from doubles.fakes import Client, DiskNode, Node, StoringNode, set_policy
from hypothesis import given, strategies as st

from leveret.broker.amqp.commands import Basic, Confirm, Exchange, Queue as Wire, make
from leveret.broker.amqp.tables import Table
from leveret.broker.auth.name_patterns import any_name
from leveret.broker.auth.users import VHostLimits
from leveret.broker.queue.queue import Queue
from leveret.broker.queue.settings import NO_SETTINGS
from leveret.broker.vhost.parameter_checks import ParameterError
from leveret.broker.vhost.policies import (
    CLASSIC_QUEUES,
    EXCHANGES,
    NOTHING,
    QUORUM_QUEUES,
    Policies,
    Policy,
    queue_kind,
)
from leveret.broker.vhost.vhost import VHost

QUORUM: Table = {"x-queue-type": ("longstr", "quorum")}


def policies(*rows: tuple[str, str, Mapping[str, Any], float, str], operator: bool = False) -> Policies:
    """Return policies by name, pattern, definition, priority and apply-to."""
    made = Policies("/", lambda: None)
    for row in rows:
        set_policy(made, *row, operator=operator)
    return made


def names(kept: Policies, kind: str, name: str) -> tuple[str | None, str | None]:
    """Return the names of the policy and operator policy that apply."""
    applied = kept.applied(kind, name)
    found = (applied.policy, applied.operator_policy)
    first, second = (None if policy is None else policy.name for policy in found)
    return first, second


# -- matching ----------------------------------------------------------------------------------------------------------

# policies that RabbitMQ 3.10 applied to a classic queue q0 and a quorum queue qq, after each of these
STEPS: tuple[tuple[tuple[str, Mapping[str, Any], int, str] | str, str | None, str | None], ...] = (
    (("^q", {"max-length": 5, "max-age": "1D"}, 0, "all"), None, None),
    (("^q", {"max-length": 5, "dead-letter-strategy": "at-least-once"}, 0, "all"), None, "p"),
    (("^q", {"max-length": 5, "queue-mode": "lazy"}, 0, "all"), "p", None),
    (("^q", {"max-length": 5}, 0, "all"), "p", "p"),
    (("^q", {"max-length": 5}, 0, "exchanges"), None, None),
    (("(?i)Q0", {"max-length": 5}, 0, "queues"), "p", None),
    (("Q0", {"max-length": 5}, 0, "queues"), None, None),
    (("", {"max-length": 5}, 0, "all"), "p", "p"),
    (("^$", {"max-length": 5}, 0, "all"), None, None),
    (("0$", {"max-length": 5}, 0, "classic_queues"), "p", None),
    (("", {"max-length": 5}, 0, "quorum_queues"), None, "p"),
    (("", {"max-length": 5}, 0, "streams"), None, None),
)


@pytest.mark.parametrize(("policy", "classic", "quorum"), STEPS)
def test_a_policy_applies_by_kind_keys_and_pattern(policy, classic, quorum):
    """A policy with a key that a queue's type does not support does not apply to it at all, as in RabbitMQ."""
    kept = policies(("p", *policy))

    assert classic == names(kept, CLASSIC_QUEUES, "q0")[0]
    assert quorum == names(kept, QUORUM_QUEUES, "qq")[0]


def test_delivery_limits_keep_no_policy_from_classic_queues():
    """A delivery limit applies to classic queues, unlike RabbitMQ's."""
    assert ("p", None) == names(policies(("p", "", {"delivery-limit": 3}, 0, "all")), CLASSIC_QUEUES, "q")


def test_the_highest_priority_applies():
    """The matching policy of the highest priority applies, of equals the first by name; also for exchanges."""
    kept = policies(
        ("b", "^q", {"max-length": 1}, 0, "all"),
        ("a", "^q", {"max-length": 2}, 0, "all"),
        ("z", "^q1", {"max-length": 3}, 0.5, "all"),
        ("y", "^q1", {"alternate-exchange": "ae"}, 7, "exchanges"),
    )

    assert ("a", None) == names(kept, CLASSIC_QUEUES, "q")
    assert ("z", None) == names(kept, CLASSIC_QUEUES, "q1")
    assert ("y", None) == names(kept, EXCHANGES, "q1")
    assert (None, None) == names(kept, EXCHANGES, "x")


def test_names_are_octets():
    """A pattern is searched in the octets of a name, also if they are not text."""
    kept = policies(("p", "^.$", {"max-length": 1}, 0, "all"), ("o", "\xe9", {"max-length": 1}, 1, "all"))

    assert ("p", None) == names(kept, CLASSIC_QUEUES, "\udcff")
    assert (None, None) == names(kept, CLASSIC_QUEUES, "\xe8")
    assert ("o", None) == names(kept, CLASSIC_QUEUES, "caf\xe9")


def test_the_kind_of_a_queue_is_in_its_arguments():
    """A queue counts as a quorum queue by its arguments only."""
    assert QUORUM_QUEUES == queue_kind(QUORUM)
    assert [CLASSIC_QUEUES] * 2 == [queue_kind({}), queue_kind({"x-queue-type": ("longstr", "classic")})]


ROWS = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.sampled_from(("", "^q", "1", "x$", "^q1$", "[ab]")),
        st.sampled_from(
            (
                {"max-length": 1},
                {"alternate-exchange": "ae"},
                {"queue-mode": "lazy", "max-length": 2},
                {"dead-letter-strategy": "at-most-once"},
            )
        ),
        st.integers(-1, 2),
        st.sampled_from(("all", "queues", "exchanges", "classic_queues", "quorum_queues", "streams")),
    ),
    max_size=6,
)


@given(
    rows=ROWS,
    kind=st.sampled_from((CLASSIC_QUEUES, QUORUM_QUEUES, EXCHANGES)),
    name=st.text("q1xab", max_size=3),
)
def test_matching_is_that_of_a_model(rows, kind, name):
    """The policy that applies is the first of all matching ones sorted by priority and name."""
    kept = policies(*rows)
    scopes = {"all", kind} | ({"queues"} if kind != EXCHANGES else set())
    barred = {CLASSIC_QUEUES: "dead-letter-strategy", QUORUM_QUEUES: "queue-mode", EXCHANGES: None}[kind]
    model = [
        (-priority, policy, definition)
        for policy, pattern, definition, priority, scope in {row[0]: row for row in rows}.values()
        if scope in scopes and barred not in definition and re.search(pattern, name)
    ]
    applied = kept.applied(kind, name)

    _, expected, definition = min(model, key=lambda row: row[:2]) if model else (0, None, {})
    assert (expected, None) == names(kept, kind, name)
    assert definition == applied.definition


# -- merging -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "operator", "merged"),
    [
        (
            {"max-length": 5, "queue-mode": "lazy"},
            {"max-length": 3, "message-ttl": 100},
            {"max-length": 3, "message-ttl": 100, "queue-mode": "lazy"},
        ),
        (
            {"max-length": 2, "message-ttl": 5000},
            {"max-length": 3, "message-ttl": 100},
            {"max-length": 2, "message-ttl": 100},
        ),
        ({"max-length": 1}, {"expires": 50000}, {"expires": 50000, "max-length": 1}),
        ({"overflow": "drop-head"}, {"overflow": "reject-publish"}, {"overflow": "reject-publish"}),
        ({"queue-version": 1}, {"queue-version": 2}, {"queue-version": 2}),
    ],
)
def test_an_operator_policy_limits_what_a_policy_allows(policy, operator, merged):
    """The smaller number applies, and otherwise the operator policy's value, as RabbitMQ merges them."""
    kept = policies(("p", "", policy, 0, "all"))
    set_policy(kept, "o", "", operator, operator=True)
    applied = kept.applied(CLASSIC_QUEUES, "q")

    assert ("p", "o") == names(kept, CLASSIC_QUEUES, "q")
    assert list(merged.items()) == list(applied.definition.items())


# -- setting and clearing ----------------------------------------------------------------------------------------------


def test_policies_are_listed_and_replaced_by_name():
    """A policy replaces the one of its name, and is not an operator policy of that name."""
    kept = policies(("p", "a", {"max-length": 1}, 0, "all"), ("n", "b", {"max-length": 2}, 1, "queues"))
    set_policy(kept, "p", "c", {"max-length": 3})
    set_policy(kept, "p", "d", {"max-length": 4}, operator=True)

    assert [
        Policy("/", "n", "b", {"max-length": 2}, 1, "queues", search=any_name),
        Policy("/", "p", "c", {"max-length": 3}, search=any_name),
    ] == kept.list()
    assert [Policy("/", "p", "d", {"max-length": 4}, search=any_name)] == kept.list(operator=True)
    assert kept.get("p") == kept.list()[1]
    assert kept.get("o") is None
    expected = {"pattern": "b", "definition": {"max-length": 2}, "priority": 1, "apply-to": "queues"}
    assert expected == kept.get("n").term()


def test_a_policy_that_is_not_there_cannot_be_cleared():
    """Clearing a policy that does not exist fails with the text of RabbitMQ's parameters."""
    kept = policies(("p", "", {"max-length": 1}, 0, "all"))
    with pytest.raises(ParameterError, match=r"^Parameter does not exist$"):
        kept.clear("p", operator=True)
    kept.clear("p")
    with pytest.raises(ParameterError, match=r"^Parameter does not exist$"):
        kept.clear("p")
    assert not kept
    assert NOTHING is kept.applied(CLASSIC_QUEUES, "q")


# -- in effect ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def client() -> Client:
    return Client()


def queue(client: Client, name: str, **arguments: Any) -> Queue:
    """Declare a new durable queue."""
    client.declare(
        name,
        durable=True,
        arguments={f"x-{key.replace('_', '-')}": value for key, value in arguments.items()},
    )
    return client.node.vhosts["/"].queues[name]


def exchange(
    client: Client, name: str, kind: str, *, durable: bool = False, arguments: Table | None = None
) -> None:
    client.ask(make(Exchange.Declare, 0, name, kind, False, durable, False, False, False, arguments or {}))


def of(client: Client) -> Policies:
    return client.node.vhosts["/"].policies


def test_a_queue_that_is_there_follows_at_once(client):
    """A limit applies to existing messages as soon as its policy is set, and to later ones until it is cleared."""
    found = queue(client, "q")
    for number in range(10):
        client.publish("q", b"%d" % number)
    set_policy(of(client), "p", "^q$", {"max-length": 4})
    client.node.run_turn()

    assert 4 == found.ready_count
    set_policy(of(client), "o", "", {"max-length": 2}, operator=True)
    client.node.run_turn()
    assert 2 == found.ready_count
    of(client).clear("o", operator=True)
    of(client).clear("p")
    for number in range(10):
        client.publish("q", b"%d" % number)
    assert 12 == found.ready_count
    assert NO_SETTINGS == found.settings


def test_a_time_is_given_to_messages_as_they_come(client):
    """A policy's TTL is given to messages as they arrive and kept by them, as in RabbitMQ."""
    found = queue(client, "q")
    set_policy(of(client), "p", "", {"message-ttl": 50})
    client.publish("q", b"shorter")
    set_policy(of(client), "p", "", {"message-ttl": 1000})
    client.publish("q", b"longer")
    of(client).clear("p")
    client.publish("q", b"for ever")
    set_policy(of(client), "p", "", {"message-ttl": 1})
    client.node.run_turn()

    counts = []
    for milliseconds in (49, 1, 949, 1, 5000):
        client.node.pass_time(milliseconds)
        counts.append(found.ready_count)
    assert [3, 2, 2, 1, 1] == counts


@pytest.mark.parametrize(
    ("first", "second", "alive"),
    [(300, None, False), (1500, 0, True), (600_000, 300, False), (300, 5000, True)],
)
def test_a_queue_ends_by_the_policy_that_is_there(client, first, second, alive):
    """An expiry set by a policy counts from then on; one that is cleared has no effect any more."""
    queue(client, "q")
    set_policy(of(client), "p", "", {"expires": first})
    client.node.run_turn()
    if second == 0:
        of(client).clear("p")
    elif second is not None:
        client.node.pass_time(200)
        set_policy(of(client), "p", "", {"expires": second})
    client.node.run_turn()
    client.node.pass_time(1600)

    assert alive is ("q" in client.node.vhosts["/"].queues)


def test_a_policy_that_has_a_queue_refuse_takes_nothing_away(client):
    """A policy with reject-publish applies to arrivals and removes no message."""
    found = queue(client, "q")
    for _ in range(5):
        client.publish("q", b"x")
    set_policy(of(client), "p", "", {"max-length": 2, "overflow": "reject-publish"})
    client.publish("q", b"x")

    assert 5 == found.ready_count


def test_a_new_queue_has_its_policies_from_the_start(client):
    """A new queue has its policies at once, also those not made for its name; without a match it is plain."""
    set_policy(
        of(client), "p", "^q", {"max-length": 1, "overflow": "reject-publish", "dead-letter-exchange": "d"}
    )
    set_policy(of(client), "t", "^t", {"message-ttl": 10**30, "expires": 10**30})
    settings = queue(client, "q").settings

    assert (1, "reject-publish", "d") == (
        settings.max_length,
        settings.overflow,
        settings.dead_letter_exchange,
    )
    assert NO_SETTINGS == queue(client, "r").settings
    assert (315_360_000_000,) * 2 == (
        queue(client, "t").settings.message_ttl,
        queue(client, "t2").settings.expires,
    )


def test_publishers_are_refused_from_the_next_message_on(client):
    """Cached routes of a connection end with a policy that lets the queue refuse messages."""
    found = queue(client, "q")
    client.ask(make(Confirm.Select, False))
    for _ in range(3):
        client.publish("q", b"x")
    client.sent()
    set_policy(of(client), "p", "", {"max-length": 3, "overflow": "reject-publish"})
    client.publish("q", b"x")

    assert ["1 basic.nack delivery_tag=4 requeue"] == client.sent()
    of(client).clear("p")
    client.publish("q", b"x")
    assert ["1 basic.ack delivery_tag=5"] == client.sent()
    assert 4 == found.ready_count


def test_a_queue_becomes_lazy_and_plain_again(client, monkeypatch):
    """The queue mode of a policy is applied to the backing queue, of existing queues too."""
    found = queue(client, "q")
    said = []
    monkeypatch.setattr(type(found.backing), "set_lazy", lambda _self, *, lazy: said.append(lazy))
    set_policy(of(client), "p", "", {"queue-mode": "lazy"})
    set_policy(of(client), "p", "", {"queue-mode": "lazy", "max-length": 5})
    of(client).clear("p")

    assert [True, False] == said


def test_an_exchange_gets_its_alternate_at_once(client):
    """An unroutable message goes to the alternate exchange of a policy until the policy is cleared."""
    found = queue(client, "unrouted")
    exchange(client, "ae", "fanout")
    exchange(client, "x", "direct")
    client.ask(make(Wire.Bind, 0, "unrouted", "ae", "", False, {}))
    client.publish("nowhere", b"lost", exchange="x")
    set_policy(of(client), "p", "^x$", {"alternate-exchange": "ae"}, apply_to="exchanges")
    client.publish("nowhere", b"found", exchange="x")

    assert 1 == found.ready_count
    of(client).clear("p")
    client.publish("nowhere", b"lost", exchange="x")
    assert 1 == found.ready_count


def test_what_applies_can_be_asked(client):
    """Names and effective definition are computed for listings, without being stored."""
    vhost = client.node.vhosts["/"]
    found = queue(client, "q")
    assert {} == vhost.queue_policies(found).definition
    set_policy(of(client), "p", "", {"max-length": 5, "alternate-exchange": "ae"})
    set_policy(of(client), "o", "", {"max-length": 3}, operator=True)
    applied = vhost.queue_policies(found)

    assert applied.policy is not None
    assert applied.operator_policy is not None
    assert ("p", "o") == (applied.policy.name, applied.operator_policy.name)
    assert {"alternate-exchange": "ae", "max-length": 3} == applied.definition
    assert applied == vhost.exchange_policies(vhost.exchange("amq.topic"))


def test_a_vhosts_limit_counts_as_soon_as_it_is_set():
    """A vhost's limit applies as soon as it is set."""
    node = Node()
    client = Client(node)
    client.declare("one")
    node.users.set_vhost_limits("/", VHostLimits(max_queues=1))
    (refused,) = client.declare("two")
    node.users.set_vhost_limits("/", VHostLimits(max_queues=2))
    client = Client(node)

    assert "cannot declare queue 'two': queue limit in vhost '/' (1) is reached" in refused
    assert ["1 queue.declare-ok queue=two"] == client.declare("two")


# -- after a restart ---------------------------------------------------------------------------------------------------


def vhost(node: Node) -> VHost:
    return node.vhosts["/"]


def test_policies_survive_a_restart():
    """Policies of both kinds survive a restart, in effect for existing queues and exchanges, and can be changed."""
    node = StoringNode()
    client = Client(node)
    found = queue(client, "q")
    node.commit()
    exchange(client, "x", "direct", durable=True)
    set_ = partial(set_policy, vhost(node).policies)
    set_("p", "^q\udcff?", {"max-length": 5, "queue-mode": "lazy"}, 1.5, "queues")
    set_("gone", "", {"max-length": 1})
    set_("a", "x", {"alternate-exchange": "ae"}, -3)
    set_("p", "", {"expires": 10**21, "message-ttl": 7}, operator=True)
    vhost(node).policies.clear("gone")
    node.commit()
    again = node.restarted()

    kept, expected = vhost(again).policies, vhost(node).policies
    assert expected.list() == kept.list()
    assert expected.list(operator=True) == kept.list(operator=True)
    assert found.settings == vhost(again).queues["q"].settings
    assert "ae" == vhost(again).router.exchanges["x"].alternate
    kept.clear("p")
    set_policy(kept, "p", "", {"max-length": 9}, operator=True)
    again.commit()
    third = vhost(again.restarted())
    assert ["a"] == [policy.name for policy in third.policies.list()]
    assert 9 == third.queues["q"].settings.max_length


def test_a_policy_that_is_there_already_costs_nothing():
    """A repeated import of a policy writes no row, and visits no queue."""
    node = StoringNode()
    looked = []
    kept = Policies("/", lambda: looked.append(1))
    kept.record = vhost(node).policies.record
    for _ in range(3):
        set_policy(kept, "p", "", {"max-length": 5})
    set_policy(kept, "p", "", {"max-length": 5}, operator=True)

    assert [1, 1] == looked
    assert 2 == len(node.store.pending)


def test_what_was_not_committed_is_not_there():
    """A policy is stored with the next commit, not before."""
    node = StoringNode()
    set_policy(vhost(node).policies, "p", "", {"max-length": 5})

    assert not vhost(node.restarted()).policies


def test_policies_go_with_their_vhost():
    """Policies of a deleted vhost do not apply to a later vhost of the same name."""
    node = StoringNode()
    rows = set(node.store.rows)
    made = node.directory.add_vhost("v")
    set_policy(made.policies, "p", "", {"max-length": 5})
    set_policy(made.policies, "p", "", {"max-length": 5}, operator=True)
    node.commit()
    node.directory.remove_vhost(made)
    node.commit()

    assert rows == set(node.store.rows)
    assert "v" not in node.restarted().vhosts


def test_consumers_are_left_alone(client):
    """A policy that is set and cleared does not disturb a consumer or its unacked messages."""
    found = queue(client, "q")
    client.publish("q", b"1")
    client.send(make(Basic.Consume, 0, "q", "c", False, False, False, False, None))
    client.sent()
    set_policy(of(client), "p", "", {"max-length": 0})
    client.publish("q", b"2")
    client.node.run_turn()

    assert 2 == found.unacked_count
    assert 1 == len(found.consumers)


def test_what_a_policy_limits_is_limited_after_a_restart(tmp_path):
    """Messages of an earlier run count in a policy's limits and TTLs from the start."""
    node = DiskNode(tmp_path)
    client = Client(node)
    client.declare("q", durable=True)
    client.declare("ttl", durable=True)
    node.commit()
    set_policy(vhost(node).policies, "p", "^q$", {"max-length": 3})
    set_policy(vhost(node).policies, "t", "^ttl$", {"message-ttl": 1000})
    for number in range(3):
        client.publish("q", b"%d" % number, delivery_mode=2)
        client.publish("ttl", b"%d" % number, delivery_mode=2)
    node.commit()
    node = node.restarted()
    found = vhost(node).queues
    Client(node).publish("q", b"4")
    node.read()

    assert (3, 3) == (found["q"].ready_count, found["ttl"].ready_count)
    node.pass_time(1000)
    assert (3, 0) == (found["q"].ready_count, found["ttl"].ready_count)
    node.disk.close()


def test_policy_with_delivery_limit_by_the_rules_of_4():
    """A policy with a delivery limit does not match classic queues where these have none."""
    kept = Policies("/", lambda: None, limits_classic=False)
    set_policy(kept, "p", "", {"delivery-limit": 3, "max-length": 2})
    set_policy(kept, "q", "", {"max-length": 5}, -1)

    assert {"max-length": 5} == kept.applied(CLASSIC_QUEUES, "q").definition
    assert {"delivery-limit": 3, "max-length": 2} == kept.applied(QUORUM_QUEUES, "q").definition
