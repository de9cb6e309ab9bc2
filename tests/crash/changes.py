"""Random changes that clients make by the management API. Pure."""

import json
import random
from collections.abc import Callable
from urllib.parse import quote_plus

from crash.answered_state import Change, Key, State, path, plain

VHOSTS = ("/", "orders", "a/b")
USERS = ("ann", "bob", "c:d", "guest")
NAMES = ("one", "two", "three/\u00e4")
TAGS = ("management", "monitoring", "policymaker", "administrator")
PATTERNS = (".*", "^one$", "")
ADMINISTRATOR = "guest"
"""The user who makes the changes; it and the first vhost are never deleted."""
FANOUT = "amq.fanout"
LIMITS = "vhost-limits"
NO_LIMITS = "[]"
"""Value of the parameter once the last limit was removed, as in RabbitMQ."""


class Changes:
    """Random changes.

    Args:
        rng: what decides.
        state: the model; changes refer to what it has.

    """

    def __init__(self, rng: random.Random, state: State) -> None:
        self.rng, self.state = rng, state
        self.number = 0

    def made(self, kind: str) -> Change | None:
        """Return a change of a kind; None if there is nothing to be changed."""
        self.number += 1
        change: Change | None = getattr(self, kind)()
        return change

    def _name(self) -> str:
        return self.rng.choice(NAMES)

    def _vhost(self) -> str:
        return self.rng.choice([key[1] for key in self.state if key[0] == "vhost"])

    def _user(self) -> str:
        return self.rng.choice([key[1] for key in self.state if key[0] == "user"])

    def _key(self, section: str, is_wanted: Callable[[Key], bool] = lambda _key: True) -> Key | None:
        """Return a key of a section; None if there is none."""
        keys = [key for key in self.state if key[0] == section and is_wanted(key)]
        return self.rng.choice(keys) if keys else None

    def _gone(self, section: str, *prefix: str) -> Change | None:
        """Return a change that deletes one of a section at `prefix` and its names."""
        key = self._key(section)
        return None if key is None else Change("DELETE", path(*prefix, *key[1:]), removed=key.__eq__)

    # -- users and vhosts -------------------------------------------------------------------------------------------

    def user(self) -> Change:
        """Create a user, or change its password and tags."""
        name = self.rng.choice(USERS[:-1])
        tags = sorted(self.rng.sample(TAGS, self.rng.randrange(3)))
        password = f"secret {self.number}"
        limits = self.state.get(("user", name), ("", "", "{}"))[2]
        added = {("user", name): (plain(tags), password, limits)}
        return Change("PUT", path("users", name), {"tags": tags, "password": password}, added)

    def delete_user(self) -> Change | None:
        key = self._key("user", lambda key: key[1] != ADMINISTRATOR)
        if key is None:
            return None
        name = key[1]
        return Change("DELETE", path("users", name), removed=lambda key: _is_of_user(key, name))

    def delete_users(self) -> Change:
        names = [key[1] for key in self.state if key[0] == "user" and key[1] != ADMINISTRATOR][:2]
        return Change(
            "POST",
            "users/bulk-delete",
            {"users": names},
            removed=lambda key: any(_is_of_user(key, name) for name in names),
        )

    def user_limit(self) -> Change:
        name, limit = self._user(), self.rng.choice(("max-connections", "max-channels"))
        tags, password, limits = self.state["user", name]
        value = self.rng.randrange(100, 10_000)
        added = {("user", name): (tags, password, plain(json.loads(limits) | {limit: value}))}
        return Change("PUT", path("user-limits", name, limit), {"value": value}, added)

    def delete_user_limit(self) -> Change:
        """Remove a limit of a user, which it may not have."""
        name, limit = self._user(), self.rng.choice(("max-connections", "max-channels"))
        tags, password, text = self.state["user", name]
        limits = json.loads(text)
        limits.pop(limit, None)
        added = {("user", name): (tags, password, plain(limits))}
        return Change("DELETE", path("user-limits", name, limit), None, added)

    def vhost(self) -> Change:
        """Create a vhost, or set its metadata; who creates one may use it."""
        name = self.rng.choice(VHOSTS)
        description = f"number {self.number}"
        added: State = {("vhost", name): description}
        if ("vhost", name) not in self.state:
            added["permission", name, ADMINISTRATOR] = (".*", ".*", ".*")
        return Change("PUT", path("vhosts", name), {"description": description}, added)

    def delete_vhost(self) -> Change | None:
        key = self._key("vhost", lambda key: key[1] != VHOSTS[0])
        if key is None:
            return None
        name = key[1]
        return Change(
            "DELETE",
            path("vhosts", name),
            removed=lambda key: key[1] == name and key[0] not in {"user", "global"},
        )

    def vhost_limit(self) -> Change:
        vhost, limit = self._vhost(), self.rng.choice(("max-connections", "max-queues"))
        key = ("parameter", vhost, LIMITS, "limits")
        value = self.rng.randrange(1000, 10_000)
        limits = dict(json.loads(self.state.get(key, NO_LIMITS))) | {limit: value}
        return Change("PUT", path("vhost-limits", vhost, limit), {"value": value}, {key: plain(limits)})

    # -- permissions, policies, parameters --------------------------------------------------------------------------

    def permission(self) -> Change:
        """Set permissions; those of the administrator stay, because it makes the changes."""
        vhost, user = self._vhost(), self._user()
        given = [".*"] * 3 if user == ADMINISTRATOR else [self.rng.choice(PATTERNS) for _ in range(3)]
        body = dict(zip(("configure", "write", "read"), given, strict=True))
        return Change(
            "PUT", path("permissions", vhost, user), body, {("permission", vhost, user): tuple(given)}
        )

    def delete_permission(self) -> Change | None:
        key = self._key("permission", lambda key: key[2] != ADMINISTRATOR)
        if key is None:
            return None
        return Change("DELETE", path("permissions", *key[1:]), removed=key.__eq__)

    def topic_permission(self) -> Change:
        vhost, user = self._vhost(), self._user()
        write, read = (self.rng.choice(PATTERNS) for _ in range(2))
        body = {"exchange": "amq.topic", "write": write, "read": read}
        added = {("topic", vhost, user, "amq.topic"): (write, read)}
        return Change("PUT", path("topic-permissions", vhost, user), body, added)

    def delete_topic_permission(self) -> Change | None:
        return self._gone("topic", "topic-permissions")

    def _policy_body(self) -> dict[str, object]:
        return {
            "pattern": self.rng.choice(PATTERNS),
            "definition": {"max-length": self.rng.randrange(1000, 9999)},
            "priority": self.rng.randrange(5),
            "apply-to": "queues",
        }

    def policy(self) -> Change:
        vhost, name = self._vhost(), self._name()
        body = self._policy_body()
        return Change("PUT", path("policies", vhost, name), body, {("policy", vhost, name): plain(body)})

    def delete_policy(self) -> Change | None:
        return self._gone("policy", "policies")

    def operator_policy(self) -> Change:
        vhost, name = self._vhost(), self._name()
        body = self._policy_body()
        added = {("parameter", vhost, "operator_policy", name): plain(body)}
        return Change("PUT", path("operator-policies", vhost, name), body, added)

    def delete_operator_policy(self) -> Change | None:
        key = self._key("parameter", lambda key: key[2] == "operator_policy")
        if key is None:
            return None
        return Change("DELETE", path("operator-policies", key[1], key[3]), removed=key.__eq__)

    def delete_vhost_limit(self) -> Change | None:
        """Remove a limit of a vhost, maybe its last."""
        key = self._key("parameter", lambda key: key[2] == LIMITS and self.state[key] != NO_LIMITS)
        if key is None:
            return None
        limits = json.loads(self.state[key])
        limit = self.rng.choice(sorted(limits))
        del limits[limit]
        added = {key: plain(limits) if limits else NO_LIMITS}
        return Change("DELETE", path("vhost-limits", key[1], limit), None, added)

    def delete_parameter(self) -> Change | None:
        """Remove all limits of a vhost."""
        key = self._key("parameter", lambda key: key[2] == LIMITS)
        if key is None:
            return None
        where = path("parameters", LIMITS, key[1], "limits")
        return Change("DELETE", where, removed=key.__eq__)

    def parameter(self) -> Change:
        """Set the limits of a vhost as what they are, a parameter."""
        vhost, value = self._vhost(), {"max-queues": self.rng.randrange(1000, 10_000)}
        added = {("parameter", vhost, LIMITS, "limits"): plain(value)}
        return Change("PUT", path("parameters", LIMITS, vhost, "limits"), {"value": value}, added)

    def global_parameter(self) -> Change:
        name, value = self._name(), {"number": self.number, "list": [1, None, "x"]}
        return Change(
            "PUT", path("global-parameters", name), {"value": value}, {("global", name): plain(value)}
        )

    def delete_global_parameter(self) -> Change | None:
        key = self._key("global", lambda key: key[1] in NAMES)
        if key is None:
            return None
        return Change("DELETE", path("global-parameters", key[1]), removed=key.__eq__)

    def cluster_name(self) -> Change:
        name = f"cluster-{self.number}"
        return Change("PUT", "cluster-name", {"name": name}, {("global", "cluster_name"): plain(name)})

    # -- queues, exchanges, bindings, messages ----------------------------------------------------------------------

    def queue(self) -> Change | None:
        """Declare a durable queue that is not there."""
        vhost, name = self._vhost(), self._name()
        if ("queue", vhost, name) in self.state:
            return None
        arguments = self.rng.choice(({}, {"x-max-priority": 5}, {"x-queue-type": "quorum"}))
        return Change(
            "PUT",
            path("queues", vhost, name),
            {"durable": True, "arguments": arguments},
            {("queue", vhost, name): plain(arguments), ("messages", vhost, name): 0},
        )

    def delete_queue(self) -> Change | None:
        key = self._key("queue")
        if key is None:
            return None
        _, vhost, name = key
        return Change(
            "DELETE",
            path("queues", vhost, name),
            removed=lambda each: (
                each in {key, ("messages", vhost, name)}
                or (each[:2] == ("binding", vhost) and each[3:5] == ("queue", name))
            ),
        )

    def exchange(self) -> Change | None:
        """Declare a durable exchange that is not there."""
        vhost, name = self._vhost(), self._name()
        if ("exchange", vhost, name) in self.state:
            return None
        body = {"type": self.rng.choice(("direct", "topic", "headers", "fanout")), "durable": True}
        return Change("PUT", path("exchanges", vhost, name), body, {("exchange", vhost, name): body["type"]})

    def delete_exchange(self) -> Change | None:
        key = self._key("exchange")
        if key is None:
            return None
        _, vhost, name = key
        return Change(
            "DELETE",
            path("exchanges", vhost, name),
            removed=lambda each: (
                each == key
                or (each[:2] == ("binding", vhost) and (each[2] == name or each[3:5] == ("exchange", name)))
            ),
        )

    def binding(self) -> Change | None:
        key = self._key(self.rng.choice(("queue", "exchange")))
        if key is None:
            return None
        kind, vhost, name = key
        sources = [each[2] for each in self.state if each[:2] == ("exchange", vhost)]
        source = self.rng.choice([FANOUT, *sources])
        arguments = {"number": self.number} if self.rng.random() < 0.5 else {}
        body = {"routing_key": f"key {self.number}", "arguments": arguments}
        added = {("binding", vhost, source, kind, name, body["routing_key"], plain(arguments)): True}
        return Change("POST", path("bindings", vhost, "e", source, kind[0], name), body, added)

    def delete_binding(self) -> Change | None:
        """Remove a binding without arguments."""
        key = self._key("binding", lambda key: key[-1] == "{}")
        if key is None:
            return None
        _, vhost, source, kind, name, routing_key, _ = key
        where = path("bindings", vhost, "e", source, kind[0], name, quote_plus(routing_key))
        return Change("DELETE", where, removed=key.__eq__)

    def publish(self) -> Change | None:
        """Publish a persistent message to a queue."""
        key = self._key("queue")
        if key is None:
            return None
        body = {
            "properties": {"delivery_mode": 2},
            "routing_key": key[2],
            "payload": f"payload {self.number}",
            "payload_encoding": "string",
        }
        added = {("messages", *key[1:]): self.state["messages", *key[1:]] + 1}
        return Change("POST", path("exchanges", key[1], "amq.default", "publish"), body, added)

    def get(self) -> Change | None:
        """Take a message out of a queue that has one."""
        key = self._key("messages", lambda key: self.state[key] > 0)
        if key is None:
            return None
        body = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
        return Change("POST", path("queues", *key[1:], "get"), body, {key: self.state[key] - 1})

    def purge(self) -> Change | None:
        key = self._key("messages")
        return None if key is None else Change("DELETE", path("queues", *key[1:], "contents"), None, {key: 0})

    def definitions(self) -> Change:
        """Import definitions of several kinds."""
        vhost, name = self.rng.choice(VHOSTS[1:]), f"imported {self.number % 5}"
        there = ("messages", vhost, name) in self.state
        document = {
            "vhosts": [{"name": vhost, "metadata": {"description": "imported", "tags": []}}],
            "permissions": [
                {"user": ADMINISTRATOR, "vhost": vhost, "configure": ".*", "write": ".*", "read": ".*"}
            ],
            "queues": [
                {"name": name, "vhost": vhost, "durable": True, "auto_delete": False, "arguments": {}}
            ],
            "bindings": [
                {
                    "source": FANOUT,
                    "vhost": vhost,
                    "destination": name,
                    "destination_type": "queue",
                    "routing_key": f"key {self.number}",
                    "arguments": {},
                }
            ],
            "global_parameters": [{"name": NAMES[0], "value": self.number}],
        }
        added: State = {
            ("vhost", vhost): "imported",
            ("permission", vhost, ADMINISTRATOR): (".*", ".*", ".*"),
            ("queue", vhost, name): "{}",
            ("binding", vhost, FANOUT, "queue", name, f"key {self.number}", "{}"): True,
            ("global", NAMES[0]): plain(self.number),
        }
        if not there:
            added["messages", vhost, name] = 0
        return Change("POST", "definitions", document, added)


KINDS = tuple(name for name in vars(Changes) if not name.startswith("_") and name != "made")
"""The names of all kinds of changes."""


def _is_of_user(key: Key, name: str) -> bool:
    return key == ("user", name) or (key[0] in {"permission", "topic"} and key[2] == name)
