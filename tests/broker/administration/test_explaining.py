"""Explanations of queues, publishes and messages."""

from collections import Counter
from typing import Any

import pytest
from doubles.fakes import Client, Node, set_policy

from leveret.broker.administration import BadRequestError, ForbiddenError, NotFoundError
from leveret.broker.amqp.commands import Basic, Confirm, make
from leveret.broker.amqp.tables import typed
from leveret.broker.auth.users import User
from leveret.broker.channel.settings import Limits
from leveret.broker.statistics.queue_health import NO_CONSUMER

MISSING = "which is missing here"
ANN = User("ann", "", ("management",))


@pytest.fixture
def node() -> Node:
    return Node()


def result_of(steps: Any) -> Any:
    """Carry out an operation that needs no read."""
    while True:
        try:
            assert next(steps) is None
        except StopIteration as stopped:
            return stopped.value


def of_queue(node: Node, name: str = "q") -> dict[str, Any]:
    return result_of(node.administration.explaining.queue(None, "/", name))


def of_publish(node: Node, *publish: Any) -> dict[str, Any]:
    """Explain a publish to an exchange with a routing key, and with headers if they are given."""
    return result_of(node.administration.explaining.publish(None, "/", *publish))


def setting(node: Node, key: str) -> tuple[Any, str, str]:
    (row,) = [each for each in of_queue(node)["settings"] if each["key"] == key]
    return row["value"], row["source"], row["rule"]


def test_each_setting_has_its_source(node):
    """An argument, a policy, an operator policy or the smallest of several numbers gives a setting."""
    topology, policies = node.administration.topology, node.vhosts["/"].policies
    topology.declare_queue(None, "/", "q", arguments={"x-max-length": 100, "x-overflow": "reject-publish"})
    set_policy(policies, "low", "^q", {"max-length": 5})
    set_policy(policies, "all", ".*", {"max-length": 50, "overflow": "drop-head", "message-ttl": 1000}, 5)
    set_policy(policies, "cap", ".*", {"max-length": 70, "message-ttl": 5000, "expires": 9000}, operator=True)
    node.run_turn()

    assert (50, "policy 'all'", "of several limits the smallest applies") == setting(node, "max-length")
    assert ("reject-publish", "argument x-overflow", "an argument goes before policies") == setting(
        node, "overflow"
    )
    assert (1000, "policy 'all'", "of several limits the smallest applies") == setting(node, "message-ttl")
    assert (9000, "operator policy 'cap'", "") == setting(node, "expires")
    found = of_queue(node)
    assert ("all", "cap") == (found["policy"], found["operator_policy"])
    reason = "'all' applies instead, with priority 5"
    assert [{"name": "low", "priority": 0, "operator": False, "reason": reason}] == found[
        "policies_without_effect"
    ]
    queue = node.vhosts["/"].queues["q"]
    assert (50, 1000, 9000, "reject-publish") == (
        queue.settings.max_length,
        queue.settings.message_ttl,
        queue.settings.expires,
        queue.settings.overflow,
    )
    assert (
        "  max-length = 50   from policy 'all', not 100 of argument x-max-length, 70 of operator policy 'cap': "
        "of several limits the smallest applies"
    ) in found["lines"]
    assert f"  policy 'low' matches this name and is not in effect: {reason}" in found["lines"]


def test_a_policy_that_matches_the_name_only_says_why(node):
    """It is for another kind, or has a key that the kind of queue does not have; one of another name is not told."""
    arguments = {"x-queue-type": "quorum"}
    node.administration.topology.declare_queue(None, "/", "shop.orders", arguments=arguments)
    policies = node.vhosts["/"].policies
    dead = {"dead-letter-exchange": "dlx"}
    set_policy(policies, "dlx", r"^shop\.", {**dead, "queue-mode": "lazy"})
    set_policy(policies, "classic", "orders", dead, apply_to="classic_queues")
    set_policy(policies, "routes", ".*", {"alternate-exchange": "x"}, apply_to="exchanges")
    set_policy(policies, "other", "^mail", dead)

    assert {
        "classic": "it applies to classic_queues only",
        "dlx": "quorum queues do not have queue-mode, and a policy applies as a whole",
        "routes": "it applies to exchanges only",
    } == {each["name"]: each["reason"] for each in of_queue(node, "shop.orders")["policies_without_effect"]}


@pytest.mark.parametrize("argument", ["reject-publish", None])
@pytest.mark.parametrize("policy", ["drop-head", None])
@pytest.mark.parametrize("operator", ["reject-publish", None])
@pytest.mark.parametrize("numbers", [(1, 2, 3), (3, 1, 2), (2, 3, 1), (None, 2, 1), (1, None, None)])
def test_the_source_is_the_one_that_has_an_effect(node, argument, policy, operator, numbers):
    """The value of the named source is the one in effect, for all combinations."""
    given = {"x-overflow": argument, "x-max-length": numbers[0]}
    given = {key: value for key, value in given.items() if value is not None}
    node.administration.topology.declare_queue(None, "/", "q", arguments=given)
    for is_operator, overflow, length in ((False, policy, numbers[1]), (True, operator, numbers[2])):
        definition = {"overflow": overflow, "max-length": length}
        definition = {key: value for key, value in definition.items() if value is not None}
        if definition:
            set_policy(node.vhosts["/"].policies, "p", ".*", definition, operator=is_operator)
    node.run_turn()
    settings = node.vhosts["/"].queues["q"].settings

    rows = {row["key"]: row for row in of_queue(node)["settings"]}
    assert settings.max_length == rows["max-length"]["value"] == rows["max-length"]["given"]
    if "overflow" in rows:
        assert settings.overflow == rows["overflow"]["value"] == rows["overflow"]["given"]


def test_what_looks_wrong_is_named(node):
    """Unknown arguments, a missing dead letter exchange and settings without effect are warnings."""
    topology = node.administration.topology
    arguments = {"x-max-lenght": 5, "x-stream-filter-size-bytes": 20, "x-dead-letter-exchange": "dlx"}
    topology.declare_queue(None, "/", "q", arguments=arguments | {"x-overflow": "reject-publish"})
    Client(node).publish("q", b"x")

    assert [
        "unknown argument 'x-max-lenght' has no effect: did you mean 'x-max-length'?",
        "argument 'x-stream-filter-size-bytes' has no effect: only streams of RabbitMQ have it",
        "the dead letter exchange 'dlx' does not exist: dead letters are deleted",
        "overflow is 'reject-publish' without max-length or max-length-bytes: it has no effect",
    ] == of_queue(node)["warnings"]
    trouble = f"no consumer (1 ready message, 0 unacked): {NO_CONSUMER.advice}"
    assert [trouble] == of_queue(node)["troubles"]
    assert f"warning: {trouble}" in of_queue(node)["lines"]
    assert ("critical", "no consumer") == tuple(of_queue(node)["health"][key] for key in ("state", "reason"))
    topology.declare_queue(
        None, "/", "r", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "gone"}
    )
    found = of_queue(node, "r")
    assert ["no queue gets the dead letters: exchange '' does not route the key 'gone'"] == found["warnings"]
    topology.declare_queue(None, "/", "gone")
    assert (
        "discarded messages go to exchange (default) with routing key 'gone', which reaches gone"
        in of_queue(node, "r")["lines"]
    )
    assert "settings: all are the defaults" in of_queue(node, "gone")["lines"]


def test_the_way_of_a_publish(node):
    """Each exchange of the way is shown with the bindings that match, and each queue with its way."""
    topology = node.administration.topology
    for name, kind in (("in", "topic"), ("all", "fanout"), ("left", "fanout"), ("h", "headers")):
        arguments = {"alternate-exchange": "left"} if name == "in" else None
        topology.declare_exchange(None, "/", name, kind, arguments=arguments)
    for name in ("a", "b", "c", "d"):
        topology.declare_queue(None, "/", name)
    topology.bind(None, "/", "in", "a", routing_key="order.*")
    topology.bind(None, "/", "in", "b", routing_key="order.#")
    topology.bind(None, "/", "in", "all", routing_key="order.new", destination_type="exchange")
    topology.bind(None, "/", "all", "c")
    topology.bind(None, "/", "left", "d")
    topology.bind(None, "/", "h", "a", arguments={"x-match": "all", "type": "pdf"})

    found = of_publish(node, "in", "order.new")

    assert {"a": ["in"], "b": ["in"], "c": ["in", "all"]} == {
        each["name"]: each["way"] for each in found["queues"]
    }
    assert {("a", "order.*"), ("b", "order.#"), ("all", "order.new")} == {
        (each["destination"], each["routing_key"]) for each in found["steps"][0]["matches"]
    }
    assert "    'c' (0 ready, 0 consumers) by 'in' -> 'all'" in found["lines"]
    lost = of_publish(node, "in", "invoice")
    assert [["in", "left"]] == [each["way"] for each in lost["queues"]]
    assert "    its alternate exchange 'left' takes it" in lost["lines"]
    assert ["a"] == [each["name"] for each in of_publish(node, "h", "", {"type": "pdf"})["queues"]]
    assert not of_publish(node, "h", "", {"type": "doc"})["routed"]
    assert (
        "  reaches no queue: it is dropped, or returned to its publisher if it is mandatory"
        in (of_publish(node, "", "nowhere")["lines"])
    )
    assert ["a"] == [each["name"] for each in of_publish(node, "", "a")["queues"]]
    with pytest.raises(NotFoundError, match="no exchange 'none'"):
        of_publish(node, "none", "")
    with pytest.raises(BadRequestError, match="invalid headers"):
        of_publish(node, "h", "", {"x": object()})


def test_a_publish_is_explained_as_it_is_routed(node):
    """The queues of the explanation are those that messages reach, also around circles of exchanges."""
    topology = node.administration.topology
    for name in ("x", "y"):
        topology.declare_exchange(None, "/", name, "direct")
    for name in ("a", "b"):
        topology.declare_queue(None, "/", name, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    topology.bind(None, "/", "x", "y", routing_key="k", destination_type="exchange")
    topology.bind(None, "/", "y", "x", routing_key="k", destination_type="exchange")
    topology.bind(None, "/", "y", "a", routing_key="k")
    topology.bind(None, "/", "x", "b", routing_key="k")
    client = Client(node)
    client.publish("k", b"1", exchange="x")
    found = of_publish(node, "x", "k")

    queues = node.vhosts["/"].queues
    assert {"a", "b"} == {each["name"] for each in found["queues"]}
    assert (1, 1) == (queues["a"].ready_count, queues["b"].ready_count)
    assert {"it is full (1 of 1 messages) and rejects publishes"} == {
        each["refuses"] for each in found["queues"]
    }


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx", "drop-head"])
@pytest.mark.parametrize(
    ("limits", "full"),
    [
        ({"x-max-length-bytes": 10}, "10 of 10 bytes"),
        ({"x-max-length-bytes": 9}, ""),
        ({"x-max-length-bytes": 11}, ""),
        ({"x-max-length-bytes": 10, "x-max-length": 3}, "10 of 10 bytes"),
        ({"x-max-length-bytes": 11, "x-max-length": 2}, "2 of 2 messages"),
        ({"x-max-length-bytes": 0}, "0 of 0 bytes"),
    ],
)
def test_a_queue_that_is_full_by_bytes(node, overflow, limits, full):
    """A queue that is full by either limit does with a message of one byte what the explanation says."""
    arguments = {"x-overflow": overflow, **limits}
    node.administration.topology.declare_queue(None, "/", "q", arguments=arguments)
    client = Client(node)
    for _ in range(2):
        client.publish("q", b"12345")
    queue = node.vhosts["/"].queues["q"]
    (found,) = of_publish(node, "", "q")["queues"]
    before = queue.ready_count
    client.publish("q", b"1")

    effect = ": its oldest message is dropped" if overflow == "drop-head" else " and rejects publishes"
    assert (f"it is full ({full}){effect}" if full else "") == found["refuses"]
    assert bool(full) is (queue.ready_count <= before)


def test_a_delayed_publish(node):
    """A message with a delay is kept first; the way is that of when it is due."""
    topology = node.administration.topology
    topology.declare_exchange(None, "/", "x", "x-delayed-message", arguments={"x-delayed-type": "direct"})
    topology.declare_queue(None, "/", "q")
    topology.bind(None, "/", "x", "q", routing_key="k")

    found = of_publish(node, "x", "k", {"x-delay": 5000})

    assert (5000, ["q"]) == (found["delay"], [each["name"] for each in found["queues"]])
    assert "  'x' keeps it for 5000 ms, and then:" in found["lines"]


def test_a_publish_that_is_delayed_on_its_way(node):
    """Each exchange that keeps the message is named; what is behind it gets the message after that, and once more."""
    topology = node.administration.topology
    topology.declare_exchange(None, "/", "x", "fanout")
    for name in ("del", "later"):
        topology.declare_exchange(
            None, "/", name, "x-delayed-message", arguments={"x-delayed-type": "fanout"}
        )
        topology.bind(None, "/", "x", name, destination_type="exchange")
    topology.bind(None, "/", "del", "later", destination_type="exchange")
    for queue, exchanges in (("both", ("x", "del")), ("dq", ("del",)), ("end", ("later",))):
        topology.declare_queue(None, "/", queue)
        for exchange in exchanges:
            topology.bind(None, "/", exchange, queue)
    found = of_publish(node, "x", "", {"x-delay": 60000})
    client = Client(node)
    client.publish("", b"1", exchange="x", headers={"x-delay": ("signedint", 60000)})
    at_once = {queue.name: queue.ready_count for queue in node.vhosts["/"].queues.values()}
    node.pass_time(60000)
    later = {queue.name: queue.ready_count for queue in node.vhosts["/"].queues.values()}

    arrivals = sorted([(each["name"], each["delay"] or 0, each["way"]) for each in found["queues"]])
    assert [
        ("both", 0, ["x"]),
        ("both", 60000, ["x", "del"]),
        ("dq", 60000, ["x", "del"]),
        ("end", 60000, ["x", "del", "later"]),
        ("end", 60000, ["x", "later"]),
    ] == arrivals
    assert at_once == {"both": 1, "dq": 0, "end": 0}
    assert later == Counter([name for name, _, _ in arrivals])
    assert [("x", None), ("del", 60000), ("later", None), ("later", 60000)] == [
        (each["exchange"], each["delay"]) for each in found["steps"]
    ]
    assert (60000, 3) == (found["delay"], found["queue_count"])
    assert "    'dq' (0 ready, 0 consumers) by 'x' -> 'del', after 60000 ms" in found["lines"]
    at_once = of_publish(node, "x", "")
    assert (None, 3) == (at_once["delay"], len(at_once["queues"]))


def test_a_delayed_publish_without_a_queue(node):
    """It is never returned: it has been taken for its delay, and is dropped when that is over."""
    node.administration.topology.declare_exchange(
        None, "/", "x", "x-delayed-message", arguments={"x-delayed-type": "direct"}
    )
    found = of_publish(node, "x", "k", {"x-delay": 5})

    assert "  reaches no queue: it is dropped then" == found["lines"][-1]
    assert (5, False) == (found["delay"], found["routed"])


def reached(node: Node, exchange: str, key: str, headers: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the queues that a publish is said to reach, and those that it reaches within a minute."""
    found = of_publish(node, exchange, key, headers)
    Client(node).publish(key, exchange=exchange, headers=typed(headers))
    node.pass_time(60000)
    queues = node.vhosts["/"].queues.values()
    gone = [queue.name for queue in queues for _ in range(queue.ready_count)]
    for queue in queues:
        queue.purge()
    return sorted([each["name"] for each in found["queues"]]), sorted(gone)


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_copies_for_other_keys(node, header):
    """Every key is routed at each exchange, as that of the publish, and each destination has the key that led there."""
    topology = node.administration.topology
    for name, kind in (("d", "direct"), ("t", "topic"), ("f", "fanout")):
        topology.declare_exchange(None, "/", name, kind)
    for name in ("a1", "b1", "c1"):
        topology.declare_queue(None, "/", name)
        topology.bind(None, "/", "d", name, routing_key=name)
        topology.bind(None, "/", "t", name, routing_key=f"{name[0]}.*")
    topology.bind(None, "/", "d", "f", routing_key="c1", destination_type="exchange")
    topology.bind(None, "/", "f", "b1")
    for exchange, key, others in (
        ("", "a1", ["b1", "none"]),
        ("d", "a1", ["c1"]),
        ("t", "a.x", ["b.x", "a.y"]),
        ("f", "a1", ["c1"]),
        ("d", "none", []),
    ):
        explained, real = reached(node, exchange, key, {header: others})
        assert explained == real, exchange

    def explain(exchange: str, key: str, *others: str) -> dict[str, Any]:
        return of_publish(node, exchange, key, {header: list(others)})

    found = explain("t", "a.x", "b.x")
    assert [("a1", "a.*", "a.x"), ("b1", "b.*", "b.x")] == [
        (each["destination"], each["routing_key"], each["matched_key"])
        for each in found["steps"][0]["matches"]
    ]
    assert (["b.x"], header == "BCC") == (found["extra_keys"], found["removes_bcc"])
    assert "a message for exchange 't' with routing key 'a.x', and 'b.x' in CC or BCC:" == found["lines"][0]
    assert "    queue 'b1' by 'b.*' for the key 'b.x'" in found["lines"]
    assert (header == "BCC") is ("  consumers get it without its header BCC" in found["lines"])
    lines = explain("", "a1", "b1", "none")["lines"]
    assert "  (default) finds 2 queues for 3 keys" in lines
    assert "    queue 'b1' for the key 'b1'" in lines
    assert "  (default) finds the queue of that name" in explain("", "a1")["lines"]
    assert "    queue 'b1' by ''" in explain("f", "a1", "b1")["lines"]


@pytest.mark.parametrize("header", ["CC", "BCC"])
@pytest.mark.parametrize("goes_elsewhere", [False, True])
def test_copies_of_a_delayed_publish(node, header, goes_elsewhere):
    """BCC is lost behind an exchange that keeps a message if a queue got it at once, and CC never is."""
    topology = node.administration.topology
    topology.declare_exchange(None, "/", "x", "fanout")
    topology.declare_exchange(None, "/", "del", "x-delayed-message", arguments={"x-delayed-type": "direct"})
    topology.bind(None, "/", "x", "del", destination_type="exchange")
    for name in ("a", "b", "now"):
        topology.declare_queue(None, "/", name)
        topology.bind(None, "/", "del", name, routing_key=name)
    if goes_elsewhere:
        topology.bind(None, "/", "x", "now")

    explained, real = reached(node, "x", "a", {header: ["b"], "x-delay": 5})

    assert explained == real
    assert ("b" in real) is (header == "CC" or not goes_elsewhere)


def test_publishes_that_are_refused_are_not_explained():
    """Keys that are no list, or too many of them, are errors for a client, and here with the same words."""
    node = Node(limits=Limits(cc_keys=2))
    publish = node.administration.explaining.publish
    with pytest.raises(BadRequestError, match='unacceptable_type_in_header,"CC",longstr'):
        publish(None, "/", "", "q", {"CC": "b1"})
    with pytest.raises(BadRequestError, match=r"3 keys in CC and BCC, more than limits.cc_keys \(2\)"):
        publish(None, "/", "", "q", {"CC": ["a", "b"], "BCC": ["c"]})
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"a": deep}
    for headers in ({"x" * 300: 1}, {"x": {5: 1}}, deep):
        with pytest.raises(BadRequestError, match="invalid headers"):
            publish(None, "/", "", "q", headers)


def of_message(node: Node, number: int, queue: str = "q", state: Any = "ready") -> list[str]:
    return result_of(node.administration.explaining.message(None, "/", queue, number, state))["lines"]


def test_why_a_message_waits(node):
    """Consumers without room, messages before it, its time to live and its dead letter exchange are named."""
    topology = node.administration.topology
    topology.declare_exchange(None, "/", "events", "topic")
    topology.declare_queue(None, "/", "q", arguments={"x-dead-letter-exchange": "dlx", "x-delivery-limit": 3})
    topology.bind(None, "/", "events", "q", routing_key="order.*")
    client = Client(node)
    for number in range(10):
        client.publish("order.new", b"%d" % number, exchange="events", expiration="60000")

    assert [
        "ready message 3 of queue 'q': 1 byte",
        "came by exchange 'events' with routing key 'order.new', by the binding 'order.*'",
        "2 messages before it",
        "the queue has no consumer",
        "expires at 1970-01-01T00:17:40Z, in 60 s",
        "was returned 0 of 3 times (delivery-limit)",
        "if it is rejected or expires, it goes to exchange 'dlx'",
    ] == of_message(node, 3)
    client.send(make(Basic.Qos, 0, 2, False))
    client.consume("q", "worker")
    assert "consumer 'worker' has all that its prefetch count allows: 2 unacked of 2" in of_message(node, 1)
    (line,) = [line for line in of_message(node, 2, state="unacked") if "worker" in line]
    assert line.endswith("and has not acknowledged it")
    assert "7 messages before it" in of_message(node, 8)
    for number, state in ((9, "ready"), (3, "unacked"), (1, "delayed")):
        with pytest.raises(NotFoundError, match=f"no {state} message {number} in queue 'q'"):
            of_message(node, number, state=state)
    with pytest.raises(BadRequestError):
        node.administration.explaining.message(None, "/", "q", 0).send(None)


def test_how_a_dead_letter_came(node):
    """A dead letter is explained by its deaths."""
    topology = node.administration.topology
    topology.declare_queue(None, "/", "failed")
    topology.declare_queue(
        None, "/", "q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "failed"}
    )
    client = Client(node)
    client.publish("q", b"x")
    client.send(make(Basic.Get, 0, "q", False))
    client.send(make(Basic.Reject, 1, False))

    lines = of_message(node, 1, "failed")

    assert "came by the default exchange with routing key 'failed'" in lines
    assert "died once in queue 'q': rejected by a consumer (first at 1970-01-01T00:16:40Z)" in lines
    assert "if it is rejected or expires, it is deleted: the queue has no dead letter exchange" in lines
    assert not [line for line in lines if "retried" in line]


@pytest.mark.parametrize(("retries", "line"), [(1, "was retried once"), (3, "was retried 3 times")])
def test_retries_of_a_message_are_told(node, retries, line):
    """As its header counts them."""
    node.administration.topology.declare_queue(None, "/", "q")
    Client(node).publish("q", b"x", headers={"x-leveret-retries": ("long", retries)})

    assert line in of_message(node, 1, "q")


def test_a_message_is_found_by_its_number_from_both_ends(node):
    """Message N of an explanation is message N of a peek."""
    client = Client(node)
    client.declare("q")
    for number in range(700):
        client.publish("q", b"x" * number)

    for number in (1, 2, 349, 350, 351, 352, 699, 700):
        assert of_message(node, number)[0].startswith(
            f"ready message {number} of queue 'q': {number - 1} byte"
        )


def test_rights(node):
    """Explaining a queue needs access to the vhost; explaining a message the permission to read the queue."""
    node.users.add(ANN)
    explaining = node.administration.explaining
    node.administration.topology.declare_queue(None, "/", "q")
    for call in (lambda: explaining.queue(ANN, "/", "q"), lambda: explaining.publish(ANN, "/", "", "q")):
        with pytest.raises(ForbiddenError):
            call()
    node.users.set_permissions("ann", "/", "", "", "mine")
    assert result_of(explaining.queue(ANN, "/", "q"))["name"] == "q"
    with pytest.raises(ForbiddenError, match="read access to queue 'q'"):
        result_of(explaining.message(ANN, "/", "q", 1))
    with pytest.raises(NotFoundError, match="no queue 'none'"):
        explaining.queue(None, "/", "none")


def test_a_wide_route_is_explained_in_steps(node):
    """An exchange with very many destinations and bindings is explained in small steps, and shown in part."""
    topology = node.administration.topology
    topology.declare_exchange(None, "/", "x", "topic")
    for number in range(600):
        topology.declare_queue(None, "/", f"q{number}")
        topology.bind(None, "/", "x", f"q{number}", routing_key="#")
    for number in range(400):
        topology.bind(None, "/", "x", "q0", routing_key=f"a.{number}")
    steps = node.administration.explaining.publish(None, "/", "x", "a.1")

    for _ in range(100):
        assert next(steps) is None
    found = result_of(steps)
    assert (600, 100) == (found["queue_count"], len(found["queues"]))
    assert "    and 580 others" in found["lines"]


def test_promises_and_holders_are_counted(node):
    """Of a queue that confirms on acknowledgement, those that are open; of each consumer, its oldest delivery."""
    node.administration.topology.declare_queue(None, "/", "q", arguments={"x-confirm-mode": "consumer-ack"})
    client = Client(node)
    client.ask(make(Confirm.Select, False))
    client.consume("q", "holder")
    client.publish("q", b"one")
    client.publish("q", b"two")
    node.pass_time(1000)
    for connection in node.clients.connections:
        for channel in connection.channels.values():
            channel.overdue(node.now(), 0)
    node.pass_time(5000)
    found = of_queue(node)

    assert {"open": 2, "accepted": 0, "refused": 0} == found["promises"]
    (holder,) = found["holders"]
    assert ("holder", 2, 5) == (
        holder["consumer_tag"],
        holder["messages_unacknowledged"],
        round(holder["unacked_for"]),
    )


def test_a_queue_that_confirms_at_once_has_no_promises(node):
    """Nor a consumer without unacknowledged messages."""
    node.administration.topology.declare_queue(None, "/", "q")
    Client(node).consume("q", "idle")
    found = of_queue(node)

    assert (None, []) == (found["promises"], found["holders"])


def test_a_publish_for_which_one_queue_is_chosen(node):
    """The queue that gets it is said with what has chosen it, and a key in CC chooses no second one."""
    topology = node.administration.topology
    for kind, key, arguments, choice in (
        ("x-consistent-hash", "1", {}, "the hash of its routing key"),
        ("x-consistent-hash", "2", {"hash-header": "h"}, "the hash of its header 'h'"),
        (
            "x-consistent-hash",
            "3",
            {"hash-property": "message_id"},
            f"the hash of its property 'message_id', {MISSING}",
        ),
        ("x-modulus-hash", "", {}, "the hash of its routing keys"),
        ("x-random", "", {}, "chance; the next message may go to another one"),
        ("x-delayed-message", "1", {"x-delayed-type": "x-consistent-hash"}, "the hash of its routing key"),
    ):
        topology.declare_exchange(None, "/", "x", kind, arguments=arguments)
        for name in "abc":
            topology.declare_queue(None, "/", name)
            topology.bind(None, "/", "x", name, routing_key=key)
        for number in range(10):
            headers = {"CC": ["c"], "h": number}
            found = of_publish(node, "x", f"k{number}", headers)
            (step,) = found["steps"]
            assert (1, choice) == (found["queue_count"], step["choice"])
            assert f"  'x' ({kind}): one of its 3 bindings is chosen by {choice}" == found["lines"][1]
            assert found["lines"][2].startswith("    queue '")
            if "random" not in kind:
                explained, real = reached(node, "x", f"k{number}", headers)
                assert explained == real
        topology.delete_exchange(None, "/", "x")
    topology.declare_exchange(None, "/", "x", "x-random")
    assert (
        "  'x' (x-random): 0 of its 0 bindings' destinations match" == of_publish(node, "x", "k")["lines"][1]
    )
