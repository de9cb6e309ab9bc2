"""The policies of the set-up `policed`: those of a case are for the queues and exchanges that have its name."""

from typing import Any

LIMIT = {"max-length": 2}
DEAD = {"dead-letter-exchange": "", "dead-letter-routing-key": "{case}-dead"}
"""Dead letters go to the queue of the case that is named so."""

# by case: definition, priority, apply-to, and whether it is the operator's
_POLICIES: dict[str, list[tuple[dict[str, Any], int, str, bool]]] = {
    "ttl": [({"message-ttl": 30}, 0, "all", False)],
    "ttl-argument": [({"message-ttl": 600_000}, 0, "all", False)],
    "ttl-smaller": [({"message-ttl": 30}, 0, "all", False)],
    "ttl-operator": [({"message-ttl": 600_000}, 0, "all", False), ({"message-ttl": 30}, 0, "all", True)],
    "expires": [({"expires": 50}, 0, "queues", False)],
    "expires-argument": [({"expires": 600_000}, 0, "queues", False)],
    "expires-operator": [({"expires": 50}, 0, "queues", True)],
    "length": [(LIMIT, 0, "all", False)],
    "length-octets": [({"max-length-bytes": 2}, 0, "all", False)],
    "length-argument": [(LIMIT, 0, "all", False)],
    "length-smaller": [(LIMIT, 0, "all", False)],
    "length-operator": [({"max-length": 3}, 0, "all", False), (LIMIT, 0, "all", True)],
    "length-operator-larger": [(LIMIT, 0, "all", False), ({"max-length": 3}, 0, "all", True)],
    "length-operator-alone": [(LIMIT, 0, "all", True)],
    "length-operator-argument": [(LIMIT, 0, "all", True)],
    "reject": [({**LIMIT, "overflow": "reject-publish"}, 0, "all", False)],
    "reject-dlx": [
        ({**LIMIT, **DEAD, "overflow": "reject-publish-dlx"}, 0, "all", False),
    ],
    "overflow-argument": [({**LIMIT, "overflow": "drop-head"}, 0, "all", False)],
    "overflow-alone": [({"overflow": "reject-publish"}, 0, "all", False)],
    "dead": [(DEAD, 0, "all", False)],
    "dead-key": [({"dead-letter-exchange": "amq.fanout"}, 0, "all", False)],
    "dead-argument": [
        ({**DEAD, "dead-letter-exchange": "nowhere"}, 0, "all", False)
    ],
    "dead-key-argument": [
        ({"dead-letter-exchange": "", "dead-letter-routing-key": "nowhere"}, 0, "all", False)
    ],
    "dead-gone": [({"dead-letter-exchange": "no such exchange"}, 0, "all", False)],
    "lazy": [({"queue-mode": "lazy"}, 0, "all", False)],
    "alternate": [({"alternate-exchange": "amq.fanout"}, 0, "all", False)],
    "alternate-argument": [({"alternate-exchange": "amq.fanout"}, 0, "all", False)],
    "alternate-queues": [({"alternate-exchange": "amq.fanout"}, 0, "queues", False)],
    "alternate-gone": [({"alternate-exchange": "no such exchange"}, 0, "exchanges", False)],
    "priority": [(LIMIT, 1, "all", False), ({"queue-mode": "lazy"}, 5, "all", False)],
    "priority-negative": [(LIMIT, -1, "all", False), ({"max-length": 1}, -2, "all", False)],
    "exchanges": [(LIMIT, 0, "exchanges", False)],
    "quorum-only": [({**LIMIT, "dead-letter-strategy": "at-most-once"}, 0, "all", False)],
    "stream-only": [({**LIMIT, "max-age": "1D"}, 0, "all", False)],
    "quorum-only-operator": [({"max-length": 1}, 0, "all", False), (LIMIT, 0, "all", True)],
    "quorum": [({**LIMIT, "dead-letter-strategy": "at-most-once"}, 0, "all", False)],
    "quorum-limit": [
        ({"delivery-limit": 1, **DEAD}, 0, "all", False)
    ],
    "quorum-classic-only": [({**LIMIT, "queue-mode": "lazy"}, 0, "all", False)],
    "delivery-limit": [({**LIMIT, "delivery-limit": 1}, 0, "all", False)],
    "redeclare": [(LIMIT, 0, "all", False)],
    "exclusive": [(LIMIT, 0, "all", False)],
    "deleted": [(LIMIT, 0, "all", False)],
    "mirrors": [({**LIMIT, "ha-mode": "all"}, 0, "all", False)],
}  # fmt: skip

# patterns that are no case's name
_PATTERNS: list[tuple[str, str, dict[str, Any], str]] = [
    ("generated", "^amq\\.gen-", LIMIT, "queues"),
    ("in the middle", "MIDDLE", LIMIT, "queues"),
    ("any case", "(?i)^QUEUE OF ANY CASE$", LIMIT, "queues"),
    ("default", "^$", {"alternate-exchange": "amq.fanout"}, "exchanges"),
    ("predeclared", "^amq[.]headers$", {"alternate-exchange": "amq.fanout"}, "exchanges"),
    ("elsewhere", "^q-policy-elsewhere", LIMIT, "queues"),
]


def policies(*, operator: bool) -> list[dict[str, Any]]:
    """The policies or operator policies as definitions have them."""
    return [
        {
            "vhost": "/",
            "name": f"{case} {number}",
            "pattern": f"^[qx]-policy-{case}$",
            "definition": {
                key: value.format(case=f"q-policy-{case}") if isinstance(value, str) else value
                for key, value in definition.items()
            },
            "priority": priority,
            "apply-to": apply_to,
        }
        for case, rows in _POLICIES.items()
        for number, (definition, priority, apply_to, is_operators) in enumerate(rows)
        if is_operators is operator
    ] + [
        {
            "vhost": "other" if name == "elsewhere" else "/",
            "name": name,
            "pattern": pattern,
            "definition": definition,
            "priority": 0,
            "apply-to": apply_to,
        }
        for name, pattern, definition, apply_to in _PATTERNS
        if not operator
    ]


def operator_parameters() -> list[dict[str, Any]]:
    """The operator policies as the parameters that RabbitMQ's definitions have of them."""
    return [
        {
            "vhost": policy.pop("vhost"),
            "name": policy.pop("name"),
            "component": "operator_policy",
            "value": policy,
        }
        for policy in policies(operator=True)
    ]
