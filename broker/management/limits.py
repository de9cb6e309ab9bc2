"""Limits of vhosts and users: `/api/vhost-limits`, `/api/user-limits`."""

from leveret.broker.administration.access import Right, found_vhost
from leveret.broker.administration.vhosts import shown_vhost_limits
from leveret.broker.auth.users import USER_LIMITS, VHOST_LIMITS
from leveret.broker.http.call import Answer, Call, Done, Listing
from leveret.broker.http.errors import bad_request, vhost_not_found
from leveret.broker.http.route import Routes, Scope, required
from leveret.broker.management import recorded_state
from leveret.broker.vhost.parameters import LIMITS, LIMITS_NAME

ROUTES = Routes("limits")
_VALUE = (required("value", "integer", doc="negative for no limit"),)


@ROUTES.list("vhost-limits", "vhost-limits/{vhost}", scope=Scope.VISIBLE, has_head=False)
def list_vhost_limits(call: Call) -> Answer:
    """Limits of a vhost, or of all that the user may see."""
    return Listing(call.administration.vhosts.limits(call.actor, call.vhost), sort=("vhost",), is_paged=False)


@ROUTES.put(
    "vhost-limits/{vhost}/{limit}",
    doc=f"Set one of {', '.join(VHOST_LIMITS)}.",
    needs=Right.ADMINISTRATOR,
    body=_VALUE,
    statuses=(204,),
    state=recorded_state.vhost_limits,
)
def put_vhost_limit(call: Call) -> Answer:
    """Set a limit of a vhost."""
    vhost = call.names["vhost"]
    value = call.body("value")["value"]
    if vhost not in call.broker.vhosts:
        raise vhost_not_found()
    limits = shown_vhost_limits(call.broker.users.vhost_limits(vhost)) | {call.names["limit"]: value}
    call.administration.policies.set_parameter(call.actor, vhost, LIMITS, LIMITS_NAME, limits)
    return Done()


@ROUTES.delete("vhost-limits/{vhost}/{limit}", needs=Right.ADMINISTRATOR, state=recorded_state.vhost_limits)
def delete_vhost_limit(call: Call) -> Answer:
    """Remove a limit of a vhost."""
    vhost = found_vhost(call.broker, call.names["vhost"]).name
    limits = shown_vhost_limits(call.broker.users.vhost_limits(vhost))
    if limits.pop(call.names["limit"], None) is not None:
        call.administration.vhosts.set_limits(call.actor, vhost, limits)
    return Done()


@ROUTES.list("user-limits", "user-limits/{user}", has_head=False)
def list_user_limits(call: Call) -> Answer:
    """Limits of a user, or of all users."""
    rows = call.administration.users.limits(call.actor, call.names.get("user"))
    return Listing(rows, sort=("user",), is_paged=False)


@ROUTES.put(
    "user-limits/{user}/{limit}",
    doc=f"Set one of {', '.join(USER_LIMITS)}.",
    needs=Right.ADMINISTRATOR,
    body=_VALUE,
    statuses=(204,),
    state=recorded_state.user_limits,
)
def put_user_limit(call: Call) -> Answer:
    """Set a limit of a user."""
    user = call.names["user"]
    value = call.body("value")["value"]
    if call.broker.users.get(user) is None:
        raise bad_request(["no_such_user", user])
    call.administration.users.set_limits(call.actor, user, {call.names["limit"]: value})
    return Done()


@ROUTES.delete("user-limits/{user}/{limit}", needs=Right.ADMINISTRATOR, state=recorded_state.user_limits)
def delete_user_limit(call: Call) -> Answer:
    """Remove a limit of a user."""
    call.administration.users.clear_limits(call.actor, call.names["user"], call.names["limit"])
    return Done()
