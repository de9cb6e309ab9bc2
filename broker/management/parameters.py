"""Parameters of vhosts and of the broker: `/api/parameters`, `/api/global-parameters`."""

from leveret.broker.administration.access import BadRequestError, Right
from leveret.broker.http.call import Answer, Call, Done, Item, Listing
from leveret.broker.http.errors import bad_request, escaped, not_found, vhost_not_found
from leveret.broker.http.route import Routes, Scope, required
from leveret.broker.management import recorded_state

ROUTES = Routes("parameters", needs=Right.POLICYMAKER)
_VALUE = (required("value", "any"),)


@ROUTES.list("parameters", "parameters/{component}", "parameters/{component}/{vhost}", scope=Scope.VHOST)
def list_parameters(call: Call) -> Answer:
    """Parameters of vhosts that the user may see."""
    rows = call.administration.policies.parameters(call.actor, call.vhost, call.names.get("component"))
    return Listing(rows, sort=("vhost", "name"), is_paged=False)


@ROUTES.get("parameters/{component}/{vhost}/{name}", scope=Scope.VHOST)
def get_parameter(call: Call) -> Answer:
    """One parameter."""
    for row in call.administration.policies.parameters(call.actor, call.vhost, call.names["component"]):
        if row["name"] == call.names["name"]:
            return Item(row)
    raise not_found()


@ROUTES.put(
    "parameters/{component}/{vhost}/{name}", scope=Scope.VHOST, body=_VALUE, state=recorded_state.parameter
)
def put_parameter(call: Call) -> Answer:
    """Set a parameter; limits and operator policies need an administrator."""
    vhost, component, name = (call.names[key] for key in ("vhost", "component", "name"))
    value = call.body("value")["value"]
    if vhost not in call.broker.vhosts:
        raise vhost_not_found()
    policies = call.administration.policies
    present = policies.parameters(call.actor, vhost, component)
    try:
        policies.set_parameter(call.actor, vhost, component, name, value)
    except BadRequestError as error:
        raise bad_request(escaped(str(error))) from None
    return Done(204 if any(row["name"] == name for row in present) else 201)


@ROUTES.delete("parameters/{component}/{vhost}/{name}", scope=Scope.VHOST, state=recorded_state.parameter)
def delete_parameter(call: Call) -> None:
    """Remove a parameter."""
    names = call.names
    call.administration.policies.clear_parameter(
        call.actor, names["vhost"], names["component"], names["name"]
    )


@ROUTES.list("global-parameters")
def list_global_parameters(call: Call) -> Answer:
    """All global parameters."""
    rows = call.administration.policies.global_parameters(call.actor)
    return Listing(rows, sort=("name",), is_paged=False)


@ROUTES.get("global-parameters/{name}")
def get_global_parameter(call: Call) -> Answer:
    """One global parameter."""
    for row in call.administration.policies.global_parameters(call.actor):
        if row["name"] == call.names["name"]:
            return Item(row)
    raise not_found()


@ROUTES.put("global-parameters/{name}", body=_VALUE, state=recorded_state.global_parameter)
def put_global_parameter(call: Call) -> Answer:
    """Set a global parameter."""
    name = call.names["name"]
    value = call.body("value")["value"]
    is_new = name not in call.broker.global_parameters.list()
    call.administration.policies.set_global_parameter(call.actor, name, value)
    return Done(201 if is_new else 204)


@ROUTES.delete("global-parameters/{name}", state=recorded_state.global_parameter)
def delete_global_parameter(call: Call) -> None:
    """Remove a global parameter."""
    call.administration.policies.clear_global_parameter(call.actor, call.names["name"])
