"""Imports of what RabbitMQ takes: accepted, left out as in RabbitMQ, or, if it cannot exist here, refused or skipped."""

import json
from typing import Any

import msgspec
import pytest
from doubles.fakes import StoringNode

from leveret.broker.administration import BadRequestError
from leveret.broker.administration.definitions_outcome import ADVICE, Outcome
from leveret.broker.auth.users import limits_by_name
from leveret.broker.config.config import Config, ConfigError, load as load_config

QUEUE = {"name": "q", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
BINDING = {
    "vhost": "/",
    "source": "amq.topic",
    "destination": "q",
    "destination_type": "queue",
    "routing_key": "k",
    "arguments": {},
}
USER = {"name": "ann", "password_hash": "", "tags": ""}


def load(node: StoringNode, *, skip: bool = False, **sections: Any) -> Outcome:
    octets = json.dumps(sections).encode()
    on_unsupported = "skip" if skip else ""
    return node.administration.definitions.import_file(None, octets, on_unsupported=on_unsupported)


def without(entry: dict[str, Any], *keys: str) -> dict[str, Any]:
    """An entry without some of its keys."""
    return {key: value for key, value in entry.items() if key not in keys}


@pytest.mark.parametrize(
    "sections",
    [
        {"queues": [QUEUE], "bindings": [without(BINDING, "routing_key")]},
        {"queues": [QUEUE], "bindings": [BINDING | {"arguments": []}]},
        {"queues": [QUEUE | {"arguments": []}]},
        {"vhosts": [{"name": "v", "description": None, "tags": None}]},
        {"vhosts": [{"name": "v", "metadata": {"description": None, "tags": None, "default_queue_type": None}}]},
        {"vhosts": [{"name": "v", "metadata": {"default_queue_type": "rabbit_quorum_queue", "of_a_later_version": 1}}]},
        {"vhosts": [{"name": "v", "limits": []}]},
        {"vhosts": [{"name": "v", "limits": [{"name": "max-queues", "value": 7}]}]},
        {"vhosts": [{"name": "v", "limits": [{"vhost": "v", "value": {"max-queues": 7}}]}]},
        {"users": [USER | {"limits": []}]},
        {"users": [USER | {"limits": [["max-channels", 7]]}]},
        {"users": [USER | {"hashing_algorithm": None}]},
        {"exchanges": [{"name": "x", "vhost": "/", "type": "fanout", "internal": None}]},
        {"global_parameters": [{"name": "cluster_tags", "value": [["region", "eu"]]}]},
        {"metadata": {"a": 1}, "description": "x"},
    ],
)  # fmt: skip
def test_what_rabbitmq_takes_is_imported(node, sections):
    """Null texts, empty lists for objects, lists of limits, modules for types: all of it is in files of RabbitMQ's."""
    assert 0 == load(node, **sections).skipped_count


def test_limits_in_a_list_are_set(node):
    """Limits of a vhost and a user count in each form in which RabbitMQ shows them."""
    load(
        node,
        vhosts=[{"name": "v", "limits": [{"vhost": "v", "value": {"max-queues": 7}}]}],
        users=[USER | {"limits": [{"name": "max-channels", "value": 8}]}],
    )

    assert {"max-queues": 7} == limits_by_name(node.users.vhost_limits("v"))
    assert {"max-channels": 8} == limits_by_name(node.users.user_limits("ann"))


def test_names_and_bindings_of_the_broker_itself_are_left_out(node, caplog):
    """Queues and exchanges named `amq.*` are not imported, with their bindings, and the default exchange binds by name."""
    outcome = load(
        node,
        exchanges=[
            {"vhost": "/", "name": "amq.mine", "type": "direct"},
            {"vhost": "/", "name": "amq.topic", "type": "topic"},
            {"vhost": "/", "name": "", "type": "direct"},
        ],
        queues=[QUEUE, QUEUE | {"name": "amq.gen-x"}],
        bindings=[
            BINDING | {"destination": "amq.gen-x"},
            BINDING | {"source": "amq.mine"},
            BINDING | {"source": "", "routing_key": "q"},
            BINDING | {"source": "", "routing_key": "other"},
            BINDING,
        ],
    )

    vhost = node.vhosts["/"]
    assert ["q"] == list(vhost.queues)
    assert [("amq.topic", "k")] == [(each[0], each[2]) for each in vhost.router.bindings()]
    assert "exchanges: 2 unchanged, 1 skipped; queues: 1 added, 1 skipped" in outcome.summary()
    assert 5 == outcome.skipped_count == node.directory.skipped
    assert [f"definitions: left out: {text}" for text in outcome.skipped] == caplog.messages


RESERVED = QUEUE | {"name": "amq.log"}
HASH = {"name": "spread", "vhost": "/", "type": "x-of-a-plugin", "durable": True}
UPSTREAM = {"vhost": "/", "component": "federation-upstream", "name": "up", "value": {"uri": "amqp://up"}}
SHOVEL = {
    "vhost": "/",
    "component": "shovel",
    "name": "s",
    "value": {"src-protocol": "amqp10", "dest-protocol": "local"},
}
FEDERATED = {
    "vhost": "/",
    "name": "fed",
    "pattern": "^",
    "definition": {"federation-upstream-set": "all"},
    "priority": 0,
}
UNSUPPORTED = [
    ("exchanges", HASH, "unknown exchange type 'x-of-a-plugin'"),
    ("exchanges", HASH | {"type": "x-delayed-message", "arguments": {"x-delayed-type": "x-y"}}, "unknown exchange type 'x-y'"),
    ("parameters", UPSTREAM, "component federation-upstream not found"),
    ("parameters", SHOVEL, "src-protocol amqp10 is not supported: only amqp091 is"),
    ("policies", FEDERATED, "are not recognised policy settings"),
    ("bindings", BINDING | {"source": "inside", "destination": "kept"}, "exports of RabbitMQ leave out internal exchanges"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("section", "entry", "text"), UNSUPPORTED, ids=[text[:30] for *_, text in UNSUPPORTED]
)
def test_what_cannot_exist_here_is_refused_or_skipped(node, section, entry, text):
    """By default such an entry refuses the file, and the error tells of the setting with which it is left out."""
    kept = QUEUE | {"name": "kept"}
    sections: dict[str, Any] = {"queues": [kept]}
    sections[section] = [*sections.get(section, []), entry]
    with pytest.raises(BadRequestError) as refused:
        load(node, **sections)
    assert text in str(refused.value)
    assert ADVICE in str(refused.value)
    assert {} == node.vhosts["/"].queues

    outcome = load(node, skip=True, **sections)
    assert ["kept"] == list(node.vhosts["/"].queues)
    assert [True] == [text in each for each in outcome.skipped]
    assert outcome.shown(dry_run=False)["skipped"] == outcome.skipped


@pytest.mark.parametrize("odd", [[], {}, 5, None, ["stream"]])
def test_odd_values_are_refused_and_break_nothing(node, odd):
    """A value of another type is the fault of its entry, also where a name of what cannot exist is looked for."""
    sections = {
        "queues": [QUEUE | {"arguments": {"x-queue-type": odd}}],
        "exchanges": [HASH | {"type": "x-delayed-message", "arguments": {"x-delayed-type": odd}}],
        "parameters": [SHOVEL | {"value": {"src-protocol": odd}}, SHOVEL | {"value": odd}],
        "policies": [FEDERATED | {"definition": {"dead-letter-exchange": odd}}],
    }
    for section, entries in sections.items():
        with pytest.raises(BadRequestError):
            load(node, skip=True, **{section: entries})


def test_what_is_wrong_refuses_the_file_even_if_it_skips(node):
    """Only what could exist in RabbitMQ is left out: an invalid value is an error in any case."""
    with pytest.raises(BadRequestError, match="value_negative") as refused:
        load(node, skip=True, exchanges=[HASH], queues=[QUEUE | {"arguments": {"x-max-length": -4}}])

    assert ADVICE not in str(refused.value)


def test_what_belongs_to_what_is_skipped_is_skipped(node):
    """Bindings go with their ends; queues and exchanges that send messages to a skipped exchange are named."""
    dead = QUEUE | {"name": "work", "arguments": {"x-dead-letter-exchange": "spread"}}
    alternate = {"name": "in", "vhost": "/", "type": "direct", "arguments": {"alternate-exchange": "spread"}}
    value = {"src-uri": "amqp://", "src-queue": "amq.log", "dest-uri": "amqp://", "dest-queue": "q"}
    outcome = load(
        node,
        skip=True,
        parameters=[SHOVEL | {"value": value}],
        exchanges=[alternate, HASH],
        queues=[QUEUE, RESERVED, dead],
        bindings=[
            BINDING | {"destination": "amq.log"},
            BINDING | {"source": "spread"},
            BINDING | {"source": "in", "destination": "spread", "destination_type": "exchange"},
            BINDING | {"source": "in"},
        ],
    )

    assert {"q", "work"} == set(node.vhosts["/"].queues)
    assert ["in"] == [each[0] for each in node.vhosts["/"].router.bindings()]
    assert [
        "exchanges[1] (name 'spread', vhost '/'): unknown exchange type 'x-of-a-plugin'",
        "queues[1] (name 'amq.log', vhost '/'): RabbitMQ imports none whose name begins with 'amq.' either",
        "bindings[0] (source 'amq.topic', destination 'amq.log', vhost '/'): queue 'amq.log' is left out",
        "bindings[1] (source 'spread', destination 'q', vhost '/'): exchange 'spread' is left out",
        "bindings[2] (source 'in', destination 'spread', vhost '/'): exchange 'spread' is left out",
        "parameters[0] (name 's', component 'shovel', vhost '/'): messages are not moved as meant: queue 'amq.log' is left out",
        "exchanges[0] (name 'in', vhost '/'): unroutable messages are lost: exchange 'spread' is left out",
        "queues[2] (name 'work', vhost '/'): dead letters are lost: exchange 'spread' is left out",
    ] == outcome.skipped


def test_a_policy_keeps_the_keys_that_it_can_have(node):
    """Without its other keys a policy would discard what it has to keep, so only the unknown ones are left out."""
    definition = {"federation-upstream-set": "all", "dead-letter-exchange": "dlx"}
    value = {"pattern": "^", "definition": {"max-length": 5, "shards-per-node": 2}, "priority": 0}
    outcome = load(
        node,
        skip=True,
        policies=[FEDERATED | {"definition": definition}],
        parameters=[{"vhost": "/", "component": "operator_policy", "name": "o", "value": value}],
    )

    policies = node.vhosts["/"].policies
    assert {"dead-letter-exchange": "dlx"} == policies.get("fed").definition
    assert {"max-length": 5} == policies.get("o", operator=True).definition
    assert ["without shards-per-node", "without federation-upstream-set"] == [
        each.partition("): ")[2] for each in outcome.skipped
    ]


def test_streams_are_imported(node):
    """A stream, or a queue of a vhost whose default queue type is that, is one."""
    vhost = {"name": "v", "metadata": {"default_queue_type": "stream"}}
    log = QUEUE | {"name": "log", "arguments": {"x-queue-type": "stream", "x-max-age": "7D"}}
    load(node, vhosts=[vhost], queues=[QUEUE | {"vhost": "v"}, log])

    assert "stream" == node.vhosts["v"].queues["q"].type == node.vhosts["/"].queues["log"].type


def test_the_configuration_says_what_happens_to_the_unsupported(node):
    """`definitions.on_unsupported` applies where a request says nothing."""
    node.config = msgspec.structs.replace(node.config, on_unsupported="skip")
    load(node, exchanges=[HASH], queues=[QUEUE])

    assert ["q"] == list(node.vhosts["/"].queues)
    assert ("skip", "refuse") == (
        load_config(settings=["definitions.on_unsupported=skip"]).on_unsupported,
        Config().on_unsupported,
    )


@pytest.mark.parametrize(
    ("text", "kind"), [("quorum", "quorum"), ("rabbit_quorum_queue", "quorum"), ("classic", "classic")]
)
def test_new_vhosts_have_the_default_queue_type_of_the_configuration(text, kind):
    """`default_queue_type` is the type of vhosts that are made without one, by an import and by an administrator."""
    config = load_config(settings=[f"default_queue_type={text}"])
    node = StoringNode()
    node.directory.default_queue_type = config.default_queue_type
    node.administration.vhosts.put(None, "a")
    file = {"vhosts": [{"name": "b"}, {"name": "c", "default_queue_type": "classic"}]}
    load(node, **file, queues=[QUEUE | {"vhost": name} for name in "abc"])

    found = {name: node.vhosts[name].metadata.default_queue_type for name in "abc"}
    assert {"a": kind, "b": kind, "c": "classic"} == found
    assert found == {name: node.vhosts[name].queues["q"].type for name in "abc"}
    assert "vhosts: 2 unchanged" in load(node, **file).summary()
    with pytest.raises(ConfigError, match="default_queue_type = 'super' must be one of"):
        load_config(settings=["default_queue_type=super"])
