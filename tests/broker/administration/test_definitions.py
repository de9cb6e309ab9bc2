"""Export and import of definitions: an export equals what was imported, and a faulty file changes nothing."""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from doubles.fakes import Client, DiskNode, Node, StoringNode
from hypothesis import given, settings, strategies as st

from leveret.broker.administration import BadRequestError, ForbiddenError
from leveret.broker.administration.definitions_document import encoded
from leveret.broker.administration.definitions_outcome import Outcome
from leveret.broker.amqp.commands import Exchange, Queue, make
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.users import User
from leveret.broker.scheduling.time_slices import at_once

sys.path.append(str(Path(__file__).parents[2]))
from conformance.definitions import differences

FIXTURE = Path(__file__).with_name("exported.json")
"""A definitions file written by RabbitMQ's command line, with objects as lists of pairs where it writes them so."""


def export(node: Node) -> dict[str, Any]:
    return json.loads(node.administration.definitions.export_file(None))


def load(node: Node, *, dry_run: bool = False, **sections: Any) -> Outcome:
    octets = json.dumps(sections).encode()
    return node.administration.definitions.import_file(None, octets, dry_run=dry_run)


def test_an_export_of_rabbitmqs_comes_out_as_it_went_in(node):
    """Imported definitions are exported again, type by type; only their notation may differ."""
    node.administration.definitions.import_file(None, FIXTURE.read_bytes())

    assert [] == differences(json.loads(FIXTURE.read_bytes()), export(node))


def test_an_export_of_ours_comes_out_as_it_went_in(node):
    """The broker's own export can be imported, and the next export is identical, byte by byte."""
    node.administration.definitions.import_file(None, FIXTURE.read_bytes())
    octets = node.administration.definitions.export_file(None)
    other = StoringNode()
    other.administration.definitions.import_file(None, octets)

    assert [] == differences(json.loads(octets), export(other))


def test_confirm_modes_are_exported_and_imported(node):
    """A confirm mode is imported as an argument and in policies; an unknown mode is refused and changes nothing."""
    queue = {"name": "q", "vhost": "/", "durable": True, "auto_delete": False}
    policy = {
        "vhost": "/",
        "name": "p",
        "pattern": "^o",
        "definition": {"confirm-mode": "consumer-ack-light"},
    }
    with pytest.raises(BadRequestError, match=r"invalid arg 'x-confirm-mode'.*: invalid_confirm_mode"):
        load(node, queues=[{**queue, "arguments": {"x-confirm-mode": "x"}}], policies=[policy])
    assert [] == export(node)["policies"]
    load(node, queues=[{**queue, "arguments": {"x-confirm-mode": "consumer-ack"}}], policies=[policy])
    other = StoringNode()
    other.administration.definitions.import_file(None, node.administration.definitions.export_file(None))

    assert [{"x-confirm-mode": "consumer-ack"}] == [each["arguments"] for each in export(other)["queues"]]
    assert [policy["definition"]] == [each["definition"] for each in export(other)["policies"]]
    assert "consumer-ack" == other.vhosts["/"].queues["q"].settings.confirm_mode


def test_a_ring_is_exported_and_imported(node):
    """Keys go to the same queues after an import: bindings are exported in their order, and invalid ones refused."""
    queues = [{"vhost": "/", "name": name, "durable": True, "auto_delete": False} for name in "abc"]
    exchange = {"vhost": "/", "name": "x", "type": "x-consistent-hash", "durable": True, "auto_delete": False}
    ends = {"vhost": "/", "source": "x", "destination_type": "queue"}
    bindings = [
        {**ends, "destination": name, "routing_key": key}
        for name, key in (("c", "2"), ("a", "1"), ("b", "3"))
    ]
    load(node, queues=queues, exchanges=[exchange], bindings=bindings)
    other = StoringNode()
    other.administration.definitions.import_file(None, node.administration.definitions.export_file(None))

    def routed(node: Node) -> list[str]:
        router = node.vhosts["/"].router
        return [router.route(router.get("x"), (f"k{number}",))[0].name for number in range(40)]

    assert {"a", "b", "c"} == set(routed(node))
    assert routed(node) == routed(other)
    with pytest.raises(BadRequestError, match=r"The binding key must be greater than 0"):
        load(node, bindings=[{**bindings[0], "routing_key": "0"}])
    faulty = {**exchange, "name": "y", "arguments": {"hash-header": "h", "hash-property": "message_id"}}
    with pytest.raises(BadRequestError, match=r"hash-header and hash-property are mutually exclusive"):
        load(node, exchanges=[faulty])


def test_what_was_imported_survives(node):
    """Every durable object of an import exists after a restart."""
    node.administration.definitions.import_file(None, FIXTURE.read_bytes())
    node.commit()
    expected = json.loads(FIXTURE.read_bytes())
    for section in ("queues", "exchanges"):
        expected[section] = [each for each in expected[section] if each["durable"]]
    expected["bindings"] = [each for each in expected["bindings"] if each["source"] != "passing"]

    assert [] == differences(expected, export(node.restarted()))


def test_importing_twice_changes_nothing(node):
    """Existing objects stay as they are, with their messages."""
    load(node, queues=[{"vhost": "/", "name": "q", "durable": True}])
    Client(node).publish("q", b"kept")
    load(node, queues=[{"vhost": "/", "name": "q", "durable": True, "arguments": {"x-max-length": 0}}])
    queue = node.vhosts["/"].queues["q"]

    assert (1, {}) == (queue.ready_count, queue.arguments)


def test_a_byte_order_mark_before_a_file_does_not_matter(node):
    """Some editors put one there."""
    octets = b"\xef\xbb\xbf" + json.dumps({"vhosts": [{"name": "shop"}]}).encode()
    node.administration.definitions.import_file(None, octets)

    assert "shop" in node.vhosts


def test_an_imported_hash_lets_its_user_in(node):
    """An imported password hash lets its user log in; a user without one stays locked out."""
    node.administration.definitions.import_file(None, FIXTURE.read_bytes())

    assert "clerk" == node.users.authenticate("clerk", Password("pw"), "10.0.0.1").name
    assert "" == node.users.get("locked out").password_hash


def test_what_is_not_exported(node):
    """Exports omit exclusive queues and their bindings, predeclared exchanges and the default exchange's bindings."""
    client = Client(node)
    client.declare("mine", exclusive=True)
    client.declare("passing")
    client.declare("")
    for queue in ("mine", "passing"):
        client.send(make(Queue.Bind, 0, queue, "amq.topic", "k", False, {}))
    client.send(make(Exchange.Declare, 0, "inside", "direct", False, False, False, True, False, {}))
    found = export(node)

    assert 2 == len(found["queues"])
    assert ["passing"] == [each["destination"] for each in found["bindings"]]
    assert [("inside", True)] == [(each["name"], each["internal"]) for each in found["exchanges"]]


def test_an_export_beside_changes_can_be_imported(node):
    """An export in steps has what there was at the first one, and no binding whose source or destination it lacks."""
    client = Client(node)
    router = node.vhosts["/"].router
    for number in range(3):
        client.declare(f"q{number}")
        router.bind("amq.direct", router.queues[f"q{number}"], "k", {})
    steps = node.administration.definitions.exporting(None)
    next(steps)
    client.declare("late")
    client.send(make(Exchange.Declare, 0, "late", "direct", False, False, False, False, False, {}))
    router.bind("late", router.queues["q0"], "k", {})
    router.bind("amq.direct", router.queues["late"], "k", {})
    client.send(make(Queue.Delete, 0, "q1", False, False, False))
    octets = encoded(at_once(steps))
    found = json.loads(octets)
    other = Node()
    other.administration.definitions.import_file(None, octets)

    assert ["q0", "q1", "q2"] == [each["name"] for each in found["queues"]]
    assert [("amq.direct", "q0"), ("amq.direct", "q2")] == [
        (each["source"], each["destination"]) for each in found["bindings"]
    ]
    assert {"q0", "q1", "q2"} == set(other.vhosts["/"].queues)


def test_what_json_has_nothing_like(node):
    """A void, bytes that are not text and a decimal are written as RabbitMQ writes them."""
    arguments = {"void": ("void", None), "octets": ("binary", b"\x00\xff"), "decimal": ("decimal", (2, 314))}
    Client(node).declare("q", arguments=arguments)
    (queue,) = export(node)["queues"]

    assert {
        "void": "undefined",
        "octets": "Not UTF-8, base64 is: AP8=",
        "decimal": 2.314,
    } == queue["arguments"]


ONE_OF_EACH = {
    "vhosts": [{"name": "v"}],
    "users": [{"name": "ann", "password": "secret", "tags": "a, b"}],
    "permissions": [{"user": "ann", "vhost": "v", "configure": "", "write": "", "read": ""}],
    "queues": [{"name": "q", "vhost": "v"}],
    "exchanges": [{"name": "x", "vhost": "v", "type": "headers"}],
}


def test_missing_sections_and_more_keys_are_nothing_to_complain_about(node, caplog):
    """Sections may be missing, unknown keys are ignored, and unknown sections are reported."""
    said = load(node, **ONE_OF_EACH, bunnies=[], product_name="RabbitMQ", users2=[])

    sections = "vhosts", "users", "permissions", "exchanges", "queues"
    assert "; ".join(f"{section}: 1 added" for section in sections) == said.summary()
    assert ("a", "b") == node.users.get("ann").tags
    assert ["bunnies", "users2"] == [record.args[0] for record in caplog.records]
    assert "nothing" == load(node).summary()


def binding(**fields: Any) -> dict[str, Any]:
    """A binding in the vhost `v`."""
    return {"source": "x", "destination": "q", "destination_type": "queue", "routing_key": ""} | fields


RIGHTS = {"configure": "", "write": "", "read": ""}
TOPIC = {"user": "ann", "exchange": "x", "write": "(", "read": ""}
# section, entry (in the vhost `v` unless it says another one), and the text of the error
WRONG = [
    ("queues", "q", "queues[0]: Expected `object`, got `str`"),
    ("queues", {"name": "q2", "vhost": None}, "queues[0] (name 'q2'): Expected `str`, got `null` at `vhost`"),
    ("queues", {"name": "q2", "durable": "yes"},
     "queues[0] (name 'q2', vhost 'v'): Expected `bool`, got `str` at `durable`"),
    ("queues", {"name": "q2", "vhost": "w"}, "queues[0] (name 'q2', vhost 'w'): Virtual host 'w' does not exist"),
    ("queues", {"name": ""}, "queues[0] (name '', vhost 'v'): queue name cannot be empty"),
    ("queues", {"name": "q" * 256}, "its name is 256 bytes long, more than 255"),
    ("queues", {"name": "q2", "arguments": {"x-max-length": -4}},
     "queues[0] (name 'q2', vhost 'v'): invalid arg 'x-max-length' for queue 'q2' in vhost 'v': {value_negative,-4}"),
    ("queues", {"name": "q2", "arguments": {"a": [None]}}, "invalid value of argument 'a': null"),
    ("queues", {"name": "q2", "arguments": {"a": 1 << 64}}, "argument 'a': 18446744073709551616"),
    ("exchanges", {"name": "y", "type": "z"}, "exchanges[0] (name 'y', vhost 'v'): unknown exchange type 'z'"),
    ("exchanges", {"name": "y", "type": "direct", "arguments": {"alternate-exchange": 1}},
     "invalid type 'long' for arg 'alternate-exchange' in exchange 'y' in vhost 'v'"),
    ("vhosts", {"name": ""}, "vhosts[0] (name ''): Virtual host name cannot be empty"),
    ("vhosts", {"name": "w", "limits": {"max": 1}}, "Unrecognised terms"),
    ("users", {"name": "bob"}, "users[0] (name 'bob'): Object missing required field `tags`"),
    ("users", {"name": "", "tags": []}, "users[0] (name ''): user name cannot be empty"),
    ("users", {"name": "bob", "tags": [], "hashing_algorithm": "rot13"}, "unknown password hashing algorithm 'rot13'"),
    ("users", {"name": "ann", "tags": "", "password_hash": "a password"},
     "password_hash is not base64; a password belongs in 'password'"),
    ("permissions", {"user": "bob", **RIGHTS}, "permissions[0] (user 'bob', vhost 'v'): User 'bob' does not exist"),
    ("permissions", {"user": "ann", **RIGHTS, "configure": "("}, "invalid regular expression '('"),
    ("topic_permissions", TOPIC,
     "topic_permissions[0] (user 'ann', exchange 'x', vhost 'v'): invalid regular expression '('"),
    ("parameters", {"component": "vhost-limits", "name": "limits", "value": {"max-queues": "1"}},
     'max-queues should be a number, actually was <<"1">>'),
    ("parameters", {"component": "other", "name": "s", "value": {}},
     "parameters[0] (name 's', component 'other', vhost 'v'): component other not found"),
    ("parameters", {"component": "operator_policy", "name": "o", "value": {"pattern": ""}}, "definition"),
    ("policies", {"name": "p", "pattern": "", "definition": {"bunnies": 1}},
     "policies[0] (name 'p', vhost 'v'): [{<<\"bunnies\">>,1}] are not recognised policy settings"),
    ("policies", {"name": "p", "pattern": "(", "definition": {"max-length": 1}}, "pattern should be regular expression"),
    ("policies", {"vhost": "w", "name": "p", "pattern": "", "definition": {"max-length": 1}}, "Virtual host 'w'"),
    ("global_parameters", {"name": "g"}, "global_parameters[0] (name 'g'): Object missing required field `value`"),
    ("bindings", binding(source="y"),
     "bindings[0] (source 'y', destination 'q', vhost 'v'): no exchange 'y' in vhost 'v'"),
    ("bindings", binding(source="", destination="r"), "no queue 'r' in vhost 'v'"),
    ("bindings", binding(destination="r"), "no queue 'r' in vhost 'v'"),
    ("bindings", binding(destination="y", destination_type="exchange"), "no exchange 'y' in vhost 'v'"),
    ("bindings", binding(destination_type="topic"), "Invalid enum value 'topic' at `destination_type`"),
    ("bindings", binding(routing_key="k" * 256), "its routing key is 256 bytes long, more than 255"),
    ("bindings", binding(arguments={"x-match": "some"}), "x-match"),
]  # fmt: skip
WITHOUT_VHOST = {"vhosts", "users", "global_parameters"}


@pytest.mark.parametrize(("section", "entry", "text"), WRONG, ids=[text[:40] for *_, text in WRONG])
def test_nothing_of_a_file_with_something_wrong_is_made(node, section, entry, text):
    """The error names the entry, and none of the entries before it is imported either."""
    before = export(node)
    if isinstance(entry, dict) and section not in WITHOUT_VHOST:
        entry = {"vhost": "v"} | entry
    right = ONE_OF_EACH.get(section, [])
    sections = ONE_OF_EACH | {section: [*right, entry]}
    expected = text.replace("[0]", f"[{len(right)}]")
    with pytest.raises(BadRequestError) as refused:
        load(node, **sections)

    assert expected in str(refused.value)
    assert before == export(node)
    node.commit()
    assert before == export(node.restarted())


@pytest.mark.parametrize(
    ("octets", "text"),
    [
        (b"", "the file is not JSON"),
        (b"{", "the file is not JSON"),
        (b"\xff", "the file is not JSON"),
        (b"[]", "the file is not a JSON object but an array"),
        (b'"x"', "the file is not a JSON object but a string"),
        (b"null", "the file is not a JSON object but null"),
        (b"5", "the file is not a JSON object but a number"),
        (b'{"queues": {}}', "queues is not an array but an object"),
        (b'{"queues": [{"name": "q"}]}', "Object missing required field `vhost`"),
    ],
)
def test_what_is_no_definitions_file(node, octets, text):
    """A file that is not a JSON object is refused, and the error says so."""
    with pytest.raises(BadRequestError, match=text):
        node.administration.definitions.import_file(None, octets)


def test_bindings_to_what_is_there_already(node):
    """A file may bind existing objects, predeclared exchanges of a new vhost included."""
    Client(node).declare("old", durable=True)
    load(
        node,
        vhosts=[{"name": "v"}],
        queues=[{"name": "q", "vhost": "v"}],
        bindings=[
            {"vhost": "/", **binding(source="amq.direct", destination="old")},
            {"vhost": "v", **binding(source="amq.topic", destination="q")},
        ],
    )

    assert ["amq.direct", "amq.topic"] == [each["source"] for each in export(node)["bindings"]]


def test_only_administrators_have_definitions(node):
    """Only administrators may export or import, because the file contains password hashes."""
    monitor = User("m", "", ("monitoring", "policymaker"))
    for ask in (
        lambda: node.administration.definitions.export_file(monitor),
        lambda: node.administration.definitions.import_file(monitor, b"{}"),
    ):
        with pytest.raises(ForbiddenError, match="Not administrator user"):
            ask()


def test_an_import_is_one_commit(tmp_path):
    """An import is on disk after one commit, and no part of it before."""
    node = DiskNode(tmp_path / "one")
    node.administration.definitions.import_file(None, FIXTURE.read_bytes())
    node = node.killed()
    before = len(export(node)["vhosts"])
    node.administration.definitions.import_file(None, FIXTURE.read_bytes())
    node.commit()
    node = node.killed()
    found = export(node)
    node.disk.close()

    assert (1, 3, 3) == (before, len(found["vhosts"]), len(found["bindings"]))


def deep(levels: int) -> dict[str, Any]:
    return {} if not levels else {"inside": deep(levels - 1)}


ODD = (
    None, True, 0, -1, 1 << 70, 1.5, "", "x" * 300, "\ud800", "\0", [], [1], [["a", 1]], {}, {"a": None}, {"x" * 300: 1},
    {"a": [1] * 5000}, deep(40), {"x-max-length": -1}, "(", "amq.x", "x-delayed-message",
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_odd_files_are_imported_or_refused(data):
    """A file with an odd value at any place is refused without a change, or imported so that its export is valid."""
    content = json.loads(FIXTURE.read_bytes())
    section = data.draw(st.sampled_from([name for name, value in content.items() if isinstance(value, list)]))
    place, key = content[section], data.draw(st.integers(0, len(content[section]) - 1))
    while isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
        place = place[key]
        key = data.draw(
            st.sampled_from(sorted(place)) if isinstance(place, dict) else st.integers(0, len(place) - 1)
        )
    place[key] = data.draw(st.sampled_from(ODD))
    node = StoringNode()
    before = node.administration.definitions.export_file(None)
    try:
        node.administration.definitions.import_file(None, json.dumps(content).encode())
    except BadRequestError:
        assert before == node.administration.definitions.export_file(None)
        return
    octets = node.administration.definitions.export_file(None)
    node.commit()
    node.restarted()
    other = StoringNode()
    other.administration.definitions.import_file(None, octets)

    assert octets == other.administration.definitions.export_file(None)


@pytest.mark.parametrize("default", ["", "classic", "quorum"])
@pytest.mark.parametrize("is_new", [False, True], ids=["there already", "made by the file"])
def test_queues_of_a_file_get_the_type_that_a_client_would_get(default, is_new):
    """A queue without a type gets its vhost's default, however it is declared, so that the client's declaration fits."""
    node = Node()
    shapes = list(itertools.product((True, False), (True, False), ({}, {"x-queue-type": "classic"})))
    queues = [
        {"name": f"q{at}", "vhost": "v", "durable": durable, "auto_delete": auto_delete, "arguments": given}
        for at, (durable, auto_delete, given) in enumerate(shapes)
    ]
    file = {"vhosts": [{"name": "v", "default_queue_type": default}]} if is_new else {}
    if not is_new:
        node.administration.vhosts.put(None, "v", default_queue_type=default)
    load(node, **file, queues=queues)
    for vhost, name in (("v", "q"), ("w", "r")):
        node.administration.vhosts.put(None, vhost, default_queue_type=default)
        node.users.set_permissions("guest", vhost, ".*", ".*", ".*")
        client = Client(node, vhost=vhost)
        for at, (durable, auto_delete, chosen) in enumerate(shapes):
            arguments = {key: ("longstr", value) for key, value in chosen.items()}
            (answer,) = client.declare(
                f"{name}{at}", durable=durable, auto_delete=auto_delete, arguments=arguments
            )
            assert answer.startswith("1 queue.declare-ok"), answer

    declared, imported = (
        [node.vhosts[vhost].queues[f"{name}{at}"].arguments for at in range(len(shapes))]
        for vhost, name in (("w", "r"), ("v", "q"))
    )
    assert declared == imported
    assert (default == "quorum") == (node.vhosts["v"].queues["q2"].type == "quorum")
    assert "queues: 8 unchanged" == load(node, queues=queues).summary()


NUMBERS = [
    ("byte", -5), ("unsignedbyte", 5), ("short", 5), ("unsignedshort", 5), ("signedint", 5), ("unsignedint", 5),
    ("long", 5), ("long", 1 << 40), ("timestamp", 5), ("double", 5.0), ("float", 5.0), ("bool", True),
    ("decimal", (1, 55)), ("binary", b"x"), ("void", None), ("longstr", "5"),
    ("array", [("signedint", 5), ("table", {"n": ("short", 5)})]), ("table", {"n": ("signedint", 5)}),
]  # fmt: skip
"""Values as clients of several languages write them, of every type."""


@pytest.mark.parametrize("destination", ["queue", "exchange"])
def test_an_import_of_its_own_export_changes_nothing(destination):
    """A broker that imports what it exported has no further binding, whatever types clients gave their arguments."""
    node = Node()
    client = Client(node)
    client.send(make(Exchange.Declare, 0, "h", "headers", False, True, False, False, False, {}))
    client.send(make(Exchange.Declare, 0, "to", "fanout", False, True, False, False, False, {}))
    client.declare("to", durable=True)
    for field in NUMBERS:
        arguments = {"x-match": ("longstr", "all"), "k": field}
        method = (
            make(Queue.Bind, 0, "to", "h", "key", False, arguments)
            if destination == "queue"
            else make(Exchange.Bind, 0, "to", "h", "key", False, arguments)
        )
        client.send(method)
    router = node.vhosts["/"].router
    before = [str(each) for each in router.exchanges["h"].bindings()]
    assert len(NUMBERS) == len(before)

    outcome = load(node, **export(node))
    assert f"bindings: {len(NUMBERS)} unchanged" in outcome.summary()
    assert before == [str(each) for each in router.exchanges["h"].bindings()]
    other = {"source": "h", "vhost": "/", "destination": "to", "destination_type": destination}
    load(node, bindings=[{**other, "routing_key": "key", "arguments": {"x-match": "all", "k": 6}}])
    load(node, bindings=[{**other, "routing_key": "other", "arguments": {"x-match": "all", "k": 5}}])
    assert len(NUMBERS) + 2 == len(list(router.exchanges["h"].bindings()))
