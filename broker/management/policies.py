"""Policies and operator policies: `/api/policies`, `/api/operator-policies`."""

from functools import partial

from leveret.broker.administration.access import BadRequestError, Right
from leveret.broker.http.call import Answer, Call, Done, Item, Listing
from leveret.broker.http.errors import bad_request, escaped, vhost_not_found
from leveret.broker.http.route import Key, Routes, Scope, required
from leveret.broker.management import recorded_state

ROUTES = Routes("policies", scope=Scope.VHOST)
_BODY = (
    required("pattern", doc="regular expression that names match"),
    required("definition", "object", doc="settings by their names"),
    Key("priority", "number", doc="the highest that matches applies; 0"),
    Key("apply-to", doc="all, queues, exchanges, classic_queues, quorum_queues or streams; all"),
)
_POLICY = {
    "needs": Right.POLICYMAKER,
    "state": partial(recorded_state.policy, operator=False),
    "arguments": {"operator": False},
}
_OPERATOR = {
    "needs": Right.ADMINISTRATOR,
    "state": partial(recorded_state.policy, operator=True),
    "arguments": {"operator": True},
}


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
def get_policy(call: Call, *, operator: bool) -> Answer:
    """Return a policy."""
    vhost, name = call.names["vhost"], call.names["policy"]
    return Item(call.administration.policies.get(call.actor, vhost, name, operator=operator))


@ROUTES.put("policies/{vhost}/{policy}", body=_BODY, **_POLICY)
@ROUTES.put("operator-policies/{vhost}/{policy}", doc="Set an operator policy.", body=_BODY, **_OPERATOR)
def put_policy(call: Call, *, operator: bool) -> Answer:
    """Set a policy."""
    vhost, name = call.names["vhost"], call.names["policy"]
    body = call.body("pattern", "definition")
    if vhost not in call.broker.vhosts:
        raise vhost_not_found()
    is_new = call.broker.vhosts[vhost].policies.get(name, operator=operator) is None
    term = {key.name: body[key.name] for key in _BODY if key.name in body}
    try:
        call.administration.policies.set(call.actor, vhost, name, term, operator=operator)
    except BadRequestError as error:
        # RabbitMQ escapes the texts of one but not of the other
        raise bad_request(str(error) if operator else escaped(str(error))) from None
    return Done(201 if is_new else 204)


@ROUTES.delete("policies/{vhost}/{policy}", **_POLICY)
@ROUTES.delete("operator-policies/{vhost}/{policy}", doc="Remove an operator policy.", **_OPERATOR)
def delete_policy(call: Call, *, operator: bool) -> None:
    """Remove a policy."""
    vhost, name = call.names["vhost"], call.names["policy"]
    call.administration.policies.clear(call.actor, vhost, name, operator=operator)
