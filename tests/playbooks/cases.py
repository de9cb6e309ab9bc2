"""Cases for the modules of Ansible's collection for RabbitMQ, in the vhosts `/` and `other`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LOGIN = {
    "login_host": "127.0.0.1",
    "login_port": "{{ port }}",
    "login_user": "guest",
    "login_password": "guest",
}
"""For modules that use the HTTP API; without it those that know both call `rabbitmqctl`."""


@dataclass(frozen=True, slots=True)
class Case:
    """A module, and the arguments with which it makes something and removes it.

    Attributes:
        name: of the case.
        module: of the collection, without `rabbitmq_`.
        present: its arguments; `{{ port }}` is the port of the management API.
        absent: arguments that remove it again, of the same names or further ones; None if nothing does.
        expected: the result of each run: present twice, then absent twice.
        ours: the results on this project's broker where they differ, '' if they do not.
        reason: why they differ.

    """

    name: str
    module: str
    present: Mapping[str, Any]
    absent: Mapping[str, Any] | None = field(default_factory=lambda: {"state": "absent"})
    expected: str = "changed ok changed ok"
    ours: str = ""
    reason: str = ""


PERMISSIONS = [{"vhost": "/", "configure_priv": "^a", "write_priv": ".*", "read_priv": ""},
               {"vhost": "other", "configure_priv": "", "write_priv": "", "read_priv": ".*"}]  # fmt: skip
NOT_EMPTY = [{"vhost": "other", "configure_priv": "^a", "write_priv": ".*", "read_priv": "^$"}]
TOPIC_PERMISSIONS = [{"vhost": "other", "exchange": "amq.topic", "write_priv": "^a\\.", "read_priv": ".*"}]
USER = {"name": "ann", "password": "s3cret pass", "tags": "monitoring,policymaker", "permissions": PERMISSIONS,
        "topic_permissions": TOPIC_PERMISSIONS, "update_password": "always"}  # fmt: skip
POLICY = {"name": "p 1", "vhost": "other", "pattern": "^q\\.[0-9]+$", "apply_to": "queues", "priority": "3",
          "tags": {"max-length": 10, "dead-letter-exchange": "amq.direct"}}  # fmt: skip
QUEUE = {"name": "q/1", "message_ttl": 60000, "max_length": 5, "max_priority": 4, **LOGIN}

CASES = (
    Case("user", "user", USER),
    # The module writes ^$ where it is given an empty pattern over HTTP, and then finds a difference, with any broker.
    Case("user by HTTP", "user", USER | LOGIN | {"permissions": NOT_EMPTY}),
    Case("user without password", "user", {"name": "bob", "configure_priv": ".*", "read_priv": "^$"}),
    Case("vhost", "vhost", {"name": "v 1"}),
    Case("vhost with tracing", "vhost", {"name": "v2", "tracing": True}),
    Case("vhost by HTTP", "vhost", {"name": "v/3", **LOGIN}),
    Case("vhost with tracing by HTTP", "vhost", {"name": "v4", "tracing": True, **LOGIN}),
    Case("vhost_limits", "vhost_limits", {"vhost": "other", "max_connections": 64, "max_queues": 256}),
    Case("user_limits", "user_limits", {"user": "limited", "max_connections": 64, "max_channels": 256}),
    Case("policy", "policy", POLICY),
    Case("policy by HTTP", "policy", POLICY | LOGIN),
    Case("policy with defaults", "policy", {"name": "p2", "pattern": ".*", "tags": {"expires": 1800000}}),
    Case("parameter", "parameter", {"vhost": "other", "component": "vhost-limits", "name": "limits",
                                    "value": '{"max-queues": 100}'}),
    Case("global_parameter", "global_parameter", {"name": "g1", "value": '{"a": [1, "b", null]}'}),
    Case("global_parameter with text", "global_parameter", {"name": "g2", "value": '"a b"'}),
    Case("exchange", "exchange", {"name": "x/1", "type": "topic", "durable": True,
                                  "arguments": {"alternate-exchange": "amq.fanout"}, **LOGIN}),
    Case("queue", "queue", QUEUE),
    Case("queue of a type", "queue", {"name": "q2", "arguments": {"x-queue-type": "quorum"}, **LOGIN}),
    Case("set-up of bindings: queue", "queue", {"name": "bound", **LOGIN}, None, "changed ok"),
    Case("binding", "binding", {"name": "amq.topic", "destination": "bound", "type": "queue",
                                "routing_key": "a.*.#", **LOGIN}),
    Case("binding with arguments", "binding", {"name": "amq.headers", "destination": "bound",
                                               "type": "queue", "arguments": {"x-match": "any", "k": "v"}, **LOGIN}),
    Case("binding of an exchange", "binding", {"name": "amq.direct", "destination": "amq.fanout",
                                               "type": "exchange", "routing_key": "a/b c", **LOGIN}),
    Case("feature_flag", "feature_flag", {"name": "quorum_queue"}, None, "ok ok"),
    Case("plugin", "plugin", {"names": "rabbitmq_management", "new_only": True}, None, "ok ok"),
    Case("plugin of others", "plugin", {"names": "rabbitmq_mqtt", "new_only": True}, {"state": "disabled"},
         ours="changed changed ok ok", reason="a plugin that is not there is not listed as enabled"),
    Case("upgrade", "upgrade", {"action": "drain"}, {"action": "revive"},
         ours="changed changed ok ok", reason="there is no maintenance mode: drain and revive do nothing"),
    Case("publish", "publish", {"url": "amqp://guest:guest@127.0.0.1:{{ amqp_port }}/%2F", "exchange": "amq.fanout",
                                "body": "text", "headers": {"k": "v"}}, None, "changed changed"),
)  # fmt: skip
