"""Durable metadata: rows that are written, when they are removed, and what a restart restores."""

from collections import Counter
from typing import Any

import pytest
from doubles.fakes import Client, ManualJournal, StoringNode, hurry, queue_declare, set_policy
from hypothesis import given, settings, strategies as st

from leveret.broker.amqp.commands import Exchange, Queue, make
from leveret.broker.amqp.tables import encode_table
from leveret.broker.auth.passwords import Password, check_password
from leveret.broker.auth.users import User, UserLimits, VHostLimits
from leveret.broker.metadata.recorder import Definitions, NullJournal
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.scheduling.turn import Turn
from leveret.broker.server.server import Server
from leveret.broker.vhost.vhost import VHost
from leveret.storage.errors import DamagedError, UnknownFormatError
from leveret.storage.queues.memory_queue import MemoryQueue
from leveret.storage.store.metadata_rows import (
    BindingRow,
    ExchangeRow,
    GlobalParameterRow,
    ParameterRow,
    PolicyRow,
    QueueRow,
    VHostRow,
    decode,
    encode,
)

EMPTY = encode_table({})


@pytest.fixture
def node() -> StoringNode:
    return StoringNode()


def ask(client: Client, *methods: Any) -> list[str]:
    for method in methods:
        client.send(method)
        client.node.commit()
    return client.sent()


def declare(name: str, kind: str = "direct", *, durable: bool = True, auto_delete: bool = False) -> Any:
    return make(Exchange.Declare, 0, name, kind, False, durable, auto_delete, False, False, {})


def bind(queue: str, exchange: str, key: str = "k", arguments: Any = None) -> Any:
    return make(Queue.Bind, 0, queue, exchange, key, False, arguments or {})


def bind_exchange(destination: str, source: str, key: str = "k") -> Any:
    return make(Exchange.Bind, 0, destination, source, key, False, {})


def delete(queue: str) -> Any:
    return make(Queue.Delete, 0, queue, False, False, False)


def durable_queue(name: str, **options: Any) -> Any:
    return queue_declare(name, durable=True, **options)


def kinds(node: StoringNode) -> Counter[str]:
    return Counter(key[:1].decode() for key in node.store.rows)


def topology(node: Server, *, durable_only: bool = True) -> dict[str, Any]:
    """Return everything that matters of a server's vhosts, as plain values."""
    return {name: _topology(vhost, durable_only=durable_only) for name, vhost in node.vhosts.items()}


def _topology(vhost: VHost, *, durable_only: bool) -> Any:
    exchanges = {
        exchange.name: (
            exchange.type,
            exchange.auto_delete,
            exchange.internal,
            encode_table(exchange.arguments),
            exchange.alternate,
        )
        for exchange in vhost.router.exchanges.values()
        if exchange.durable or not durable_only
    }
    queues = {
        queue.name: (queue.qid, queue.auto_delete, encode_table(queue.arguments))
        for queue in vhost.queues.values()
        if queue.durable or not durable_only
    }
    bindings = {
        (source, type(to).__name__, to.name, key, encode_table(arguments))
        for source, to, key, arguments in vhost.router.bindings()
        if (vhost.router.get(source).durable and to.durable) or not durable_only
    }
    return exchanges, queues, bindings


def rights(node: Server) -> Any:
    """Return everything that matters of a server's users."""
    users = node.users
    return (
        {user.name: user for user in users.all()},
        {(user, vhost): repr(row) for user, vhost, row in users.permission_rows()},
        set(users.topic_permission_rows()),
        {user.name: users.user_limits(user.name) for user in users.all()},
        {name: users.vhost_limits(name) for name in node.vhosts},
    )


# -- the first start, and the next ------------------------------------------------------------------------------------


def test_the_first_start_writes_what_the_configuration_says(node):
    """The first start stores vhost, user, permission and the predeclared exchanges in one commit."""
    assert Counter(V=1, U=1, P=1, E=7) == kinds(node)


def test_the_next_start_is_the_same(node):
    """A second start restores users with their passwords, permissions and vhosts, and writes nothing."""
    again = node.restarted()

    assert (rights(node), topology(node)) == (rights(again), topology(again))
    assert check_password(Password("guest"), again.users.get("guest").password_hash)
    assert [] == again.store.pending
    assert again.store.rows == node.store.rows
    assert Client(again).declare("q") == ["1 queue.declare-ok queue=q"]


def test_what_is_stored_wins_over_the_configuration(node):
    """After the first start the configuration does not restore what an administrator has deleted."""
    node.users.add(User("ada", "", ("administrator",)))
    node.users.remove("guest")
    node.commit()
    again = node.restarted()

    assert ["ada"] == [user.name for user in again.users.all()]
    assert [] == list(again.users.permission_rows())


def test_what_was_not_committed_is_not_there(client, node):
    """A declaration without its commit leaves no trace."""
    client.send(durable_queue("q"))
    client.send(declare("x"))

    assert topology(StoringNode()) == topology(node.restarted())


def test_a_broker_without_storage_forgets():
    """The journal without storage accepts rows, and nothing waits for it."""
    results = []
    journal = NullJournal()
    journal.put("defs", b"k", b"v")
    journal.delete("defs", b"k")
    journal.when_safe(results.append)

    assert [True] == results


# -- topology ---------------------------------------------------------------------------------------------------------


def test_durable_topology_survives(client, node):
    """Exchanges, queues and bindings are restored with arguments, types and qids."""
    arguments = {"x-max-length": ("long", 5), "x-odd": ("array", [("void", None), ("decimal", (2, 314))])}
    ask(
        client,
        declare("logs", "topic", auto_delete=True),
        declare("all", "fanout"),
        durable_queue("q", arguments=arguments),
        durable_queue("lazy", auto_delete=True),
        bind("q", "logs", "#.error"),
        bind("q", "amq.headers", "", {"x-match": ("longstr", "any"), "n": ("double", 0.5)}),
        bind_exchange("all", "logs", "*"),
        bind("lazy", "all"),
    )
    again = node.restarted()

    assert topology(node) == topology(again)
    assert ["q", "lazy"] == [queue.name for queue in again.restored]
    assert 0 not in {queue.qid for queue in again.restored}
    assert {name: q.qid for name, q in node.vhosts["/"].queues.items()} == {
        queue.name: queue.qid for queue in again.restored
    }


def test_a_restored_topology_works(client, node):
    """A restored topology routes messages, and can be changed and stored again."""
    ask(client, declare("x"), durable_queue("q"), bind("q", "x"))
    again = node.restarted()
    other = Client(again)
    other.publish("k", b"m", exchange="x")

    assert 1 == again.vhosts["/"].queues["q"].ready_count
    assert ["1 queue.delete-ok message_count=1"] == ask(other, delete("q"))
    assert Counter(V=1, U=1, P=1, E=8) == kinds(again)


def test_what_is_not_durable_leaves_no_rows(client, node):
    """Transient and exclusive queues, transient exchanges, and bindings to or from any of them have no rows."""
    before = kinds(node)
    ask(
        client,
        durable_queue("kept"),
        queue_declare("transient"),
        durable_queue("exclusive", exclusive=True),
        declare("passing", durable=False),
        bind("kept", "passing"),
        bind("transient", "amq.direct"),
        bind("exclusive", "amq.direct"),
        bind_exchange("passing", "amq.direct"),
        bind_exchange("amq.fanout", "passing"),
    )

    assert before + Counter(Q=1) == kinds(node)
    assert [0, 0] == [node.vhosts["/"].queues[name].qid for name in ("transient", "exclusive")]


@pytest.mark.parametrize(
    "going",
    [
        pytest.param([delete("q")], id="delete the queue"),
        pytest.param([make(Queue.Unbind, 0, "q", "x", "k", {}), delete("q")], id="unbind"),
        pytest.param([make(Exchange.Delete, 0, "x", False, False), delete("q")], id="delete the exchange"),
    ],
)
def test_rows_go_with_what_they_say(client, node, going):
    """A deleted queue or auto-delete exchange leaves no rows on disk, nor do its bindings, however it is deleted."""
    before = node.store.rows.copy()
    ask(
        client,
        declare("x", auto_delete=True),
        declare("y", auto_delete=True),
        durable_queue("q"),
        bind("q", "x", "k"),
        bind("q", "y", "k", {"n": ("signedint", 1)}),
        bind_exchange("y", "x", "k2"),
        bind_exchange("x", "amq.topic", "#"),
        bind("q", "amq.topic", "#"),
    )
    gone = kinds(node) - Counter(key[:1].decode() for key in before)
    ask(client, *going)
    if "x" in node.vhosts["/"].router.exchanges:
        ask(client, make(Exchange.Delete, 0, "x", False, False))
    ask(client, make(Exchange.Delete, 0, "y", False, False))

    assert Counter(E=2, Q=1, B=5) == gone
    assert before == node.store.rows


def test_an_auto_delete_queue_goes_with_its_rows(client, node):
    """An auto-delete queue is removed with its last consumer, and its bindings in the same commit."""
    before = node.store.rows.copy()
    ask(client, durable_queue("q", auto_delete=True), bind("q", "amq.direct"))
    client.consume("q")
    client.connection.lost()
    node.commit()

    assert before == node.store.rows


def test_the_order_of_arguments_does_not_matter_to_unbind(client, node):
    """A binding is found by its arguments, in any order."""
    before = kinds(node)
    there = {"a": ("signedint", 1), "b": ("double", 0.0)}
    back = {"b": ("double", -0.0), "a": ("signedint", 1)}
    ask(client, durable_queue("q"), bind("q", "amq.direct", "k", there))

    assert before + Counter(Q=1, B=1) == kinds(node)
    ask(client, make(Queue.Unbind, 0, "q", "amq.direct", "k", back))
    assert before + Counter(Q=1) == kinds(node)


def test_names_that_are_no_text_survive(node):
    """Names of any octets are restored unchanged, wherever they came from."""
    name = b"\xff\xfe q".decode("utf-8", "surrogateescape")
    vhost = node.directory.add_vhost(name)
    queue = vhost.create_queue(name, durable=True, exclusive_owner=None, auto_delete=False, arguments={})
    vhost.router.declare(name, "topic", durable=True)
    vhost.router.bind(name, queue, name, {name: ("longstr", name)})
    node.commit()
    again = node.restarted()

    assert topology(node) == topology(again)
    assert name in again.vhosts[name].queues


def test_a_new_queue_of_an_old_name_is_another(client, node):
    """Ids are never reused, not after a restart either."""
    ask(client, durable_queue("q"))
    first = node.vhosts["/"].queues["q"].qid
    ask(client, delete("q"), durable_queue("q"))
    second = node.vhosts["/"].queues["q"].qid
    again = node.restarted()
    other = Client(again)
    ask(other, delete("q"), durable_queue("q"))

    assert first < second < again.vhosts["/"].queues["q"].qid


def test_the_factory_of_backing_queues_gets_the_queue():
    """The factory of backing queues gets qid and arguments of durable queues, new and restored; 0 for others."""
    made = []

    def make_backing(qid: int, arguments: Any) -> MemoryQueue:
        made.append((qid, arguments))
        return MemoryQueue()

    node = StoringNode()
    vhost = VHost("/v", node.turn, node.context, make_backing=make_backing)
    node.directory.definitions.add_vhost(vhost)
    options = {"exclusive_owner": None, "auto_delete": False, "arguments": {"x": ("bool", True)}}
    stored = vhost.create_queue("q", durable=True, **options)
    vhost.create_queue("t", durable=False, **options)
    vhost.create_queue("r", durable=True, qid=9, **options)
    vhost.reply_queues.create()

    assert [
        (stored.qid, {"x": ("bool", True)}),
        (0, {"x": ("bool", True)}),
        (9, {"x": ("bool", True)}),
        (0, {}),
    ] == made


# -- rows that do not fit together ------------------------------------------------------------------------------------


def written(*rows: Any) -> dict[bytes, bytes]:
    return {row.key(): encode(row) for row in rows}


def test_a_binding_without_its_ends_is_dropped(caplog):
    """A binding without one of its ends is logged and its row removed; the rest is restored."""
    rows = written(
        VHostRow(1, b"/"),
        ExchangeRow(2, 1, b"x", b"direct", False, False, EMPTY),
        QueueRow(3, 1, b"q", False, EMPTY),
        BindingRow(2, 3, b"good", EMPTY, b""),
        BindingRow(2, 99, b"no queue", EMPTY, b""),
        BindingRow(99, 3, b"no exchange", EMPTY, b""),
        BindingRow(3, 2, b"a queue as source", EMPTY, b""),
        BindingRow(2, 1, b"to a vhost", EMPTY, b""),
        QueueRow(4, 98, b"lost", False, EMPTY),
        ExchangeRow(5, 98, b"lost", b"direct", False, False, EMPTY),
    )
    node = StoringNode(rows)
    node.commit()

    assert [("x", "good")] == [(source, key) for source, _, key, _ in node.vhosts["/"].router.bindings()]
    assert ["q"] == list(node.vhosts["/"].queues)
    assert 6 == caplog.text.count("dropping a stored definition")
    assert Counter(V=1, E=8, Q=1, B=1) == kinds(node)  # x, and the seven that had no rows yet


def test_a_binding_its_exchange_does_not_take_is_dropped(caplog):
    """A binding that a client could not make is not restored at a restart."""
    arguments = encode_table({"x-match": ("longstr", "perhaps")})
    rows = written(
        VHostRow(1, b"/"),
        ExchangeRow(2, 1, b"x", b"headers", False, False, EMPTY),
        QueueRow(3, 1, b"q", False, EMPTY),
        BindingRow(2, 3, b"k", arguments, arguments),
    )
    node = StoringNode(rows)

    assert [] == list(node.vhosts["/"].router.bindings())
    assert "perhaps" in caplog.text


def test_what_this_version_does_not_know_is_not_passed_over():
    """An exchange of an unknown type stops the start: the bindings to it would be lost."""
    rows = written(VHostRow(1, b"/"), ExchangeRow(2, 1, b"x", b"x-unknown", False, False, EMPTY))

    with pytest.raises(UnknownFormatError, match=r"exchange 'x' in vhost '/': .*x-unknown"):
        StoringNode(rows)


def test_damage_stops_the_start(client, node):
    """A broker does not start if it cannot read a definition."""
    ask(client, durable_queue("q"))
    key = next(key for key in node.store.rows if key[:1] == b"Q")
    node.store.rows[key] = node.store.rows[key][:-1] + b"?"

    with pytest.raises(DamagedError, match="checksum"):
        node.restarted()


@pytest.mark.parametrize(
    "row",
    [
        PolicyRow(1, False, b"p", b"", b"{", 0, b"all"),
        PolicyRow(1, True, b"p", b"", b"\xff", 0, b"all"),
        ParameterRow(1, b"shovel", b"s", b"{"),
        GlobalParameterRow(b"n", b""),
    ],
)
def test_what_is_no_json_stops_the_start(row):
    """A row that is not JSON is damage like any other, although its checksum is right."""
    with pytest.raises(DamagedError, match=f"definition {row.key().hex()} is damaged"):
        StoringNode(written(VHostRow(1, b"/"), row))


def test_a_policy_without_its_vhost_is_dropped(caplog):
    """A policy without its vhost is logged and its row removed."""
    node = StoringNode(written(VHostRow(1, b"/"), PolicyRow(9, False, b"p", b"", b"{}", 0, b"all")))
    node.commit()

    assert "dropping a stored definition: 'p': its vhost no longer exists" in caplog.text
    assert 0 == kinds(node)["Y"]


NO_TABLES = (b"", b"\0\0\0\1", EMPTY + b"?", b"\0\0\0\3\1a?")


@pytest.mark.parametrize("octets", NO_TABLES)
@pytest.mark.parametrize("kind", ["exchange", "queue", "binding"])
def test_arguments_that_are_no_table_stop_the_start(kind, octets):
    """Arguments that are not a table are damage like any other, although their checksum is right."""
    arguments = dict.fromkeys(("exchange", "queue", "binding"), EMPTY) | {kind: octets}
    rows = written(
        VHostRow(1, b"/"),
        ExchangeRow(2, 1, b"x", b"direct", False, False, arguments["exchange"]),
        QueueRow(3, 1, b"q", False, arguments["queue"]),
        BindingRow(2, 3, b"k", arguments["binding"], b""),
    )

    with pytest.raises(DamagedError, match="is damaged: invalid arguments"):
        StoringNode(rows)


# -- users and vhosts -------------------------------------------------------------------------------------------------


def test_users_and_their_rights_survive(node):
    """Users, tags, permissions, topic permissions and limits survive a restart."""
    users = node.users
    node.directory.add_vhost("/two")
    users.add(User("ada", "hash", ("administrator", "\udcff"), "rabbit_password_hashing_sha512"))
    users.add(User("bob", ""))
    users.set_permissions("ada", "/two", "^a", "b$", ".*")
    users.set_topic_permissions("ada", "/two", "amq.topic", "^{username}", ".*")
    users.set_topic_permissions("ada", "/two", "x", "", "")
    users.set_user_limits("ada", UserLimits(3, -1))
    users.set_vhost_limits("/two", VHostLimits(-1, 7))
    users.set_vhost_limits("/", VHostLimits(1, 1))
    users.clear_vhost_limits("/")
    users.add(User("bob", "changed"))
    node.commit()

    assert rights(node) == rights(node.restarted())


def test_rights_that_are_taken_away_stay_away(node):
    """Clearing permissions, removing a user and removing a vhost delete their rows."""
    before = node.store.rows.copy()
    users = node.users
    vhost = node.directory.add_vhost("/two")
    Client(node).send(durable_queue("q"))
    for user in ("ada", "bob"):
        users.add(User(user, ""))
        users.set_permissions(user, "/two", "", "", "")
        users.set_permissions(user, "/", "", "", "")
        users.set_topic_permissions(user, "/two", "x", "", "")
        users.set_topic_permissions(user, "/", "x", "", "")
        users.set_topic_permissions(user, "/", "y", "", "")
        users.set_user_limits(user, UserLimits(1))
    users.set_vhost_limits("/two", VHostLimits(1, 1))
    node.commit()
    users.clear_permissions("bob", "/")
    users.clear_topic_permissions("bob", "/", "y")
    users.clear_topic_permissions("bob", "/")
    users.remove("ada")
    users.remove("nobody")
    node.directory.remove_vhost(vhost)
    node.commit()

    assert rights(node) == rights(node.restarted())
    assert {"guest", "bob"} == {user.name for user in users.all()}
    users.remove("bob")
    Client(node).send(delete("q"))
    node.commit()
    assert before == node.store.rows


def test_a_vhost_goes_with_everything_in_it(node):
    """A removed vhost leaves no rows of its queues, exchanges and bindings."""
    before = node.store.rows.copy()
    vhost = node.directory.add_vhost("/two")
    node.users.set_permissions("guest", "/two", ".*", ".*", ".*")
    ask(Client(node, vhost="/two"), durable_queue("q"), declare("x"), bind("q", "x"), queue_declare("t"))
    node.directory.remove_vhost(vhost)
    node.commit()

    assert before == node.store.rows
    assert {} == vhost.queues


def test_a_vhost_is_removed_in_slices(node):
    """A vhost being removed cannot be found; its queues are deleted in later steps, and its name is free at once."""
    before = node.store.rows.copy()
    vhost = node.directory.add_vhost("/two")
    node.users.set_permissions("guest", "/two", ".*", ".*", ".*")
    client = Client(node, vhost="/two")
    ask(client, *[durable_queue(f"q{number}") for number in range(100)], bind("q7", "amq.direct"))
    client.connection.lost()
    hurry(node, looks=10)
    node.directory.remove_vhost(vhost)

    assert "/two" not in node.vhosts
    assert 50 < len(vhost.queues) < 100
    new = node.directory.add_vhost("/two")
    node.clock.run()
    assert {} == vhost.queues
    node.commit()
    assert {"/", "/two"} == set(node.restarted().vhosts)
    node.directory.remove_vhost(new)
    node.clock.run()
    node.commit()
    assert before == node.store.rows


def test_a_crash_while_a_vhost_is_removed_finishes_it(node):
    """The next start completes the removal of a vhost that a crash interrupted."""
    before = node.store.rows.copy()
    vhost = node.directory.add_vhost("/two")
    node.users.set_permissions("guest", "/two", ".*", ".*", ".*")
    client = Client(node, vhost="/two")
    ask(client, *[durable_queue(f"q{number}") for number in range(100)], bind("q7", "amq.direct"))
    set_policy(vhost.policies, "p", "", {"max-length": 5})
    client.connection.lost()
    hurry(node, looks=10)
    node.directory.remove_vhost(vhost)
    node.commit()
    again = node.restarted()
    again.commit()

    assert {"/"} == set(again.vhosts)
    assert before == again.store.rows


# -- whatever is done -------------------------------------------------------------------------------------------------

_EXCHANGES = ("amq.topic", "amq.headers", "e1", "e2", "e3")
_QUEUES = ("q1", "q2", "q3")
_TABLES = ({}, {"a": ("signedint", 1)}, {"a": ("long", 1), "x-match": ("longstr", "all")})

_steps = st.one_of(
    st.builds(
        queue_declare,
        st.sampled_from(_QUEUES),
        durable=st.booleans(),
        exclusive=st.booleans(),
        auto_delete=st.booleans(),
        arguments=st.sampled_from(({}, {"x-max-length": ("byte", 3)})),
    ),
    st.builds(
        declare,
        st.sampled_from(_EXCHANGES[2:]),
        st.sampled_from(("direct", "topic", "headers")),
        durable=st.booleans(),
        auto_delete=st.booleans(),
    ),
    st.builds(delete, st.sampled_from(_QUEUES)),
    st.builds(lambda name: make(Exchange.Delete, 0, name, False, False), st.sampled_from(_EXCHANGES[2:])),
    st.builds(
        bind,
        st.sampled_from(_QUEUES),
        st.sampled_from(_EXCHANGES),
        st.sampled_from(("", "k", "#")),
        st.sampled_from(_TABLES),
    ),
    st.builds(
        bind_exchange, st.sampled_from(_EXCHANGES), st.sampled_from(_EXCHANGES), st.sampled_from(("", "k"))
    ),
    st.builds(
        lambda queue, exchange, key, table: make(Queue.Unbind, 0, queue, exchange, key, table),
        st.sampled_from(_QUEUES),
        st.sampled_from(_EXCHANGES),
        st.sampled_from(("", "k", "#")),
        st.sampled_from(_TABLES),
    ),
    st.builds(
        lambda to, source, key: make(Exchange.Unbind, 0, to, source, key, False, {}),
        st.sampled_from(_EXCHANGES),
        st.sampled_from(_EXCHANGES),
        st.sampled_from(("", "k")),
    ),
    st.just("consume and cancel"),
    st.just("commit"),
    st.just("restart"),
)


@settings(max_examples=150)
@given(st.lists(_steps, max_size=30))
def test_after_a_restart_everything_durable_is_as_it_was(steps):
    """A restart restores exactly what was committed, whatever clients do, and the rows are exactly those of it."""
    node = StoringNode()
    client = Client(node)
    safe = topology(node)
    for step in steps:
        if step == "commit":
            node.commit()
            safe = topology(node)
        elif step == "restart":
            node = node.restarted()
            assert safe == topology(node) == topology(node, durable_only=False)
            client = Client(node)
        elif step == "consume and cancel":
            for queue in list(node.vhosts["/"].queues):
                client.consume(queue)
            client.connection.lost()
            client = Client(node)
        else:
            client.send(step)
            if client.connection.pending_reply:
                node.commit()
                safe = topology(node)
            if not client.connection.channels:  # the step was refused
                client.connection.lost()
                client = Client(node)
    node.commit()
    safe = topology(node)
    again = node.restarted()

    assert safe == topology(again) == topology(again, durable_only=False)
    vhost = again.vhosts["/"]
    counts = kinds(node)
    assert counts["Q"] == len(vhost.queues)
    assert counts["E"] == len(vhost.router.exchanges)
    assert counts["B"] == sum(1 for _ in vhost.router.bindings())


def test_a_row_is_written_once_for_each_change(client, node):
    """A redeclaration and an existing binding write no row."""
    ask(client, durable_queue("q"), bind("q", "amq.direct"))
    client.send(durable_queue("q"))
    client.send(bind("q", "amq.direct"))

    assert [] == node.store.pending


def test_rows_are_small():
    """Rows are small enough for a million bindings or queues in less than a gigabyte."""
    journal = ManualJournal()
    definitions = Definitions(journal, iter(range(1 << 40, 1 << 41)).__next__)
    vhost = VHost("/", Turn(), NodeContext())
    definitions.add_vhost(vhost)
    queue = vhost.create_queue(
        "queue-123456", durable=True, exclusive_owner=None, auto_delete=False, arguments={}
    )
    vhost.router.bind("amq.direct", queue, "key-123456")
    (_, bound), (_, created) = journal.pending[-1], journal.pending[-2]

    assert max(len(bound), len(created)) < 60
    assert isinstance(decode(*journal.pending[-1]), BindingRow)
