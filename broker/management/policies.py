"""Policies and operator policies: `/api/policies`, `/api/operator-policies`."""

from collections.abc import Mapping
from functools import partial

from leveret.broker.administration.access import BadRequestError, Right
from leveret.broker.http.call import Answer, Call, Done, Item, Listing
from leveret.broker.http.errors import bad_request, escaped, vhost_not_found
from leveret.broker.http.route import Key, Operation, Route, Scope
from leveret.broker.management import recorded_state

KEYS = ("pattern", "definition", "priority", "apply-to")


def list_policies(call: Call, *, operator: bool) -> Answer:
    """List the policies of a vhost, or of all that the user may see."""
    return Listing(
        call.administration.policies.all(call.actor, call.vhost, operator=operator), is_paged=False
    )


def get_policy(call: Call, *, operator: bool) -> Answer:
    """Return one policy."""
    vhost, name = call.names["vhost"], call.names["policy"]
    return Item(call.administration.policies.get(call.actor, vhost, name, operator=operator))


def put_policy(call: Call, *, operator: bool) -> Answer:
    """Set a policy."""
    vhost, name = call.names["vhost"], call.names["policy"]
    body = call.body("pattern", "definition")
    if vhost not in call.broker.vhosts:
        raise vhost_not_found()
    is_new = call.broker.vhosts[vhost].policies.get(name, operator=operator) is None
    term = {key: body[key] for key in KEYS if key in body}
    try:
        call.administration.policies.set(call.actor, vhost, name, term, operator=operator)
    except BadRequestError as error:
        # RabbitMQ escapes the texts of one but not of the other
        raise bad_request(str(error) if operator else escaped(str(error))) from None
    return Done(201 if is_new else 204)


def delete_policy(call: Call, *, operator: bool) -> Answer:
    """Remove a policy."""
    call.administration.policies.clear(
        call.actor, call.names["vhost"], call.names["policy"], operator=operator
    )
    return Done()


_BODY = (
    Key("pattern", is_required=True, doc="regular expression that names match"),
    Key("definition", "object", is_required=True, doc="settings by their names"),
    Key("priority", "number", doc="the highest that matches applies; 0"),
    Key("apply-to", doc="all, queues, exchanges, classic_queues, quorum_queues or streams; all"),
)


def _one(*, operator: bool, needs: Right) -> Mapping[str, Operation]:
    what = "an operator policy" if operator else "a policy"
    state = recorded_state.operator_policy if operator else recorded_state.policy
    return {
        "GET": Operation(
            partial(get_policy, operator=operator), f"Return {what}.", needs, Scope.VHOST
        ),
        "PUT": Operation(
            partial(put_policy, operator=operator),
            f"Set {what}.",
            needs,
            Scope.VHOST,
            body=_BODY,
            statuses=(201, 204),
            state=state,
        ),
        "DELETE": Operation(
            partial(delete_policy, operator=operator), f"Remove {what}.", needs, Scope.VHOST, statuses=(204,),
            state=state,
        ),
    }  # fmt: skip


def _list(*, operator: bool) -> Mapping[str, Operation]:
    doc = f"{'Operator policies' if operator else 'Policies'} of a vhost, or of all that the user may see."
    return {"GET": Operation(partial(list_policies, operator=operator), doc, scope=Scope.VHOST, kind="array")}


ROUTES = (
    Route("policies", "policies", _list(operator=False)),
    Route("policies/{vhost}", "policies", _list(operator=False)),
    Route("policies/{vhost}/{policy}", "policies", _one(operator=False, needs=Right.POLICYMAKER)),
    Route("operator-policies", "policies", _list(operator=True)),
    Route("operator-policies/{vhost}", "policies", _list(operator=True)),
    Route("operator-policies/{vhost}/{policy}", "policies", _one(operator=True, needs=Right.ADMINISTRATOR)),
)
