"""Takes definitions from a real RabbitMQ to this project's broker and back (``make campaign NAME=definitions-roundtrip``).

A RabbitMQ node is set up by rabbitmqctl and AMQP. Its export, imported here and exported again, must say the same; so
must ours, imported by a fresh RabbitMQ and exported there. Users log in here with the hashes that came from there.

Exit code 0: everything is equal. 1: something is not. 2: a broker did not start.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from conformance.brokers import (  # noqa: E402
    Broker,
    SetUp,
    StartError,
    start_ours,
    start_rabbitmq,
)
from conformance.codec import T  # noqa: E402
from conformance.wire import Channel, ClosedError  # noqa: E402

from leveret.broker.config.config import Config  # noqa: E402
from leveret.broker.server.server import Server  # noqa: E402

ARGUMENTS = {
    "byte": T("b", -3), "unsigned byte": T("B", 200), "short": T("s", -300), "unsigned short": T("u", 60000),
    "int": T("I", -70000), "unsigned int": T("i", 4_000_000_000), "long": T("l", 5), "big": T("l", 1 << 40),
    "float": T("f", 1.5), "double": T("d", 2.25), "large double": T("d", 1e30), "decimal": T("D", (2, 314)),
    "bool": T("t", True), "void": T("V", None), "binary": T("x", b"\x00\xff"), "text": "text ü", "timestamp": T("T", 1_600_000_000),
    "table": {"x": T("l", 1), "y": "z", "inside": {}}, "array": T("A", [T("l", 1), "s", {"k": False}, T("A", [])]),
    "no fields": {}, "no items": T("A", []),
}  # fmt: skip


def set_up(broker: Broker) -> None:
    """Give a RabbitMQ node something of everything, in addition to what every set-up has."""
    for words in (
        ("add_vhost", "second", "--description", "the second", "--tags", "one,two"),
        ("add_vhost", "typed", "--default-queue-type", "quorum"),
        ("add_user", "taken over", "its password"),
        ("set_user_tags", "taken over", "monitoring", "management", "of its own"),
        ("set_permissions", "-p", "second", "taken over", "^c.*", ".*", ""),
        ("set_topic_permissions", "-p", "second", "taken over", "amq.topic", "^{username}[.]", ".*"),
        ("add_user", "locked out", "x"),
        ("clear_password", "locked out"),
        ("set_user_limits", "taken over", '{"max-connections": 7, "max-channels": -1}'),
        ("set_vhost_limits", "-p", "second", '{"max-connections": 5, "max-queues": -1}'),
        ("set_policy", "lengths", "^q", '{"max-length": 10, "dead-letter-exchange": "x"}', "--priority", "3",
         "--apply-to", "queues"),
        ("set_policy", "-p", "second", "all of it", "", '{"alternate-exchange": "other"}'),
        ("set_operator_policy", "operators", "x", '{"expires": 1000000}'),
        ("set_cluster_name", "of the conformance test"),
        ("set_global_parameter", "number", "12"),
        ("set_global_parameter", "object", '{"a": {"b": [1, "two"]}, "c": false}'),
    ):  # fmt: skip
        broker.control(*words)
    channel = broker.client().login("guest", "guest", "/").channel(1)
    _declare(channel)
    channel.client.send(0, "connection.close", reply_code=200)
    channel.client.close_socket()


def _declare(channel: Channel) -> None:
    """Exchanges, queues and bindings of every kind."""

    def queue(name: str, **rest: Any) -> None:
        channel.call("queue.declare", queue=name, **rest)

    def exchange(name: str, kind: str, **rest: Any) -> None:
        channel.call("exchange.declare", exchange=name, type=kind, **rest)

    queue("typed", durable=True, arguments=ARGUMENTS)
    queue("plain", durable=True)
    queue("transient")
    queue("exclusive", exclusive=True)
    queue("leaving", durable=True, auto_delete=True)
    limits = {
        "x-queue-type": "classic",
        "x-max-length": 10,
        "x-message-ttl": T("l", 60000),
        "x-max-priority": 5,
    }
    queue("limited", durable=True, arguments=limits)
    queue("replicated", durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 5})
    exchange("direct", "direct", durable=True)
    exchange("transient", "fanout")
    exchange("leaving", "topic", durable=True, auto_delete=True)
    exchange("matching", "headers", durable=True, arguments={"alternate-exchange": "direct", "other": 7})
    exchange("inside", "direct", durable=True, internal=True)
    for name, source, key in (
        ("plain", "direct", "key"),
        ("plain", "direct", "schlüssel"),
        ("plain", "leaving", "a.#"),
        ("plain", "amq.topic", "x.*"),
        ("transient", "direct", "t"),
        ("transient", "transient", ""),
        ("exclusive", "direct", "e"),
        ("leaving", "direct", "l"),
    ):
        channel.call("queue.bind", queue=name, exchange=source, routing_key=key)
    headers = {"x-match": "any", "h": 1, "f": 1.0, "t": True, "s": "text"}
    channel.call("queue.bind", queue="plain", exchange="matching", routing_key="", arguments=headers)
    channel.call("exchange.bind", destination="direct", source="leaving", routing_key="r")
    channel.call("exchange.bind", destination="transient", source="leaving", routing_key="t")


# -- comparing ----------------------------------------------------------------------------------------------------------

_VERSIONS = ("rabbit_version", "rabbitmq_version", "product_name", "product_version")


def normalised(document: dict[str, Any]) -> dict[str, list[str]]:
    """Return the meaning of definitions: sections as sorted lists of entries, each as text.

    Left out are who wrote the file, internal exchanges and the id of the cluster (RabbitMQ's command line does not write
    them, its API does) and limits that are none. Lists of pairs are objects, and what is said of a vhost counts wherever it is said.
    """
    sections = {}
    for section, entries in document.items():
        if section in _VERSIONS:
            continue
        kept = [_entry(section, each) for each in entries if not each.get("internal")]
        kept = [each for each in kept if each.get("component") != "vhost-limits" or each["value"]]
        kept = [each for each in kept if each.get("name") != "internal_cluster_id"]
        sections[section] = sorted(json.dumps(each, sort_keys=True, ensure_ascii=False) for each in kept)
    return sections


def _entry(section: str, entry: dict[str, Any]) -> dict[str, Any]:
    entry = dict(entry)
    if section == "vhosts":
        metadata = entry.pop("metadata", {})
        entry = {"description": "", "tags": [], **entry, **metadata}
        entry["tags"] = sorted(_words(entry["tags"]))
    if section == "users":
        entry["tags"] = sorted(entry["tags"])
    if "limits" in entry:
        entry["limits"] = _limits(entry["limits"])
    if entry.get("component") == "vhost-limits":
        entry["value"] = _limits(entry["value"])
    if entry.get("component") == "operator_policy":
        entry["value"] = entry["value"] | {"definition": _object(entry["value"]["definition"])}
    if section == "global_parameters":
        entry["value"] = _object(entry["value"])
    entry.pop("internal", None)
    return entry


def _words(tags: str | list[str]) -> list[str]:
    return [word.strip() for word in tags.split(",") if word.strip()] if isinstance(tags, str) else tags


def _object(value: Any) -> Any:
    pairs = (
        isinstance(value, list) and value and all(isinstance(item, list) and len(item) == 2 for item in value)
    )
    return dict(value) if pairs else value


def _limits(limits: Any) -> dict[str, int]:
    return {name: limit for name, limit in (_object(limits) or {}).items() if limit >= 0}


def differences(expected: dict[str, Any], actual: dict[str, Any]) -> list[str]:
    """Every entry that only one of two files has."""
    ours, theirs = normalised(actual), normalised(expected)
    found = []
    for section in sorted(ours.keys() | theirs.keys()):
        one, other = set(theirs.get(section, [])), set(ours.get(section, []))
        found += [f"{section}: missing: {entry}" for entry in sorted(one - other)]
        found += [f"{section}: too much: {entry}" for entry in sorted(other - one)]
        if not one ^ other and len(theirs.get(section, [])) != len(ours.get(section, [])):
            found.append(f"{section}: an entry is there twice")
    return found


# -- the run ------------------------------------------------------------------------------------------------------------


async def through_ours(file: Path) -> bytes:
    """Start a broker of ours on a definitions file, and export."""
    server = Server(Config(listeners=(), definitions=file))
    await server.start()
    try:
        return server.administration.definitions.export_file(None)
    finally:
        await server.stop()


def exported(broker: Broker, file: Path) -> dict[str, Any]:
    """The export of a RabbitMQ node."""
    broker.control("export_definitions", str(file))
    document: dict[str, Any] = json.loads(file.read_bytes())
    return document


def logins(file: Path) -> list[str]:
    """Return the users imported from RabbitMQ that cannot log in to a broker of ours, over a socket."""
    broker = start_ours(SetUp("imported", (f"load_definitions={file}",)))
    failed = []
    try:
        for user, password, vhost in (
            ("taken over", "its password", "second"),
            ("guest", "guest", "/"),
            ("root", "root", "other"),
        ):
            try:
                broker.client().login(user, password, vhost).close_socket()
            except ClosedError as error:
                failed.append(f"login of '{user}': {error}")
        for user, password in (("taken over", "another"), ("locked out", ""), ("locked out", "x")):
            try:
                broker.client().login(user, password, "second").close_socket()
            except ClosedError:
                continue
            failed.append(f"'{user}' may log in with '{password}'")
    finally:
        broker.stop()
    return failed


def main() -> int:
    """Compare both ways; the exit code."""
    found: list[str] = []
    with tempfile.TemporaryDirectory(prefix="definitions-") as place:
        theirs, ours, again = (Path(place) / name for name in ("theirs.json", "ours.json", "again.json"))
        try:
            node = start_rabbitmq(SetUp("one"))
            try:
                set_up(node)
                original = exported(node, theirs)
            finally:
                node.stop()
            ours.write_bytes(asyncio.run(through_ours(theirs)))
            first = differences(original, json.loads(ours.read_bytes()))
            found += [f"RabbitMQ's, imported here and exported: {each}" for each in first]
            found += logins(theirs)
            node = start_rabbitmq(SetUp("two"))
            try:
                node.control("import_definitions", str(ours))
                second = differences(json.loads(ours.read_bytes()), exported(node, again))
            finally:
                node.stop()
            found += [f"ours, imported by RabbitMQ and exported: {each}" for each in second]
        except StartError as error:
            print(error, file=sys.stderr)
            return 2
    for each in found:
        print(each)
    entries = sum(map(len, normalised(original).values()))
    print(f"{len(found)} differences in {entries} entries of RabbitMQ's, both ways")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
