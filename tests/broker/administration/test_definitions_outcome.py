"""Outcome of an import: what is added, changed, the same, kept and refused, and a dry run tells it beforehand."""

import json
from typing import Any

import pytest
from doubles.fakes import Client, Node

from leveret.broker.administration import BadRequestError
from leveret.broker.administration.definitions_document import MOST_OCTETS, MOST_PROBLEMS
from leveret.broker.administration.definitions_outcome import LISTED, PROBLEMS, Action, Difference, Outcome

HASH = "3C+HLqzwCZid64laFJT5tq6dENkW0u7fDfzeHbckojVsNToC"
"""Hash of the password `pw`."""
DOCUMENT = {
    "vhosts": [{"name": "v", "description": "old", "limits": {"max-queues": 5}}],
    "users": [{"name": "ann", "password_hash": HASH, "tags": "management", "limits": {"max-channels": 3}}],
    "permissions": [{"user": "ann", "vhost": "v", "configure": "", "write": "w", "read": ".*"}],
    "topic_permissions": [{"user": "ann", "vhost": "v", "exchange": "amq.topic", "write": "a", "read": "b"}],
    "parameters": [
        {"vhost": "v", "component": "operator_policy", "name": "o",
         "value": {"pattern": "^q", "definition": {"max-length": 3}, "priority": 0}},
        {"vhost": "v", "component": "vhost-limits", "name": "limits", "value": {"max-queues": 5}},
    ],
    "global_parameters": [{"name": "g", "value": {"a": [1]}}],
    "policies": [{"vhost": "v", "name": "p", "pattern": "^q", "definition": {"max-length": 5, "message-ttl": 6}}],
    "exchanges": [{"vhost": "v", "name": "x", "type": "fanout", "durable": True, "auto_delete": False}],
    "queues": [{"vhost": "v", "name": "q", "durable": True, "arguments": {"x-max-length": 5}}],
    "bindings": [
        {"vhost": "v", "source": "x", "destination": "q", "destination_type": "queue", "routing_key": "k",
         "arguments": {"n": 1}},
        {"vhost": "v", "source": "amq.topic", "destination": "x", "destination_type": "exchange", "routing_key": "k"},
    ],
}  # fmt: skip


def load(node: Node, document: dict[str, Any], *, dry_run: bool = False) -> Outcome:
    octets = json.dumps(document).encode()
    return node.administration.definitions.import_file(None, octets, dry_run=dry_run)


def export(node: Node) -> bytes:
    return node.administration.definitions.export_file(None)


def test_a_dry_run_tells_what_the_import_does(node):
    """Before an import everything is new, after it everything is the same, and a dry run changes nothing."""
    before = export(node)
    first = load(node, DOCUMENT, dry_run=True)
    unchanged = export(node)
    done = load(node, DOCUMENT)
    second = load(node, DOCUMENT, dry_run=True)

    assert before == unchanged
    assert {name: {Action.ADDED: len(entries)} for name, entries in DOCUMENT.items()} == first.totals()
    assert first.totals() == done.totals()
    assert {name: {Action.UNCHANGED: len(entries)} for name, entries in DOCUMENT.items()} == second.totals()
    assert (True, []) == (bool(first.changes), second.changes)
    assert not load(node, json.loads(export(node))).changes


def test_differences_are_named(node):
    """Of what is changed the old and the new values are told, one by one within objects, but no hashes."""
    load(node, DOCUMENT)
    (vhost,), (user,), (policy,) = (DOCUMENT[each] for each in ("vhosts", "users", "policies"))
    changed = load(
        node,
        {
            "vhosts": [vhost | {"description": "new", "limits": {"max-queues": 6}}],
            "users": [user | {"password_hash": "", "limits": {}, "tags": ["a", "b"]}],
            "policies": [policy | {"definition": {"max-length": 7, "expires": 8}, "priority": 2}],
            "global_parameters": [{"name": "g", "value": "x" * 300}],
        },
        dry_run=True,
    )
    rows = {change.kind: change for change in changed.changes}

    assert {Action.CHANGED} == {change.action for change in changed.changes}
    assert "policies[0] (name 'p', vhost 'v')" == rows["policies"].entry
    assert ("v", None) == (rows["policies"].vhost, rows["users"].vhost)
    assert [Difference("description", "old", "new"), Difference("limits.max-queues", 5, 6)] == rows[
        "vhosts"
    ].differences
    assert [
        Difference("tags", ["management"], ["a", "b"]),
        Difference("password_hash", "(hidden)", "(hidden)"),
        Difference("limits.max-channels", 3, None),
    ] == rows["users"].differences
    assert {
        Difference("definition.max-length", 5, 7),
        Difference("definition.message-ttl", 6, None),
        Difference("definition.expires", None, 8),
        Difference("priority", 0, 2),
    } == set(rows["policies"].differences)
    assert [Difference("value", {"a": [1]}, "x" * 200 + "...")] == rows["global_parameters"].differences


def test_a_password_that_is_the_same_changes_nothing(node):
    """A password in clear text that the user has already keeps its hash; another one is a change."""
    load(node, DOCUMENT)
    same = {"name": "ann", "password": "pw", "tags": "management", "limits": {"max-channels": 3}}
    found = load(node, {"users": [same]})
    kept = node.users.get("ann").password_hash
    other = load(node, {"users": [same | {"password": "other"}]})
    without = load(node, {"users": [{"name": "ann", "tags": "management", "limits": {"max-channels": 3}}]})

    assert {Action.UNCHANGED: 1} == found.totals()["users"] == without.totals()["users"]
    assert HASH == kept
    assert {Action.CHANGED: 1} == other.totals()["users"]
    assert ["password_hash"] == [each.key for each in other.changes[0].differences]


def test_queues_and_exchanges_are_kept(node):
    """An import does not change what a queue or exchange is; that it is another one is told."""
    load(node, DOCUMENT)
    outcome = load(
        node,
        {
            "exchanges": [
                {"vhost": "v", "name": "x", "type": "topic"},
                {"vhost": "v", "name": "amq.topic", "type": "x"},
            ],
            "queues": [{"vhost": "v", "name": "q", "durable": True, "arguments": {"x-max-length": 6}}],
        },
    )

    assert {
        "exchanges": {Action.KEPT: 1, Action.UNCHANGED: 1},
        "queues": {Action.KEPT: 1},
    } == outcome.totals()
    assert [Difference("type", "fanout", "topic")] == outcome.changes[0].differences
    assert [Difference("arguments.x-max-length", 5, 6)] == outcome.changes[1].differences
    assert "fanout" == node.vhosts["v"].router.get("x").type


def test_the_last_of_two_entries_counts(node):
    """An entry that is as the broker is takes effect all the same if another one of that name is before it."""
    parameter = {"name": "g", "value": 1}
    load(node, {"global_parameters": [parameter]})
    load(node, {"global_parameters": [parameter | {"value": 2}, parameter]})

    assert 1 == node.directory.global_parameters.get("g")


WRONG = {
    "vhosts": [{"name": "v"}, {"name": ""}, {"name": "w", "limits": {"max": 1}}],
    "users": [{"name": "ann", "tags": ""}, {"name": "bob"}, "carl"],
    "permissions": [
        {"user": "ann", "vhost": "v", "configure": "(", "write": "", "read": ""},
        {"user": "bob", "vhost": "v", "configure": "", "write": "", "read": ""},
        {"user": "ann", "vhost": "none", "configure": "", "write": "", "read": ""},
    ],
    "policies": {},
    "exchanges": [{"vhost": "v", "name": "x", "type": "odd"}, {"vhost": "w", "name": "y", "type": "direct"}],
    "queues": [
        {"vhost": "v", "name": "q", "arguments": {"x-max-length": -1}},
        {"vhost": "v", "name": "good"},
    ],
    "bindings": [
        {"vhost": vhost, "source": source, "destination": to, "destination_type": "queue", "routing_key": ""}
        for vhost, source, to in (
            ("v", "x", "good"),
            ("v", "amq.topic", "q"),
            ("v", "none", "good"),
            ("w", "y", "good"),
        )
    ],
}


EXPECTED = (
    "users[1] (name 'bob'): Object missing required field `tags`",
    "users[2]: Expected `object`, got `str`",
    "policies is not an array but an object",
    "vhosts[1] (name ''): Virtual host name cannot be empty",
    "vhosts[2] (name 'w'): Unrecognised",
    "permissions[0] (user 'ann', vhost 'v'): invalid regular expression '('",
    "permissions[2] (user 'ann', vhost 'none'): Virtual host 'none' does not exist",
    "exchanges[0] (name 'x', vhost 'v'): unknown exchange type 'odd'",
    "queues[0] (name 'q', vhost 'v'): invalid arg 'x-max-length'",
    "bindings[2] (source 'none', destination 'good', vhost 'v'): no exchange 'none' in vhost 'v'",
)


def test_all_problems_are_named_at_once(node):
    """Each invalid entry is named with its own reason; what only belongs to one is counted, and nothing is imported."""
    before = export(node)
    outcome = load(node, WRONG, dry_run=True)
    with pytest.raises(BadRequestError) as refused:
        load(node, WRONG)
    lines = str(refused.value).split("\n")

    assert "10 entries cannot be imported, so nothing was:" == lines[0]
    assert lines[1:-1] == [str(problem) for problem in outcome.problems]
    assert "what cannot exist here is left out with definitions.on_unsupported = skip: 2 of 10" == lines[-1]
    for line, expected in zip(lines[1:-1], EXPECTED, strict=True):
        assert line.startswith(expected)
    assert 3 == outcome.totals()["bindings"][Action.UNCHECKED]
    assert {Action.REFUSED: 1, Action.ADDED: 1} == outcome.totals()["queues"]
    assert before == export(node)
    node.commit()
    assert before == export(node.restarted())


def test_the_lists_are_bounded(node):
    """Only the first changes and problems are listed, with the number of the others."""
    many = [{"vhost": "/", "name": f"q{number}"} for number in range(LISTED + 5)]
    bad = [{"vhost": f"none{number}", "name": "q"} for number in range(PROBLEMS + 7)]
    good = load(node, {"queues": many}, dry_run=True)
    refused = load(node, {"queues": [*many, *bad]}, dry_run=True)
    with pytest.raises(BadRequestError, match=r"(?s)^107 entries cannot be imported.*\nand 7 more$"):
        load(node, {"queues": bad})

    assert (LISTED, 5) == (len(good.changes), good.left_off)
    assert (PROBLEMS, PROBLEMS + 7) == (len(refused.problems), refused.refused)
    assert PROBLEMS + 7 == refused.totals()["queues"][Action.REFUSED]


def test_a_section_that_cannot_be_read_is_given_up(node):
    """After thousands of entries that cannot be read the rest is not looked at, however many there are."""
    outcome = load(node, {"queues": [{}] * (MOST_PROBLEMS + 50), "users": [{}]}, dry_run=True)

    assert MOST_PROBLEMS + 2 == outcome.refused
    assert MOST_PROBLEMS == outcome.totals()["queues"][Action.REFUSED]


def test_an_entry_that_is_too_large_is_refused(node):
    """It would be decoded in one step."""
    large = {"name": "g", "value": "x" * MOST_OCTETS}
    with pytest.raises(
        BadRequestError, match=r"^global_parameters\[0\]: it has \d+ bytes, more than 262144$"
    ):
        load(node, {"global_parameters": [large]})


def test_numbers_by_vhost(node):
    """Entries are counted by section and vhost; above a number of vhosts together."""
    queues = [{"vhost": f"v{number % 3}", "name": f"q{number}"} for number in range(7)]
    few = load(node, {"vhosts": [{"name": f"v{number}"} for number in range(3)], "queues": queues})
    names = [f"w{number}" for number in range(LISTED + 3)]
    many = load(
        node,
        {
            "vhosts": [{"name": name} for name in names],
            "queues": [{"vhost": name, "name": "q"} for name in names],
        },
        dry_run=True,
    )
    rows = [row for row in many.counts() if row[0] == "queues"]

    assert [("vhosts", None, 3), ("queues", "v0", 3), ("queues", "v1", 2), ("queues", "v2", 2)] == [
        (*row[:2], row[2][Action.ADDED]) for row in few.counts()
    ]
    assert LISTED + 1 == len(rows)
    assert ("queues", None, {Action.ADDED: 3}) == rows[-1]


def test_what_is_there_with_other_settings_is_not_exclusive_to_the_import(node):
    """A queue that a client has declared is kept with its messages."""
    client = Client(node)
    client.declare("q")
    client.publish("q", b"kept")
    outcome = load(node, {"queues": [{"vhost": "/", "name": "q", "durable": True}]})

    assert {"queues": {Action.KEPT: 1}} == outcome.totals()
    assert 1 == node.vhosts["/"].queues["q"].ready_count
