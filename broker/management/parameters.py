"""Parameters of vhosts and of the broker: `/api/parameters`, `/api/global-parameters`."""

from leveret.broker.administration.access import BadRequestError, Right
from leveret.broker.http.call import Answer, Call, Done, Item, Listing
from leveret.broker.http.errors import bad_request, escaped, not_found, vhost_not_found
from leveret.broker.http.route import Key, Operation, Route, Scope
from leveret.broker.management import recorded_state


def list_parameters(call: Call) -> Answer:
    """List the parameters of all vhosts or one, of all components or one."""
    rows = call.administration.policies.parameters(call.actor, call.vhost, call.names.get("component"))
    return Listing(rows, sort=("vhost", "name"), is_paged=False)


def get_parameter(call: Call) -> Answer:
    """Return one parameter."""
    for row in call.administration.policies.parameters(call.actor, call.vhost, call.names["component"]):
        if row["name"] == call.names["name"]:
            return Item(row)
    raise not_found()


def put_parameter(call: Call) -> Answer:
    """Set a parameter."""
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


def delete_parameter(call: Call) -> Answer:
    """Remove a parameter."""
    names = call.names
    call.administration.policies.clear_parameter(
        call.actor, names["vhost"], names["component"], names["name"]
    )
    return Done()


def list_global_parameters(call: Call) -> Answer:
    """List the global parameters."""
    rows = call.administration.policies.global_parameters(call.actor)
    return Listing(rows, sort=("name",), is_paged=False)


def get_global_parameter(call: Call) -> Answer:
    """Return one global parameter."""
    for row in call.administration.policies.global_parameters(call.actor):
        if row["name"] == call.names["name"]:
            return Item(row)
    raise not_found()


def put_global_parameter(call: Call) -> Answer:
    """Set a global parameter to any value."""
    name = call.names["name"]
    value = call.body("value")["value"]
    is_new = name not in call.broker.global_parameters.list()
    call.administration.policies.set_global_parameter(call.actor, name, value)
    return Done(201 if is_new else 204)


def delete_global_parameter(call: Call) -> Answer:
    """Remove a global parameter."""
    call.administration.policies.clear_global_parameter(call.actor, call.names["name"])
    return Done()


_POLICYMAKER = Right.POLICYMAKER
_VALUE = (Key("value", "any", is_required=True),)
_LIST = Operation(
    list_parameters, "Parameters of vhosts that the user may see.", _POLICYMAKER, Scope.VHOST, kind="array"
)
ROUTES = (
    Route("parameters", "parameters", {"GET": _LIST}),
    Route("parameters/{component}", "parameters", {"GET": _LIST}),
    Route("parameters/{component}/{vhost}", "parameters", {"GET": _LIST}),
    Route(
        "parameters/{component}/{vhost}/{name}",
        "parameters",
        {
            "GET": Operation(get_parameter, "One parameter.", _POLICYMAKER, Scope.VHOST),
            "PUT": Operation(
                put_parameter, "Set a parameter; limits and operator policies need an administrator.",
                _POLICYMAKER, Scope.VHOST, body=_VALUE, statuses=(201, 204), state=recorded_state.parameter,
            ),
            "DELETE": Operation(
                delete_parameter, "Remove a parameter.", _POLICYMAKER, Scope.VHOST, statuses=(204,),
                state=recorded_state.parameter,
            ),
        },
    ),
    Route(
        "global-parameters",
        "parameters",
        {"GET": Operation(list_global_parameters, "All global parameters.", _POLICYMAKER, kind="array")},
    ),
    Route(
        "global-parameters/{name}",
        "parameters",
        {
            "GET": Operation(get_global_parameter, "One global parameter.", _POLICYMAKER),
            "PUT": Operation(
                put_global_parameter, "Set a global parameter.", _POLICYMAKER, body=_VALUE,
                statuses=(201, 204), state=recorded_state.global_parameter,
            ),
            "DELETE": Operation(
                delete_global_parameter, "Remove a global parameter.", _POLICYMAKER, statuses=(204,),
                state=recorded_state.global_parameter,
            ),
        },
    ),
)  # fmt: skip
