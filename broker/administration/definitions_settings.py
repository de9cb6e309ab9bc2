"""Checks of an import for what it replaces: vhosts, users, permissions, parameters and policies."""

from typing import Any, Final

import msgspec

from leveret.broker.administration.access import AdministeredBroker, checked_limits
from leveret.broker.administration.definitions_document import (
    GlobalParameterEntry,
    ParameterEntry,
    PermissionEntry,
    PolicyEntry,
    TopicPermissionEntry,
    UserEntry,
    VHostEntry,
    as_object,
    as_words,
)
from leveret.broker.administration.definitions_planned import Names, Planned, check_short
from leveret.broker.administration.users import (
    check_password_rules,
    check_user,
    shown_user_limits,
    user_limits_of,
    user_of,
)
from leveret.broker.administration.vhosts import (
    check_vhost_limit,
    check_vhost_name,
    checked_queue_type,
    protect_vhost,
    put_vhost,
    set_vhost_limits,
    shown_vhost_limits,
)
from leveret.broker.auth.passwords import SHA256, Password, check_password
from leveret.broker.auth.users import USER_LIMITS, VHOST_LIMITS, Users
from leveret.broker.vhost.parameter_checks import SHOVEL, check_keys, refuse
from leveret.broker.vhost.parameters import OPERATOR_POLICY, check_parameter
from leveret.broker.vhost.policies import Policy
from leveret.broker.vhost.policy_keys import policy_keys

_NEW_HASH: Final = "new"
"""Stands for the hash of a password that is not the present one: it is computed when it is stored."""


class SettingsChecks:
    """Checks entries against existing objects and the entries before them. All raise for invalid ones.

    Args:
        broker: the broker.
        names: what entries may refer to.

    """

    def __init__(self, broker: AdministeredBroker, names: Names) -> None:
        self._broker = broker
        self._names = names
        self._vhost_count = len(broker.vhosts)
        self._patterns = broker.users.patterns
        self._tried = Users(patterns=self._patterns)
        """Scratch users that receive each permission for a moment."""

    def vhost(self, entry: VHostEntry) -> Planned:
        """Check a vhost."""
        broker = self._broker
        check_vhost_name(entry.name)
        present = broker.vhosts.get(entry.name)
        if present is None and ("vhosts", entry.name) not in self._names.added:
            check_vhost_limit(broker, entry.name, self._vhost_count + 1)
            self._vhost_count += 1
        metadata = entry.metadata
        properties: dict[str, Any] = {
            "description": metadata.description or entry.description,
            "tags": tuple(as_words(metadata.tags or entry.tags)),
            "default_queue_type": checked_queue_type(
                metadata.default_queue_type or entry.default_queue_type or ""
            ),
        }
        limits = checked_limits(as_object(entry.limits) or {}, VHOST_LIMITS, "limits")
        given = metadata.protected_from_deletion
        protection = {} if given is None or given is msgspec.UNSET else {"protected_from_deletion": given}
        self._names.added.add(("vhosts", entry.name))
        self._names.queue_types[entry.name] = properties["default_queue_type"]

        def apply() -> None:
            put_vhost(broker, entry.name, **properties)
            if protection:
                protect_vhost(
                    broker, broker.vhosts[entry.name], is_protected=protection["protected_from_deletion"]
                )
            if limits:
                set_vhost_limits(broker, entry.name, limits)

        before: dict[str, Any] | None = None
        if present is not None:
            before = {
                "description": present.description,
                "tags": present.tags,
                "default_queue_type": present.default_queue_type,
            }
            if protection:
                before["protected_from_deletion"] = present.is_protected
            if limits:
                before["limits"] = shown_vhost_limits(broker.users.vhost_limits(entry.name))
        after = {**properties, **protection, **({"limits": _set(limits)} if limits else {})}
        return Planned(before, after, apply)

    def user(self, entry: UserEntry) -> Planned:
        """Check a user."""
        given_hash = None if entry.password_hash is msgspec.UNSET else entry.password_hash
        users = self._broker.users
        present = users.get(entry.name)
        check_user(entry.name, entry.hashing_algorithm, given_hash, present)
        limits = checked_limits(as_object(entry.limits) or {}, USER_LIMITS, "user-limits")
        given_password = entry.password or None
        algorithm = entry.hashing_algorithm
        if (
            given_hash is None
            and given_password
            and present is not None
            and present.hashing_algorithm == algorithm
            and check_password(Password(given_password), present.password_hash, algorithm)
        ):
            given_hash = present.password_hash
        if given_hash is None:
            check_password_rules(users, given_password)
            if given_password and algorithm == SHA256:  # the default of an entry
                algorithm = users.passwords.algorithm
        self._names.added.add(("users", entry.name))

        def apply() -> None:
            user = user_of(
                users.get(entry.name),
                entry.name,
                tags=as_words(entry.tags),
                password=given_password,
                password_hash=given_hash,
                hashing_algorithm=algorithm,
            )
            users.add(user)
            users.set_user_limits(entry.name, user_limits_of(limits))

        before = None
        shown_hash = _NEW_HASH if given_hash is None and given_password else given_hash or ""
        if present is not None:
            before = {
                "tags": list(present.tags),
                "password_hash": present.password_hash,
                "hashing_algorithm": present.hashing_algorithm,
                "limits": shown_user_limits(users.user_limits(entry.name)),
            }
            if given_hash is None and not given_password:
                shown_hash, algorithm = present.password_hash, present.hashing_algorithm
        after = {
            "tags": list(dict.fromkeys(as_words(entry.tags))),
            "password_hash": shown_hash,
            "hashing_algorithm": algorithm,
            "limits": _set(limits),
        }
        return Planned(before, after, apply)

    def permission(self, entry: PermissionEntry) -> Planned:
        """Check permissions."""
        self._names.check_vhost(entry.vhost)
        self._names.check_user(entry.user)
        rights = {"configure": entry.configure, "write": entry.write, "read": entry.read}
        self._tried.set_permissions(entry.user, entry.vhost, **rights)
        self._tried.clear_permissions(entry.user, entry.vhost)
        users = self._broker.users
        before = None
        if users.may_access(entry.user, entry.vhost):
            row = users.permissions(entry.user, entry.vhost)
            before = {"configure": row.configure, "write": row.write, "read": row.read}
        return Planned(before, rights, lambda: users.set_permissions(entry.user, entry.vhost, **rights))

    def topic_permission(self, entry: TopicPermissionEntry) -> Planned:
        """Check topic permissions."""
        self._names.check_vhost(entry.vhost)
        self._names.check_user(entry.user)
        check_short("the name of the exchange", entry.exchange)
        identity = entry.user, entry.vhost, entry.exchange
        rights = {"write": entry.write, "read": entry.read}
        self._tried.set_topic_permissions(*identity, **rights)
        self._tried.clear_topic_permissions(*identity)
        users = self._broker.users
        row = users.topic_permissions(entry.user, entry.vhost).rows.get(entry.exchange)
        before = None if row is None else {"write": row.write, "read": row.read}
        return Planned(before, rights, lambda: users.set_topic_permissions(*identity, **rights))

    def parameter(self, entry: ParameterEntry) -> Planned:
        """Check a parameter of a vhost, or an operator policy."""
        self._names.check_vhost(entry.vhost)
        broker = self._broker
        value = as_object(entry.value)
        place = broker.vhosts.get(entry.vhost)
        if entry.component == OPERATOR_POLICY:
            if isinstance(value, dict):
                value = value | {"definition": as_object(value.get("definition"))}
            refuse(check_keys(entry.name, policy_keys(self._patterns, operator=True), value))
            before = None if place is None else _term(place.policies.get(entry.name, operator=True))
            after = {"apply-to": "all", **value}
        elif entry.component == SHOVEL:
            check_parameter(entry.component, entry.name, value)
            before = None if place is None else place.parameters.get(entry.component, entry.name)
            after = value
            if before == after:  # so that it is not restarted
                return Planned(before, after, _nothing)
        else:
            check_parameter(entry.component, entry.name, value)
            before = shown_vhost_limits(broker.users.vhost_limits(entry.vhost)) or None
            after = _set(value or {})
            if before is None and not after:
                before = {}
        return Planned(
            before, after, lambda: broker.parameters.set(entry.vhost, entry.component, entry.name, value)
        )

    def global_parameter(self, entry: GlobalParameterEntry) -> Planned:
        """Check a global parameter."""
        parameters = self._broker.global_parameters
        value = as_object(entry.value)
        before = {"value": parameters.get(entry.name)} if entry.name in parameters else None
        return Planned(before, {"value": value}, lambda: parameters.set(entry.name, value))

    def policy(self, entry: PolicyEntry) -> Planned:
        """Check a policy."""
        self._names.check_vhost(entry.vhost)
        term = {
            "pattern": entry.pattern,
            "definition": as_object(entry.definition),
            "priority": entry.priority,
            "apply-to": entry.apply_to,
        }
        refuse(check_keys(entry.name, policy_keys(self._patterns, operator=False), term))
        vhosts = self._broker.vhosts
        place = vhosts.get(entry.vhost)
        before = None if place is None else _term(place.policies.get(entry.name))
        return Planned(before, term, lambda: vhosts[entry.vhost].policies.set_term(entry.name, term))


def _nothing() -> None:
    pass


def _set(limits: dict[str, int]) -> dict[str, int]:
    """Return the limits that are set by these: a negative number is none."""
    return {name: limit for name, limit in limits.items() if limit >= 0}


def _term(policy: Policy | None) -> dict[str, Any] | None:
    return None if policy is None else policy.term()
