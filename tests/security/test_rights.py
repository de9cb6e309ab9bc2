"""SEC-14 to SEC-19: what a user may publish, see and use, and what a pattern may cost (docs/security.md)."""

import time
from typing import Any

import msgspec
import pytest
from doubles.fakes import Client, Node, StoringNode, queue_declare

from leveret.broker.administration import BadRequestError
from leveret.broker.amqp.commands import Exchange, Queue, Tx, make
from leveret.broker.auth.name_patterns import Patterns
from leveret.broker.channel.settings import Compatibility
from leveret.broker.config.config import UserConfig

EVERYTHING = (".*", ".*", ".*")
NOTHING = ("^$", "^$", "^$")


def node_with(*permissions: tuple[str, str, str], **settings: Any) -> Node:
    """A broker with guest, and users `u0`, `u1` and so on, who have these permissions in the vhost `/`."""
    users = (
        UserConfig("guest", "guest", ("administrator",), {"/": EVERYTHING}),
        *(UserConfig(f"u{at}", f"u{at}", (), {"/": rights}) for at, rights in enumerate(permissions)),
    )
    return Node(users=users, **settings)


def bound(node: Node) -> Client:
    """A client with a queue `all` that gets everything published to amq.topic."""
    client = Client(node)
    client.declare("all")
    client.send(make(Queue.Bind, 0, "all", "amq.topic", "#", False, {}))
    client.sent()
    return client


def ready(node: Node, queue: str = "all") -> int:
    return node.vhosts["/"].queues[queue].ready_count


def exchange_declare(name: str, *, passive: bool = False, **arguments: Any) -> Any:
    return make(Exchange.Declare, 0, name, "topic", passive, False, False, False, False, arguments)


# -- SEC-17: authorisation --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["CC", "BCC"])
@pytest.mark.parametrize("at", [0, 1])
def test_sec_17_topic_permissions_hold_for_every_key(header, at):
    """A message with a forbidden key in CC or BCC, wherever it stands among allowed ones, is 403 and goes nowhere."""
    node = node_with(EVERYTHING)
    node.users.set_topic_permissions("u0", "/", "amq.topic", "^ok[.]", "^ok[.]")
    bound(node)
    user = Client(node, user="u0", port=50001)
    keys = ["ok.b"]
    keys.insert(at, "secret.b")
    copies = {header: ("array", [("longstr", key) for key in keys])}
    user.publish("ok.a", exchange="amq.topic", headers=copies)

    (sent,) = user.sent()
    assert (
        "ACCESS_REFUSED - write access to topic 'secret.b' in exchange 'amq.topic' in vhost '/' refused for user 'u0'"
        in sent
    )
    assert 0 == ready(node)


def test_sec_17_allowed_keys_are_copied():
    """Keys in CC and BCC that the user may write are routed as before."""
    node = node_with(EVERYTHING)
    node.users.set_topic_permissions("u0", "/", "amq.topic", "^ok[.]", "^ok[.]")
    bound(node)
    user = Client(node, user="u0", port=50001)
    user.publish("ok.a", exchange="amq.topic", headers={"CC": ("array", [("longstr", "ok.b")])})

    assert ([], 1) == (user.sent(), ready(node))


def test_sec_17_topic_permissions_hold_in_transactions():
    """A forbidden key in CC closes the channel at the publish, also where the publish waits for a commit."""
    node = node_with(EVERYTHING)
    node.users.set_topic_permissions("u0", "/", "amq.topic", "^ok[.]", "^ok[.]")
    bound(node)
    user = Client(node, user="u0", port=50001)
    user.ask(make(Tx.Select))
    user.publish("ok.a", exchange="amq.topic", headers={"CC": ("array", [("longstr", "secret.b")])})

    assert "ACCESS_REFUSED - write access to topic 'secret.b'" in user.sent()[0]


def test_sec_17_an_alternate_exchange_is_read_and_written():
    """Declaring an exchange with an alternate one takes the right to read it and to write to the other."""
    declare = exchange_declare("mine", **{"alternate-exchange": ("longstr", "others")})
    texts = []
    for rights in (("^mine$", "^$", ".*"), ("^mine$", ".*", "^$"), ("^mine$", "^others$", "^mine$")):
        user = Client(node_with(rights), user="u0")
        texts.append(user.ask(declare)[0])

    assert "write access to exchange 'others' in vhost '/' refused" in texts[0]
    assert "read access to exchange 'mine' in vhost '/' refused" in texts[1]
    assert "1 exchange.declare-ok" == texts[2]


@pytest.mark.parametrize(
    ("rights", "allowed"),
    [
        (("^thing$", "^$", "^$"), True),
        (("^$", "^thing$", "^$"), True),
        (("^$", "^$", "^thing$"), True),
        (NOTHING, False),
        (("^other$", "^other$", "^other$"), False),
    ],
)
def test_sec_17_a_passive_declaration_needs_any_right(rights, allowed):
    """A passive declaration succeeds, and gives the depth, only for users with some right for the name."""
    node = node_with(rights)
    owner = Client(node)
    owner.declare("thing")
    owner.ask(exchange_declare("thing"))
    answers = []
    for port, method in enumerate(
        (queue_declare("thing", passive=True), exchange_declare("thing", passive=True)), 1
    ):
        answers.append(Client(node, user="u0", port=50000 + port).ask(method)[0])

    refused = [
        f"configure access to {kind} 'thing' in vhost '/' refused for user 'u0'"
        for kind in ("queue", "exchange")
    ]
    if allowed:
        assert ["1 queue.declare-ok queue=thing", "1 exchange.declare-ok"] == answers
    else:
        assert [True, True] == [text in answer for text, answer in zip(refused, answers, strict=True)]


def test_sec_17_a_passive_declaration_tells_nothing_of_names():
    """Without a right the answer for a queue that exists is that for one that does not."""
    node = node_with(NOTHING)
    Client(node).declare("here")
    answers = [
        Client(node, user="u0", port=port).ask(queue_declare(name, passive=True))[0]
        for port, name in ((50001, "here"), (50002, "gone"))
    ]

    assert answers[0] == answers[1].replace("'gone'", "'here'")


def test_sec_17_passive_declarations_may_be_opened():
    """Passive declarations need no right with `compatibility.passive_declare = open`, as in RabbitMQ 3."""
    node = node_with(NOTHING, compatibility=Compatibility(passive_declare="open"))
    Client(node).declare("here")

    user = Client(node, user="u0", port=50001)
    assert ["1 queue.declare-ok queue=here"] == user.declare("here", passive=True)
    assert ["1 exchange.declare-ok"] == user.ask(exchange_declare("amq.topic", passive=True))


# -- SEC-19: patterns that take exponential time ----------------------------------------------------------------------

COSTLY = ("(?=a)(a+)+$", "(a{1,1000}){1,1000}$", "((((a{0,50}){0,50}){0,50}){0,50})$", "^(?!amq)(?!x)(a+)+$")


@pytest.mark.parametrize("pattern", COSTLY)
def test_sec_19_costly_patterns_are_refused(pattern):
    """Permissions, topic permissions, policies and operator policies refuse what RE2 cannot match in linear time."""
    node = Node()
    users, policies = node.administration.users, node.administration.policies
    term = {"pattern": pattern, "definition": {"max-length": 1}}
    operations = (
        lambda: users.set_permissions(None, "/", "guest", configure=".*", write=pattern, read=".*"),
        lambda: users.set_topic_permissions(None, "/", "guest", "amq.topic", write=".*", read=pattern),
        lambda: policies.set(None, "/", "p", term),
        lambda: policies.set(None, "/", "p", term, operator=True),
        lambda: node.administration.definitions.import_file(
            None, msgspec.json.encode({"policies": [{"vhost": "/", "name": "p", "apply-to": "all", **term}]})
        ),
    )
    for operation in operations:
        with pytest.raises(BadRequestError) as caught:
            operation()
        assert pattern in str(caught.value)


def test_sec_19_a_name_costs_little_whatever_the_pattern():
    """The costliest patterns that are taken match the longest name within 50 ms of processor time."""
    patterns = (
        "(a+)+$",
        "^(?!(a+)+b)(a+)+$",
        "(?:(?:.{0,9}){0,9}){0,9}$",
        "(?:(?:.?){0,999})x",
        "(.{0,1000})$",
    )
    for pattern in patterns:
        search = Patterns().compile(pattern)
        best = []
        for _ in range(3):
            began = time.process_time()
            search(b"a" * 254 + b"!")
            best.append(time.process_time() - began)
        assert min(best) < 0.05, pattern


def test_sec_19_patterns_have_a_length():
    """A pattern of more than 1 KiB is refused by every operation that takes one."""
    users = Node().administration.users
    with pytest.raises(BadRequestError, match="it is 1025 bytes long, more than 1024"):
        users.set_permissions(None, "/", "guest", configure="a" * 1025, write="", read="")


def test_sec_19_stored_patterns_do_not_stop_a_start(caplog):
    """A store with patterns of an older version opens; each that cannot be used is logged and matches nothing."""
    old = StoringNode(compatibility=Compatibility(python_patterns=True))
    users, policies = old.administration.users, old.administration.policies
    bad = "^(a+)\\1$"
    users.set_permissions(None, "/", "guest", configure=bad, write=".*", read=".*")
    users.set_topic_permissions(None, "/", "guest", "amq.topic", write=".*", read=bad)
    term = {"pattern": bad, "definition": {"max-length": 1}}
    policies.set(None, "/", "p", term)
    policies.set(None, "/", "o", term, operator=True)
    old.commit()
    caplog.clear()
    node = StoringNode(old.store.rows)

    rights = node.users.permissions("guest", "/")
    assert (False, True, True) == tuple(rights.check(kind, "aa") for kind in ("configure", "write", "read"))
    topics = node.users.topic_permissions("guest", "/")
    assert (True, False) == (
        topics.check("amq.topic", "write", "aa"),
        topics.check("amq.topic", "read", "aa"),
    )
    assert (None, None) == (
        (applied := node.vhosts["/"].policies.applied("classic_queues", "aa")).policy,
        applied.operator_policy,
    )
    for owner in (
        "permissions of user 'guest' in vhost '/'",
        "topic permissions of user 'guest' for exchange 'amq.topic' in vhost '/'",
        "policy 'p' in vhost '/'",
        "operator policy 'o' in vhost '/'",
    ):
        assert 1 == sum(
            record.getMessage().startswith(f"{owner}: invalid regular expression '{bad}'")
            for record in caplog.records
        )
    node.administration.users.set_topic_permissions(None, "/", "guest", "other", write="^a", read="^a")
    assert not node.users.topic_permissions("guest", "/").check("amq.topic", "read", "aa")
    assert node.restarted().users.topic_permissions("guest", "/").check("other", "read", "a")
