"""State of an object before and after a change, for the audit log: without passwords, hashes and other secrets. Pure.

Each function takes the call, and returns a value of JSON, None if there is no such object. It raises nothing and checks
no rights: the audit log is the operator's. What may be secret in free values is masked when it is recorded.
"""

from collections.abc import Mapping
from typing import Any

from leveret.broker.auth.users import limits_by_name
from leveret.broker.http.call import Call
from leveret.broker.http.errors import ApiError
from leveret.broker.vhost.parameter_checks import SHOVEL
from leveret.broker.vhost.parameters import LIMITS, OPERATOR_POLICY
from leveret.broker.vhost.shovel_keys import shown_without_secrets

State = Mapping[str, Any] | list[Any] | None


def user(call: Call) -> State:
    """Return the tags of a user, and whether it has a password."""
    return _user(call, call.names["user"])


def users(call: Call) -> State:
    """Return the users that the body names."""
    try:
        names = call.body().get("users")
    except ApiError:
        return None
    if not isinstance(names, list):
        return None
    found = ((name, _user(call, name)) for name in names if isinstance(name, str))
    return [{"name": name, **row} for name, row in found if row is not None] or None


def _user(call: Call, name: str) -> dict[str, Any] | None:
    found = call.broker.users.get(name)
    if found is None:
        return None
    return {"tags": list(found.tags), "may_log_in": bool(found.password_hash)}


def permissions(call: Call) -> State:
    """Return the permissions of a user in a vhost."""
    rights, name, vhost = call.broker.users, call.names["user"], call.names["vhost"]
    if not rights.may_access(name, vhost):
        return None
    row = rights.permissions(name, vhost)
    return {"configure": row.configure, "write": row.write, "read": row.read}


def topic_permissions(call: Call) -> State:
    """Return the topic permissions of a user in a vhost, by exchange."""
    rows = call.broker.users.topic_permissions(call.names["user"], call.names["vhost"]).rows
    wanted = call.names.get("exchange")
    found = {
        name: {"write": row.write, "read": row.read}
        for name, row in rows.items()
        if wanted in {None, name}
    }  # fmt: skip
    return found or None


def policy(call: Call, *, operator: bool) -> State:
    """Return a policy or an operator policy, which may be set as a parameter, too."""
    vhost = call.broker.vhosts.get(call.names["vhost"])
    name = call.names["policy" if "policy" in call.names else "name"]
    found = None if vhost is None else vhost.policies.get(name, operator=operator)
    return None if found is None else found.term()


def parameter(call: Call) -> State:
    """Return the value of a parameter of a vhost; without the URIs and passwords of a shovel."""
    vhost, component, name = (call.names[key] for key in ("vhost", "component", "name"))
    if component == LIMITS:
        return vhost_limits(call)
    if component == OPERATOR_POLICY:
        return policy(call, operator=True)
    found = call.broker.vhosts.get(vhost)
    value = None if found is None else found.parameters.get(component, name)
    if value is None:
        return None
    return {"value": shown_without_secrets(value) if component == SHOVEL else value}


def global_parameter(call: Call) -> State:
    """Return the value of a global parameter, under its name, which may tell that it is secret."""
    name, values = call.names["name"], call.broker.global_parameters.list()
    return {name: values[name]} if name in values else None


def vhost_limits(call: Call) -> State:
    """Return the limits of a vhost."""
    return limits_by_name(call.broker.users.vhost_limits(call.names["vhost"])) or None


def user_limits(call: Call) -> State:
    """Return the limits of a user."""
    return limits_by_name(call.broker.users.user_limits(call.names["user"])) or None


def vhost(call: Call) -> State:
    """Return the settings of a vhost."""
    found = call.broker.vhosts.get(call.names["vhost"])
    if found is None:
        return None
    return {
        "description": found.description,
        "tags": list(found.tags),
        "default_queue_type": found.default_queue_type,
        "protected_from_deletion": found.is_protected,
        "tracing": found.tapping.firehose is not None,
    }


def cluster_name(call: Call) -> State:
    """Return the name that clients see."""
    return {"name": call.broker.cluster_name}
