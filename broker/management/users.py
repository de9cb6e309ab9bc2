"""Users: `/api/users` and `/api/whoami`, and their limits: `/api/user-limits`."""

import base64
from typing import Any

from leveret.broker.administration.access import Right
from leveret.broker.administration.definitions_document import as_words
from leveret.broker.auth.users import USER_LIMITS
from leveret.broker.http.call import Answer, Call, Done, Item, Listing, Steps, text
from leveret.broker.http.errors import bad_request
from leveret.broker.http.route import Key, Routes, required
from leveret.broker.management import recorded_state

ROUTES = Routes("users", needs=Right.ADMINISTRATOR)


@ROUTES.list("users")
def list_users(call: Call) -> Answer:
    """All users."""
    return Listing(call.administration.users.all(call.actor), sort=("name",), is_paged=False)


@ROUTES.get("users/{user}")
def get_user(call: Call) -> Answer:
    """One user."""
    return Item(call.administration.users.get(call.actor, call.names["user"]))


@ROUTES.put(
    "users/{user}",
    body=(
        required("tags", "any", doc="a list, or one text with commas"),
        Key("password"),
        Key("password_hash", doc="instead of the password; empty for none, as without both"),
        Key("hashing_algorithm", doc="of the hash"),
    ),
    state=recorded_state.user,
)
def put_user(call: Call) -> Answer:
    """Create a user, or change its password and tags."""
    name = call.names["user"]
    body = call.body()
    if "tags" not in body:
        raise bad_request("tags_not_present")
    if {"password", "password_hash"} <= body.keys():
        raise bad_request("both_password_and_password_hash_are_provided")
    users = call.administration.users
    is_new = call.broker.users.get(name) is None
    given: dict[str, Any] = {key: body[key] for key in ("password", "password_hash") if key in body}
    if not is_base64(given.get("password_hash", "")):
        raise bad_request(["not_base64", given["password_hash"]])
    text(given, "password")
    if not given:
        given["password_hash"] = ""  # who sends neither, disables the password
    algorithm = text(body, "hashing_algorithm", "")
    users.put(
        call.actor,
        name,
        tags=[tag for tag in tags_of(body["tags"]) if tag],
        hashing_algorithm=algorithm,
        **given,
    )
    return Done(201 if is_new else 204)


@ROUTES.delete("users/{user}", state=recorded_state.user)
def delete_user(call: Call) -> None:
    """Delete a user and close its connections."""
    call.administration.users.delete(call.actor, call.names["user"])


@ROUTES.post("users/bulk-delete", body=(required("users", "array", doc="names"),), state=recorded_state.users)
def delete_users(call: Call) -> None:
    """Delete several users."""
    names = call.body("users")["users"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise bad_request("'users' must be a list of names")
    for name in names:
        if call.broker.users.get(name) is None:
            raise bad_request(["no_such_user", name])
    for name in dict.fromkeys(names):
        call.administration.users.delete(call.actor, name)


@ROUTES.list("users/without-permissions")
def list_users_without_permissions(call: Call) -> Steps:
    """Users that have access to no vhost."""
    permitted = set()
    for at, (name, _vhost, _row) in enumerate(call.broker.users.permission_rows()):
        permitted.add(name)
        if not at % 64:
            yield None
    users = call.administration.users.all(call.actor)
    return Listing((user for user in users if user["name"] not in permitted), sort=("name",), is_paged=False)


@ROUTES.get("whoami", needs=Right.MANAGEMENT)
def whoami(call: Call) -> Answer:
    """The user who asks."""
    actor = call.actor
    if actor is None:
        return Item({"name": "", "tags": ["administrator"], "is_internal_user": True})
    return Item({"name": actor.name, "tags": list(actor.tags), "is_internal_user": True})


def is_base64(given: Any) -> bool:
    """Return whether a value is a text in base64."""
    try:
        base64.b64decode(given, validate=True)
    except (TypeError, ValueError):
        return False
    return True


def tags_of(given: Any) -> list[str]:
    """Return tags as a list, which may be a text with commas; raises ApiError."""
    if not isinstance(given, str | list) or not all(isinstance(each, str) for each in given):
        raise bad_request("'tags' must be a list of texts, or one text with commas between them")
    return as_words(given)


# -- limits -----------------------------------------------------------------------------------------------------------


@ROUTES.list("user-limits", "user-limits/{user}", needs=Right.MANAGEMENT, group="limits", has_head=False)
def list_user_limits(call: Call) -> Answer:
    """Limits of a user, or of all users."""
    rows = call.administration.users.limits(call.actor, call.names.get("user"))
    return Listing(rows, sort=("user",), is_paged=False)


@ROUTES.put(
    "user-limits/{user}/{limit}",
    doc=f"Set one of {', '.join(USER_LIMITS)}.",
    body=(required("value", "integer", doc="negative for no limit"),),
    group="limits",
    state=recorded_state.user_limits,
)
def put_user_limit(call: Call) -> None:
    """Set a limit of a user."""
    user = call.names["user"]
    value = call.body("value")["value"]
    if call.broker.users.get(user) is None:
        raise bad_request(["no_such_user", user])
    call.administration.users.set_limits(call.actor, user, {call.names["limit"]: value})


@ROUTES.delete("user-limits/{user}/{limit}", group="limits", state=recorded_state.user_limits)
def delete_user_limit(call: Call) -> None:
    """Remove a limit of a user."""
    call.administration.users.clear_limits(call.actor, call.names["user"], call.names["limit"])
