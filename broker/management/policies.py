"""Policies and parameters: `/api/policies`, `/api/operator-policies`, `/api/parameters`, `/api/global-parameters`.

Shovels are parameters, too; `/api/shovels` shows their status, as RabbitMQ's plugin does.
"""

import contextlib
from functools import partial
from typing import Any

from leveret.broker.administration.access import (
    BadRequestError,
    NotFoundError,
    Right,
    found_vhost as vhost_named,
    may_see,
)
from leveret.broker.administration.policies import policy_preview
from leveret.broker.administration.setting_catalogue import catalogue
from leveret.broker.http.call import Answer, Call, Done, Item, Listing, Steps
from leveret.broker.http.errors import bad_request, escaped, not_found, vhost_not_found
from leveret.broker.http.route import Key, Routes, Scope, required
from leveret.broker.management.vhosts import limits_state
from leveret.broker.vhost.parameter_checks import SHOVEL
from leveret.broker.vhost.parameters import LIMITS, OPERATOR_POLICY
from leveret.broker.vhost.shovel_keys import shown_without_secrets

ROUTES = Routes("policies", scope=Scope.VHOST)
PARAMETER_ROUTES = Routes("parameters", needs=Right.POLICYMAKER, scope=Scope.VHOST)
SHOVEL_ROUTES = Routes("shovels")


def _policy_state(call: Call, *, operator: bool) -> dict[str, Any] | None:
    """Return a policy or an operator policy, which may be set as a parameter, too, for the audit log."""
    vhost = call.broker.vhosts.get(call.names["vhost"])
    name = call.names["policy" if "policy" in call.names else "name"]
    found = None if vhost is None else vhost.policies.get(name, operator=operator)
    return None if found is None else found.term()


_BODY = (
    required("pattern", doc="regular expression that names match"),
    required("definition", "object", doc="settings by their names"),
    Key("priority", "number", doc="the highest that matches applies; 0"),
    Key("apply-to", doc="all, queues, exchanges, classic_queues, quorum_queues or streams; all"),
)
_POLICY, _OPERATOR = (
    {
        "needs": needs,
        "state": partial(_policy_state, operator=operator),
        "arguments": {"operator": operator},
    }
    for needs, operator in ((Right.POLICYMAKER, False), (Right.ADMINISTRATOR, True))
)


@ROUTES.list("policies", "policies/{vhost}", scope=Scope.VHOST, arguments={"operator": False})
@ROUTES.list(
    "operator-policies",
    "operator-policies/{vhost}",
    doc="Operator policies of a vhost, or of all that the user may see.",
    scope=Scope.VHOST,
    arguments={"operator": True},
)
def list_policies(call: Call, *, operator: bool) -> Answer:
    """Policies of a vhost, or of all that the user may see."""
    rows = call.administration.policies.all(call.actor, call.vhost, operator=operator)
    return Listing(rows, is_paged=False)


@ROUTES.get("policies/{vhost}/{policy}", **_POLICY)
@ROUTES.get("operator-policies/{vhost}/{policy}", doc="Return an operator policy.", **_OPERATOR)
def get_policy(call: Call, vhost: str, policy: str, *, operator: bool) -> Answer:
    """Return a policy."""
    return Item(call.administration.policies.get(call.actor, vhost, policy, operator=operator))


@ROUTES.put("policies/{vhost}/{policy}", body=_BODY, **_POLICY)
@ROUTES.put("operator-policies/{vhost}/{policy}", doc="Set an operator policy.", body=_BODY, **_OPERATOR)
def put_policy(call: Call, vhost: str, policy: str, *, operator: bool) -> Answer:
    """Set a policy."""
    body = call.body("pattern", "definition")
    if vhost not in call.broker.vhosts:
        raise vhost_not_found()
    is_new = call.broker.vhosts[vhost].policies.get(policy, operator=operator) is None
    term = {key.name: body[key.name] for key in _BODY if key.name in body}
    try:
        call.administration.policies.set(call.actor, vhost, policy, term, operator=operator)
    except BadRequestError as error:
        # RabbitMQ 3 escapes the texts of one but not of the other
        raise bad_request(str(error) if operator or call.is_4 else escaped(str(error))) from None
    return Done(201 if is_new else 204)


@ROUTES.delete("policies/{vhost}/{policy}", **_POLICY)
@ROUTES.delete("operator-policies/{vhost}/{policy}", doc="Remove an operator policy.", **_OPERATOR)
def delete_policy(call: Call, vhost: str, policy: str, *, operator: bool) -> None:
    """Remove a policy."""
    call.administration.policies.clear(call.actor, vhost, policy, operator=operator)


@ROUTES.get("leveret/settings", scope=Scope.NONE, kind="array")
def get_settings(_call: Call) -> Answer:
    """The settings that arguments of queues and policies can give: their types, bounds and help, and the
    kinds of objects that have them, for forms.
    """
    return Listing(list(catalogue()), sort=(), is_paged=False)


@ROUTES.post(
    "leveret/explain/policy/{vhost}",
    needs=Right.POLICYMAKER,
    body=(
        required("name"),
        Key(
            "policy",
            "object",
            doc="`pattern`, `definition`, `priority` and `apply-to`; without it: if it were removed",
        ),
        Key("operator", "boolean", doc="an operator policy"),
    ),
    is_stored=False,
)
def explain_policy(call: Call, vhost: str) -> Steps:
    """Changes that a policy would make if it were set now, and the number of messages that would be deleted at once;
    nothing is changed.
    """
    body = call.body("name")
    term = {"priority": 0, **body.table("policy")} if body.get("policy") is not None else None
    found = yield from policy_preview(
        call.broker, call.actor, vhost, body.text("name"), term, operator=body.flag("operator")
    )
    return Item(found)


# -- parameters -------------------------------------------------------------------------------------------------------


def _parameter_state(call: Call) -> Any:
    """Return the value of a parameter for the audit log; without the URIs and passwords of a shovel."""
    vhost, component, name = (call.names[key] for key in ("vhost", "component", "name"))
    if component == LIMITS:
        return limits_state(call)
    if component == OPERATOR_POLICY:
        return _policy_state(call, operator=True)
    found = call.broker.vhosts.get(vhost)
    value = None if found is None else found.parameters.get(component, name)
    if value is None:
        return None
    return {"value": shown_without_secrets(value) if component == SHOVEL else value}


def _global_parameter_state(call: Call) -> Any:
    """Return the value of a global parameter, under its name, which may tell that it is secret, for the audit log."""
    name, values = call.names["name"], call.broker.directory.global_parameters.list()
    return {name: values[name]} if name in values else None


_PARAMETER = "parameters/{component}/{vhost}/{name}"
_GLOBAL = "global-parameters/{name}"
_VALUE = (required("value", "any"),)


@PARAMETER_ROUTES.list(
    "parameters", "parameters/{component}", "parameters/{component}/{vhost}", scope=Scope.VHOST
)
def list_parameters(call: Call) -> Answer:
    """Parameters of vhosts that the user may see."""
    rows = call.administration.policies.parameters(call.actor, call.vhost, call.names.get("component"))
    return Listing(rows, sort=("vhost", "name"), is_paged=False)


@PARAMETER_ROUTES.get(_PARAMETER)
def get_parameter(call: Call, component: str, vhost: str, name: str) -> Answer:
    """One parameter."""
    return _named(name, call.administration.policies.parameters(call.actor, vhost, component))


def _named(name: str, rows: list[dict[str, Any]]) -> Answer:
    for row in rows:
        if row["name"] == name:
            return Item(row)
    raise not_found()


@PARAMETER_ROUTES.put(_PARAMETER, body=_VALUE, state=_parameter_state)
def put_parameter(call: Call, component: str, vhost: str, name: str) -> Answer:
    """Set a parameter; limits and operator policies need an administrator."""
    value = call.body("value")["value"]
    if vhost not in call.broker.vhosts:
        raise vhost_not_found()
    policies = call.administration.policies
    present = policies.parameters(call.actor, vhost, component)
    try:
        policies.set_parameter(call.actor, vhost, component, name, value)
    except BadRequestError as error:
        raise bad_request(str(error) if call.is_4 else escaped(str(error))) from None
    return Done(204 if any(row["name"] == name for row in present) else 201)


@PARAMETER_ROUTES.delete(_PARAMETER, state=_parameter_state)
def delete_parameter(call: Call, component: str, vhost: str, name: str) -> None:
    """Remove a parameter."""
    call.administration.policies.clear_parameter(call.actor, vhost, component, name)


@PARAMETER_ROUTES.list("global-parameters")
def list_global_parameters(call: Call) -> Answer:
    """All global parameters."""
    rows = call.administration.policies.global_parameters(call.actor)
    return Listing(rows, sort=("name",), is_paged=False)


@PARAMETER_ROUTES.get(_GLOBAL)
def get_global_parameter(call: Call, name: str) -> Answer:
    """One global parameter."""
    return _named(name, call.administration.policies.global_parameters(call.actor))


@PARAMETER_ROUTES.put(_GLOBAL, body=_VALUE, state=_global_parameter_state)
def put_global_parameter(call: Call, name: str) -> Answer:
    """Set a global parameter."""
    value = call.body("value")["value"]
    is_new = name not in call.broker.directory.global_parameters.list()
    call.administration.policies.set_global_parameter(call.actor, name, value)
    return Done(201 if is_new else 204)


@PARAMETER_ROUTES.delete(_GLOBAL, state=_global_parameter_state)
def delete_global_parameter(call: Call, name: str) -> None:
    """Remove a global parameter."""
    call.administration.policies.clear_global_parameter(call.actor, name)


# -- shovels ----------------------------------------------------------------------------------------------------------


@SHOVEL_ROUTES.list("shovels", needs=Right.MONITORING)
@SHOVEL_ROUTES.list("shovels/{vhost}", needs=Right.MONITORING, scope=Scope.VISIBLE)
def list_shovels(call: Call) -> Answer:
    """The status of shovels: `starting`, `running`, `flow`, `blocked` or `terminated` with a reason."""
    broker, vhost = call.broker, call.names.get("vhost")
    if vhost is not None:
        vhost_named(broker, vhost)
    rows = [
        {"node": broker.node_name, **status}
        for status in broker.shovels.statuses()
        if vhost in {None, status["vhost"]} and may_see(broker.users, call.actor, status["vhost"])
    ]
    return Listing(rows, sort=("vhost", "name"), is_paged=False)


@SHOVEL_ROUTES.get("shovels/vhost/{vhost}/{name}", needs=Right.MONITORING, scope=Scope.VISIBLE)
def get_shovel(call: Call, vhost: str, name: str) -> Answer:
    """The definition of a shovel; only administrators see the logins of its URIs."""
    return Item(call.administration.policies.shown_parameter(call.actor, vhost, SHOVEL, name))


@SHOVEL_ROUTES.delete("shovels/vhost/{vhost}/{name}", needs=Right.POLICYMAKER, scope=Scope.VHOST)
def delete_shovel(call: Call, name: str) -> None:
    """Stop and delete a shovel."""
    vhost = call.found_vhost().name
    with contextlib.suppress(NotFoundError):
        call.administration.policies.clear_parameter(call.actor, vhost, SHOVEL, name)


@SHOVEL_ROUTES.delete("shovels/vhost/{vhost}/{name}/restart", needs=Right.POLICYMAKER, scope=Scope.VHOST)
def restart_shovel(call: Call, vhost: str, name: str) -> None:
    """Stop a shovel and start it again."""
    vhost_named(call.broker, vhost)
    if not call.broker.shovels.restart(vhost, name):
        raise NotFoundError(f"Shovel '{name}' in virtual host '{vhost}' does not exist")
